"""`idiolect ui`: the live page over run directories."""

import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from idiolect.cli.options import examples
from idiolect.cli.options import path as as_path
from idiolect.errors import UserError

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "idiolect ui",
        "idiolect ui runs/sites --port 8020",
        "idiolect ui runs --host 0.0.0.0 --certificate cert.pem --key key.pem",
    )
)
def ui(
    root: Annotated[
        Path, typer.Argument(metavar="[RUNS_DIR]", parser=as_path, help="Folder of runs.")
    ] = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine, a token is asked for.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    certificate: Annotated[
        Path | None, typer.Option(parser=as_path, help="Certificate (PEM), for https.")
    ] = None,
    key: Annotated[Path | None, typer.Option(parser=as_path, help="Its private key (PEM).")] = None,
    results: Annotated[
        Path | None,
        typer.Option(parser=as_path, help="Folder of recipe results (results)."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """A page over run directories, live while runs are going; nothing leaves this machine."""
    serve = _serving().serve
    if not root.is_dir():
        raise UserError(f"{root} is no folder; `idiolect ui RUNS_DIR` shows the runs in a folder")
    if (certificate is None) != (key is None):
        raise UserError("give --certificate and --key together")

    def told(address: str) -> None:
        print(f"{address}  (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if open_:
            webbrowser.open(address)

    tls = None if certificate is None or key is None else (certificate, key)
    serve(root, host, port, tls, results, told)


@contextmanager
def page_beside(run: Path) -> Iterator[None]:
    """The page, opened at this run, while it goes."""
    serving = _serving()
    run.parent.mkdir(parents=True, exist_ok=True)
    with serving.beside(run.parent) as address:
        here = f"{address}#/report?{urlencode({'run': run.name})}"
        print(f"page: {here} (as long as the run goes)", file=sys.stderr, flush=True)
        webbrowser.open(here)
        yield


def _serving() -> Any:
    try:
        from idiolect.ui import serve
    except ImportError:
        raise UserError(
            "the page needs starlette and uvicorn: pip install 'idiolect[ui]'"
        ) from None
    return serve
