"""The one port that is open to others: a proxy in front of Flower's SuperLink.

Flower's SuperLink serves three interfaces on one port: the fleet (what sites need), control (start
runs, enrol nodes) and runtime (take over a run's tasks), the last two to anybody who reaches it. So
the SuperLink listens on the loopback interface only, and this proxy passes the fleet's paths on to
it, within `fleet_rules`, and nothing else. Size is limited while a request is received.
"""

import asyncio
import logging
import re
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from idiolect.deploy.credentials import Credentials
from idiolect.deploy.proxy_notes import ProxyNotes
from idiolect.errors import UserError

if TYPE_CHECKING:
    from idiolect.deploy.fleet_rules import FleetRules

log = logging.getLogger("idiolect.proxy")

ALLOWED_PATHS = re.compile(r"/v1/fleet/[a-z-]+|/health")
DROPPED_HEADERS = {b"host", b"content-length", b"connection", b"transfer-encoding", b"keep-alive"}

Headers = Sequence[tuple[bytes, bytes]]
Event = MutableMapping[str, Any]  # of ASGI: a request, or a part of one
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
TurnAway = Callable[[str, int, str], None]  # message that was answered, node, reason


class FleetProxy:
    """An ASGI application that passes the fleet's requests on to the SuperLink."""

    def __init__(self, superlink: str, ca: Path | None, rules: "FleetRules", turn_away: TurnAway):
        self._superlink, self._rules, self._turn_away = superlink, rules, turn_away
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
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
        path = scope["path"]
        headers = [(k, v) for k, v in scope["headers"] if k.lower() not in DROPPED_HEADERS]
        body, whole = await _read(receive, self._rules.limit(path))
        refusal = self._rules.too_large(path, body) if not whole else None
        if refusal is None:
            # A site's parts are counted one after the other: together they have one limit.
            async with self._turn(self._rules.sender(path, body)):
                refusal = self._rules.refusal(path, body)
                if refusal is None:
                    await self._pass_on(scope, headers, body, send)
        if refusal is not None:
            self._log_refusal(scope, refusal.reason)
            if refusal.node and await self._is_known(refusal.node, headers):
                self._turn_away(refusal.answers, refusal.node, refusal.reason)
            await _reply(send, 413, f"refused: {refusal.reason}".encode())

    def _turn(self, sender: int) -> AbstractAsyncContextManager[Any]:
        return self._turns.setdefault(sender, asyncio.Lock()) if sender else nullcontext()

    async def _is_known(self, node: int, headers: Headers) -> bool:
        """Whether this node sent these headers: nobody may spoil the answer of another."""
        path, body = self._rules.sign_of_life(node)
        try:
            answer = await self._client.request("POST", path, headers=headers, content=body)
        except Exception:
            return False
        return bool(answer.status_code == 200)

    async def _pass_on(self, scope: Event, headers: Headers, body: bytes, send: Send) -> None:
        try:
            answer = await self._client.request(
                scope["method"], scope["path"], headers=headers, content=body
            )
        except Exception as error:
            log.warning("the SuperLink does not answer: %s", type(error).__name__)
            await _reply(send, 502, b"bad gateway")
            return
        if answer.status_code == 200:
            self._rules.passed(scope["path"], body)
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


async def _read(receive: Receive, limit: int) -> tuple[bytes, bool]:
    """The body, and whether it is whole; reading ends where it exceeds its limit."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"", False
        part = message.get("body", b"")
        size += len(part)
        parts.append(part)
        if size > limit:
            return b"".join(parts), False
        if not message.get("more_body"):
            return b"".join(parts), True


async def _reply(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status, "headers": [*headers, length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def serve_proxy(
    host: str, port: int, superlink: str, keys: Credentials | None, folder: Path
) -> Callable[[], None]:
    """Listen in a thread of this process; returns how to close it. `folder` is that of the
    federation, for the notes of proxy and experiment."""
    import uvicorn  # type: ignore[import-not-found]

    from idiolect.deploy.fleet_rules import FleetRules

    notes = ProxyNotes(folder)
    rules = FleetRules(notes.allowed)
    config = uvicorn.Config(
        FleetProxy(superlink, keys.ca if keys else None, rules, notes.turn_away),
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
