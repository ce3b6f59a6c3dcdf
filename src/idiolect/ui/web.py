"""The web application: pages, their data as JSON, and a stream of what changed."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from idiolect.core.text import one_line
from idiolect.errors import UserError
from idiolect.report.page import packed_plotly
from idiolect.ui import views
from idiolect.ui.access import LOOPBACK, Access, fresh_secret
from idiolect.ui.plain_files import check_run
from idiolect.ui.run_control import RunControl
from idiolect.ui.run_index import RunEntry, RunIndex
from idiolect.ui.site_board import SiteBoard

PAGE_SIZE = 100
LOOK_EVERY = 1.0  # seconds from one look at the folders to the next
MOST_COMPARED = 60  # runs in one report
SHARED = ("page.css", "page.js")  # of the report: the same views, drawn by the same code
STATIC = (*SHARED, "ui.css", "ui.js", "run_list.js", "run_report.js", "boards.js", "plotly.js")
SORTS: dict[str, Callable[[RunEntry], Any]] = {
    "changed": lambda entry: -entry.changed,
    "name": lambda entry: entry.id,
    "method": lambda entry: (entry.method, entry.id),
    "data": lambda entry: (entry.data, entry.split, entry.id),
    "state": lambda entry: (entry.state, entry.id),
    "accuracy": lambda entry: -entry.goodness,
}


class AsciiJson(Response):
    """JSON in ASCII: a folder's name need not be text that UTF-8 can hold."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class Page:
    """The page over one runs directory."""

    def __init__(
        self, root: Path, logs: Path, token: str | None = None, boards: Any = None
    ) -> None:
        self.index, self.control = RunIndex(root), RunControl(logs)
        self.key = fresh_secret()
        self.token, self.boards = token, boards
        self.index.refresh(force=True)
        self.sites: dict[Path, SiteBoard] = {}
        self._counting = threading.Lock()
        self._closing = threading.Event()
        self.preparing = threading.Thread(target=_prepare, daemon=True)
        self.preparing.start()

    def app(self) -> Starlette:
        routes = [
            Route("/", self.home),
            Route("/static/{name}", self.static),
            Route("/api/runs", self.runs),
            Route("/api/report", self.report),
            Route("/api/client", self.client),
            Route("/api/matrix", self.matrix),
            Route("/api/federation", self.federation),
            Route("/api/recipes", self.recipes),
            Route("/api/stream", self.stream),
            Route("/api/stop", self.stop, methods=["POST"]),
            Route("/api/resume", self.resume, methods=["POST"]),
            Route("/api/tags", self.tags, methods=["POST"]),
        ]
        guard = Middleware(Access, hosts=LOOPBACK, token=self.token, key=self.key)
        handlers: dict[Any, Any] = dict.fromkeys((UserError, OSError), self._one_line_error)
        return Starlette(
            routes=routes,
            middleware=[guard, Middleware(GZipMiddleware, minimum_size=2000)],
            exception_handlers=handlers,
        )

    def close(self) -> None:
        """End the open streams, so that the server can end."""
        self._closing.set()

    async def home(self, request: Request) -> Response:
        return HTMLResponse(_text("index.html").replace("$key", self.key))

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return Response(status_code=404)
        kind = "text/css" if name.endswith("css") else "text/javascript"
        if name != "plotly.js":
            return Response(_text(name), media_type=kind, headers={"Cache-Control": "no-cache"})
        packed = await run_in_threadpool(packed_plotly)
        about = {"Cache-Control": "max-age=86400", "Content-Encoding": "gzip"}
        return Response(packed, media_type=kind, headers=about)

    async def runs(self, request: Request) -> Response:
        asked = request.query_params
        return AsciiJson(await run_in_threadpool(self._listed, dict(asked)))

    def _listed(self, asked: dict[str, str]) -> dict[str, Any]:
        self.index.refresh()
        words = asked.get("query", "").lower().split()
        federations = asked.get("federations") == "1"
        if words or federations or asked.get("sort", "changed") not in ("changed", "name"):
            self.index.read_some(most=2000)
        entries = [
            entry
            for entry in self.index.entries.values()
            if all(_fits(entry, word) for word in words)
            and asked.get("state", "") in ("", entry.state)
            and (entry.federation or not federations)
        ]
        entries.sort(key=SORTS.get(asked.get("sort", "changed"), SORTS["changed"]))
        if asked.get("down") == "1":
            entries.reverse()
        start = _whole(asked.get("offset", "0"), "offset")
        shown = self.index.details([e.id for e in entries[start : start + PAGE_SIZE]])
        return {
            "root": str(self.index.root.name),
            "total": len(entries),
            "truncated": self.index.truncated,
            "runs": [self._shown(entry) for entry in shown],
        }

    def _shown(self, entry: RunEntry) -> dict[str, Any]:
        problem = entry.problem or self.control.problem(self.index.root / entry.id)
        return {**entry.as_dict(), "label": one_line(entry.id), "problem": one_line(problem)}

    async def report(self, request: Request) -> Response:
        ids = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 1 <= len(ids) <= MOST_COMPARED:
            raise UserError(f"choose 1 to {MOST_COMPARED} runs")
        paths = [self.index.path(id) for id in ids]
        for path in paths:
            check_run(path)
        made = await run_in_threadpool(views.report, paths)
        entries = self.index.details(ids)
        return AsciiJson({**made, "runs": [self._shown(entry) for entry in entries]})

    async def client(self, request: Request) -> Response:
        client = _whole(request.query_params.get("client", ""), "client")
        path = self._run(request)
        return AsciiJson(await run_in_threadpool(views.one_client, path, client))

    async def matrix(self, request: Request) -> Response:
        asked = request.query_params
        number = _whole(asked.get("round", ""), "round")
        path, name, ordered = self._run(request), asked.get("name", ""), asked.get("order") == "1"
        return AsciiJson(await run_in_threadpool(views.matrix, path, name, number, ordered))

    async def federation(self, request: Request) -> Response:
        path = self._run(request)
        with self._counting:
            board = self.sites.setdefault(path, SiteBoard(path))
        return AsciiJson(await run_in_threadpool(self._board_of, board))

    def _board_of(self, board: SiteBoard) -> dict[str, Any]:
        with self._counting:  # two open pages must not take lines from each other
            return board()

    async def recipes(self, request: Request) -> Response:
        made = await run_in_threadpool(self.boards) if self.boards else []
        return AsciiJson({"recipes": made})

    async def stop(self, request: Request) -> Response:
        path = self._run(request)
        if not await self._becomes(request.query_params["run"], "running"):
            raise UserError(f"{path.name} is not running")
        self.control.stop(path)
        return AsciiJson({"done": True})

    async def resume(self, request: Request) -> Response:
        path = self._run(request)
        if not await self._becomes(request.query_params["run"], "stopped"):
            raise UserError(f"{path.name} is not a stopped run")
        self.control.resume(path)
        return AsciiJson({"done": True})

    async def _becomes(self, run: str, state: str) -> bool:
        """Whether a run is in this state. One that just began or ended may be seen in the other one
        for a moment, after its page already showed it."""
        for wait in (0.0, 0.1, 0.3, 0.6):
            await asyncio.sleep(wait)
            if await run_in_threadpool(self.index.state, run) == state:
                return True
        return False

    async def tags(self, request: Request) -> Response:
        self._run(request)  # a run that can be read
        asked = request.query_params
        kept = await run_in_threadpool(self.index.tag, asked["run"], asked.get("tags", ""))
        return AsciiJson({"tags": kept})

    async def stream(self, request: Request) -> Response:
        """Server-sent events: the entries that changed, as soon as they did."""

        async def changes() -> AsyncIterator[str]:
            yield "retry: 1000\n\n"
            version = self.index.version
            while not self._closing.is_set() and not await request.is_disconnected():
                await run_in_threadpool(self.index.refresh)
                version, changed = self.index.changes(version)
                known = [id for id in changed if id in self.index.entries]
                rows = [self._shown(e) for e in await run_in_threadpool(self.index.details, known)]
                gone = [id for id in changed if id not in self.index.entries]
                if rows or gone:
                    yield f"data: {json.dumps({'runs': rows, 'gone': gone})}\n\n"
                await asyncio.sleep(LOOK_EVERY)

        headers = {"Cache-Control": "no-store", "Content-Encoding": "identity"}
        return StreamingResponse(changes(), media_type="text/event-stream", headers=headers)

    async def _one_line_error(self, request: Request, error: Exception) -> Response:
        told = str(error).replace(f"{self.index.root}/", "")
        return AsciiJson({"error": one_line(told)}, status_code=400)

    def _run(self, request: Request) -> Path:
        path = self.index.path(request.query_params.get("run", ""))
        check_run(path)
        return path


def _prepare() -> None:
    """What the first report would wait for."""
    import pyarrow.parquet  # noqa: F401
    import scipy.stats  # noqa: F401

    with suppress(UserError):  # said when it is asked for
        packed_plotly()


def _fits(entry: RunEntry, word: str) -> bool:
    """Whether a run is one that is searched for: by any of its words, or by a tag."""
    if word.startswith("tag:"):
        return word.removeprefix("tag:") in map(str.lower, entry.tags)
    told = (entry.id, entry.method, entry.data, entry.split, entry.state, *entry.tags)
    return word in " ".join(told).lower()


def _whole(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise UserError(f"{what} must be a whole number")
    return int(text)


def _text(name: str) -> str:
    place = files("idiolect.report") if name in SHARED else files("idiolect.ui") / "static"
    return place.joinpath(name).read_text(encoding="utf-8")
