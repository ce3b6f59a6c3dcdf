"""Serving the page with uvicorn."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from idiolect.data.places import cache_dir
from idiolect.errors import UserError
from idiolect.ui.access import LOOPBACK, fresh_secret
from idiolect.ui.recipe_board import RecipeBoard
from idiolect.ui.web import Page


@contextmanager
def beside(root: Path) -> Iterator[str]:
    """The page over `root`, on a free port of this machine, while other work goes on; its address.
    It ends with the work."""
    page = Page(root, cache_dir() / "ui", None, RecipeBoard(Path("results"), root / "recipes"))
    config = uvicorn.Config(page.app(), log_level="warning", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    taken = socket.create_server((LOOPBACK[0], 0))
    thread = threading.Thread(target=server.run, args=([taken],), daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK[0]}:{taken.getsockname()[1]}/"
    finally:
        page.close()
        server.should_exit = True
        thread.join(5)


def serve(
    root: Path,
    host: str,
    port: int,
    tls: tuple[Path, Path] | None,
    results: Path | None,
    told: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C; `told` gets the address once the port is taken."""
    token = None if host in LOOPBACK else fresh_secret()
    board = RecipeBoard(results or Path("results"), root / "recipes")
    page = Page(root, cache_dir() / "ui", token, board)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        taken = socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; try --port 0") from None
    config = uvicorn.Config(
        page.app(),
        log_level="warning",
        ws="none",
        ssl_certfile=tls[0] if tls else None,
        ssl_keyfile=tls[1] if tls else None,
        timeout_graceful_shutdown=2,
    )
    name = f"[{host}]" if ":" in host else host
    address = f"http{'s' if tls else ''}://{name}:{taken.getsockname()[1]}/"
    told(address + (f"?token={token}" if token else ""))
    try:
        uvicorn.Server(config).run([taken])
    finally:
        page.close()
