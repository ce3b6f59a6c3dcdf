"""The one port that is open to others: a proxy in front of Flower's SuperLink.

Flower's SuperLink serves three interfaces on one port: the fleet (what sites need), control (start
runs, enrol nodes) and runtime (take over a run's tasks), the last two to anybody who reaches it. So
the SuperLink listens on the loopback interface only, and this proxy passes the fleet's paths on to
it, with a limit on the size of a request, and nothing else.
"""

import logging
import re
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from idiolect.deploy.credentials import Credentials
from idiolect.errors import UserError

log = logging.getLogger("idiolect.proxy")

ALLOWED_PATHS = re.compile(r"/v1/fleet/[a-z-]+|/health")
MAX_REQUEST_BYTES = 64 << 20  # Flower cuts arrays into smaller pieces
DROPPED_HEADERS = {b"host", b"content-length", b"connection", b"transfer-encoding", b"keep-alive"}

Headers = Sequence[tuple[bytes, bytes]]
Event = MutableMapping[str, Any]  # of ASGI: a request, or a part of one
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class FleetProxy:
    """An ASGI application that passes the fleet's requests on to the SuperLink."""

    def __init__(self, superlink: str, ca: Path | None, limit: int = MAX_REQUEST_BYTES):
        self._superlink, self._limit = superlink, limit
        self._verify: Any = ssl.create_default_context(cafile=str(ca)) if ca else False
        self._client: Any = None

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._hold_connections(receive, send)
            return
        if scope["type"] != "http":
            return
        if not ALLOWED_PATHS.fullmatch(scope["path"]):
            self._log_refusal(scope, "is not a fleet path")
            await _reply(send, 404, b"not found")
            return
        body = await _read(receive, self._limit)
        if body is None:
            self._log_refusal(scope, f"is larger than {self._limit} bytes")
            await _reply(send, 413, b"too large")
            return
        headers = [(k, v) for k, v in scope["headers"] if k.lower() not in DROPPED_HEADERS]
        try:
            answer = await self._client.request(
                scope["method"], scope["path"], headers=headers, content=body
            )
        except Exception as error:
            log.warning("the SuperLink does not answer: %s", type(error).__name__)
            await _reply(send, 502, b"bad gateway")
            return
        kept = [
            (k.lower(), v)
            for k, v in answer.headers.raw
            if k.lower() not in DROPPED_HEADERS | {b"content-encoding"}
        ]
        await _reply(send, answer.status_code, answer.content, kept)

    async def _hold_connections(self, receive: Receive, send: Send) -> None:
        """Hold connections to the SuperLink from startup to shutdown."""
        import httpx  # type: ignore[import-not-found]

        await receive()
        async with httpx.AsyncClient(
            base_url=self._superlink, verify=self._verify, timeout=300.0, trust_env=False
        ) as self._client:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _log_refusal(self, scope: Event, why: str) -> None:
        peer = (scope.get("client") or ("?",))[0]
        log.warning("refused %s: %s %s", peer, scope["path"][:80], why)


async def _read(receive: Receive, limit: int) -> bytes | None:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _reply(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status, "headers": [*headers, length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def serve_proxy(
    host: str, port: int, superlink: str, keys: Credentials | None
) -> Callable[[], None]:
    """Listen in a thread of this process; returns how to close it."""
    import uvicorn  # type: ignore[import-not-found]

    config = uvicorn.Config(
        FleetProxy(superlink, keys.ca if keys else None),
        host=host,
        port=port,
        ssl_certfile=keys.cert if keys else None,
        ssl_keyfile=keys.key if keys else None,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=3,
        server_header=False,
        ws="none",
    )
    if keys is not None:
        config.load()
        assert config.ssl is not None
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="proxy", daemon=True)
    thread.start()
    end = time.monotonic() + 30
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            raise UserError(f"cannot listen on {host}:{port}; is the port taken? choose --port")
        time.sleep(0.05)

    def close() -> None:
        server.should_exit = True
        thread.join(10)

    return close
