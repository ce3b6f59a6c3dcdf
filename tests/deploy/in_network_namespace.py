"""Run inside a network namespace of its own: a federation, and how often it tried to leave."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import struct
import sys
from pathlib import Path

from tests.deploy.federation_processes import federation


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        flags = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(handle, 0x8914, flags)  # SIOCSIFFLAGS


def attempts() -> int:
    """Packets with no route: everything that is not for this machine."""
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Ip:"))
    four = int(dict(zip(names[1:], values[1:], strict=True))["OutNoRoutes"])
    six = 0
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/net/snmp6").read_text().splitlines():
            if line.startswith("Ip6OutNoRoutes"):
                six = int(line.split()[1])
    return four + six


def main(folder: Path) -> None:
    loopback_up()
    before = attempts()
    with federation(folder) as fed:
        fed.run("keys", "keys", "keys", "--clients", "2")
        fed.finished("keys")
        fed.server("fedas", "--clients", "2", "--rounds", "1", "--out", "run", keys=True)
        for i in range(2):
            fed.client(i, keys=True)
        code = fed.finished()
    tried = attempts() - before
    with contextlib.suppress(OSError):
        socket.create_connection(("192.0.2.1", 443), timeout=1)
    print(json.dumps({"finished": code, "attempts": tried, "control": attempts() - before - tried}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
