"""Keeps other users of the server's machine away from Flower's SuperLink.

The SuperLink starts runs and enrols nodes for anybody who reaches its port, and every account on
the machine reaches the loopback interface. The kernel knows which user a loopback connection comes
from (`/proc/net/tcp`): a request of another user is turned away before Flower sees it.
"""

import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from idiolect.errors import UserError

log = logging.getLogger("idiolect.superlink")

CONNECTIONS = Path("/proc/net/tcp")
ESTABLISHED = "01"
Event = MutableMapping[str, Any]  # of ASGI
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]


def check_kernel() -> None:
    """Say so where the kernel does not tell who connects, instead of listening unguarded."""
    if not CONNECTIONS.is_file():
        raise UserError(
            f"idiolect server needs Linux ({CONNECTIONS}): elsewhere it cannot keep other users of "
            "this machine away from Flower's port; run it in a Linux container"
        )


def peer_user(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The user id of the process at the other end of a loopback connection; None: not known.

    Only an established connection that still belongs to a process counts: the kernel shows one
    that was closed as root's.
    """
    ends = [_as_listed(*peer), _as_listed(*here)]
    for line in CONNECTIONS.read_text(encoding="ascii").splitlines()[1:]:
        columns = line.split()
        owned = columns[3] == ESTABLISHED and columns[9] != "0"
        if columns[1:3] == ends and owned:
            return int(columns[7])
    return None


def _as_listed(host: str, port: int) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{number:08X}:{port:04X}"


class OnlyThisUser:
    """An ASGI application in front of another: it passes on what this user's processes ask."""

    def __init__(self, app: App):
        self._app, self._user = app, os.getuid()

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_ours(scope):
            await self._app(scope, receive, send)
            return
        log.warning("refused %s: not a process of user %d", scope.get("path"), self._user)
        if scope["type"] == "http":
            start = {"type": "http.response.start", "status": 403, "headers": []}
            await send(start)
            await send({"type": "http.response.body", "body": b"not a process of this user"})

    def _is_ours(self, scope: Event) -> bool:
        peer, here = scope.get("client"), scope.get("server")
        if not peer or not here:
            return False
        try:
            return peer_user((peer[0], peer[1]), (here[0], here[1])) == self._user
        except OSError:  # not an IPv4 address, or the list cannot be read
            return False
