"""Who is at the other end of a loopback connection."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from idiolect.deploy import loopback_guard
from idiolect.deploy.loopback_guard import OnlyThisUser, peer_user
from idiolect.errors import UserError
from tests.deploy.another_user import BECOME_NOBODY, NOBODY, needs_root

IMPORT = "import encodings.idna, socket, sys\n"
CONNECT = """
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("here", flush=True)
sys.stdin.readline()
"""


@contextmanager
def connected(first: str = "") -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """A process connects, as another user if it becomes one `first`; both ends of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = listener.getsockname()
        command = [sys.executable, "-c", IMPORT + first + CONNECT, str(here[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            accepted, peer = listener.accept()
            try:
                yield peer, here
            finally:
                accepted.close()
                child.communicate(b"\n")


def asked(peer: tuple[str, int], here: tuple[str, int]) -> list[dict[str, Any]]:
    """What the guard answers to a request over this connection; an empty list: it passed it on."""
    told: list[dict[str, Any]] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        return

    async def send(event: Any) -> None:
        told.append(event)

    scope = {"type": "http", "path": "/v1/control/start-run", "client": peer, "server": here}
    asyncio.run(OnlyThisUser(behind)(scope, None, send))  # type: ignore[arg-type]
    return told


def test_own_process_is_let_in() -> None:
    with connected() as (peer, here):
        assert peer_user(peer, here) == os.getuid()
        assert asked(peer, here) == []


@needs_root
def test_process_of_another_user_is_turned_away() -> None:
    with connected(BECOME_NOBODY) as (peer, here):
        assert peer_user(peer, here) == NOBODY
        assert asked(peer, here)[0]["status"] == 403


def test_closed_or_unknown_connection_is_nobodys() -> None:
    """The kernel lists a closed connection as root's: it must not pass for one."""
    with connected() as (peer, here):
        pass
    assert peer_user(peer, here) is None
    assert asked(peer, here)[0]["status"] == 403
    assert asked(("::1", 5), ("::1", 6))[0]["status"] == 403


def test_a_kernel_that_does_not_tell_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback_guard, "CONNECTIONS", tmp_path / "none")
    with pytest.raises(UserError, match="needs Linux"):
        loopback_guard.check_kernel()
