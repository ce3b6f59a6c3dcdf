"""Who may see the page: this machine, or whoever has the token; and what the page may do."""

import hmac
import secrets
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "idiolect"
# Plotly writes style elements and attributes; nothing but our own files is loaded, nothing is sent.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Access:
    """Turns away requests for other host names (a page elsewhere could have its name point here),
    without the token where one is asked for, and changes without the key that only our page has."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], token: str | None, key: str) -> None:
        self.app, self.hosts, self.token, self.key = app, set(hosts), token, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SAFE)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        name = headers.get("host", "").rsplit(":", 1)[0].strip("[]")
        if self.token is None and name not in self.hosts:
            return PlainTextResponse("this page is served to this machine only", 403)
        if self.token is not None:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if given and _same(given, self.token):
                welcome = RedirectResponse(scope["path"], 303)  # so that the address loses it
                safe = scope["scheme"] == "https"
                welcome.set_cookie(
                    COOKIE, self.token, httponly=True, samesite="strict", secure=safe
                )
                return welcome
            if not _same(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""), self.token):
                return PlainTextResponse("add ?token=… as `idiolect ui` printed it", 401)
        if scope["method"] != "GET" and not _same(headers.get("x-idiolect", ""), self.key):
            return PlainTextResponse("only the page itself may change runs", 403)
        return None


def fresh_secret() -> str:
    return secrets.token_urlsafe(24)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
