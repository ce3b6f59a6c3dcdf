"""A bad line between one site and the server: slow, or losing messages on their way to the site."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Collection

PULL = b"/v1/fleet/pull-messages"
Look = Callable[[bytes], bool]
EMPTY = 100  # bytes of an answer without a message in it, at most


class BadLink:
    """A port that passes everything on to `server`, at `rate` bytes a second each way.

    `losing`: which of the messages that the site pulls get lost, from 1. Flower's SuperLink has
    handed such a message over, and the line breaks before it is at the site.
    """

    def __init__(self, server: int, rate: float = 0, losing: Collection[int] = ()):
        self.server, self.rate, self.losing = server, rate, losing
        self.pulled = self.lost = self.bytes = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def __enter__(self) -> BadLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                site, _ = self._listening.accept()
                threading.Thread(target=self._connect, args=(site,), daemon=True).start()

    def _connect(self, site: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.server))
        except OSError:
            site.close()
            return
        line = _Line(self, site, server)
        threading.Thread(target=line.up, daemon=True).start()
        line.down()


class _Line:
    """One connection through the link."""

    def __init__(self, link: BadLink, site: socket.socket, server: socket.socket):
        self.link, self.site, self.server = link, site, server
        self.pulls = False  # whether the last request was for messages

    def up(self) -> None:
        self._pump(self.site, self.server, self._look_at_request)

    def down(self) -> None:
        self._pump(self.server, self.site, self._is_lost)

    def _look_at_request(self, part: bytes) -> bool:
        if part.startswith((b"POST", b"GET")):
            self.pulls = PULL in part
        return False

    def _is_lost(self, part: bytes) -> bool:
        size = re.search(rb"content-length: (\d+)", part.lower())
        if not self.pulls or size is None or int(size[1]) <= EMPTY:
            return False
        self.link.pulled += 1
        lost = self.link.pulled in self.link.losing
        self.link.lost += lost
        return lost

    def _pump(self, source: socket.socket, sink: socket.socket, is_lost: Look) -> None:
        rate = self.link.rate
        with contextlib.suppress(OSError):
            while part := source.recv(1024 if rate else 65536):
                if is_lost(part):
                    break
                if rate:
                    time.sleep(len(part) / rate)
                sink.sendall(part)
                self.link.bytes += len(part)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
