"""`idiolect server`, `idiolect client` and `idiolect keys`: a real federation on Flower."""

import secrets
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from idiolect.cli.options import AllowCode, File, Json, Out, Set, examples, flags_of, with_settings
from idiolect.cli.options import path as as_path
from idiolect.cli.run import show, tell_what_it_leaves_out
from idiolect.core import own_code
from idiolect.deploy.site_options import SiteOptions
from idiolect.deploy.terms import FederationTerms
from idiolect.errors import UserError

KeysFolder = Annotated[
    Path | None,
    typer.Option("--keys", parser=as_path, help="Folder with certificates and node keys."),
]
State = Annotated[
    Path, typer.Option(parser=as_path, help="Folder for this client's private state.")
]
Certificate = Annotated[Path | None, typer.Option(parser=as_path, help="The federation's ca.pem.")]
PrivateKey = Annotated[Path | None, typer.Option(parser=as_path, help="This client's private key.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS, no node keys; loopback interface only.")
]
ONLY = "Accept this {} only; needed for file.py:Class and module:Class."
AcceptedModel = Annotated[str | None, typer.Option(help=ONLY.format("model"))]
AcceptedMethod = Annotated[str | None, typer.Option(help=ONLY.format("method"))]

commands = typer.Typer()
SITE = tuple(known.name for known in fields(SiteOptions))
TERMS = ("minimum", "arrivals", "window", "timeout", "repeat", "patience")
MAKE_KEYS = "idiolect keys federation --host fl.example.org --clients 3"


@commands.command(
    epilog=examples(
        MAKE_KEYS,
        "idiolect server fedas --clients 3 --keys federation --host 0.0.0.0 --out runs/sites",
        "idiolect server plga --clients 3 --keys federation --window 120 --arrivals 2",
        "idiolect server --resume runs/sites --keys federation",
    )
)
@with_settings("model", "rounds", "seed", "participation", "dtype", "eval_every", "init")
@with_settings(*TERMS, kind=FederationTerms)
def server(
    method: Annotated[str | None, typer.Argument(help="Method (idiolect list methods).")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients, ids 0 to N-1.")] = None,
    out: Out = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            parser=as_path,
            help="Continue a run after a stop or crash; give sites that were away when it ended "
            "their models.",
        ),
    ] = None,
    save_models: Annotated[
        bool, typer.Option("--save-models", help="Write the shared model to RUN/models/last.")
    ] = False,
    keys: KeysFolder = None,
    insecure: Insecure = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8443,
    config: File = None,
    set_: Set = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Run one method over real sites; the run directory is that of `idiolect run`."""
    from idiolect.deploy import credentials, experiment, processes
    from idiolect.deploy.run_server import run_server

    processes.needs_flower()
    if insecure == (keys is not None):
        raise UserError("give --keys DIR (see `idiolect keys`), or --insecure to try things out")
    if insecure and host not in processes.LOOPBACK:
        raise UserError(f"--insecure listens on the loopback interface only, not on {host}")
    if keys is not None:
        credentials.read(keys)  # a mistake leaves no run that never began
    if resume is not None:
        fixed = {"clients": clients, "out": out, "config": config, "set": set_}
        fixed |= {"save_models": save_models or None}
        fixed |= {name: value for name, value in given.items() if name not in TERMS}
        _refuse_with_resume(fixed)
        run = _resumed(resume, method, allow_code or ())
        processes.check_listens(host, port)
        experiment.change_terms(run, _terms(given))
    else:
        given["save_models"] = save_models
        planned = _planned(method, clients, given, config, set_ or [], out, allow_code or ())
        processes.check_listens(host, port)
        run = experiment.plan(*planned)
    show(run, run_server(run, keys, host, port), as_json)


def _terms(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in TERMS if given.get(name) is not None}


def _refuse_with_resume(fixed: dict[str, Any]) -> None:
    """A run goes on with what it began with; only how long is waited, and for whom, may change."""
    for name, value in fixed.items():
        if value is not None:
            option = name.replace("_", "-")
            raise UserError(f"--resume goes on with the settings of the run; leave out --{option}")


def _planned(
    method: str | None,
    clients: int | None,
    given: dict[str, Any],
    file: Path | None,
    sets: list[str],
    out: Path | None,
    allow_code: Sequence[str] = (),
) -> tuple[Path, dict[str, Any], FederationTerms]:
    """A new run: its folder, its settings and the terms of the federation."""
    from idiolect.deploy import experiment
    from idiolect.runs import config as settings
    from idiolect.runs.build import builder

    if method is None or clients is None:
        raise UserError("give a method and --clients N, or --resume RUN")
    terms = _terms(given)
    terms["save_models"] = bool(given.pop("save_models", False))
    flags = flags_of({name: value for name, value in given.items() if name not in TERMS})
    flags |= {"method": {"name": method}, "checkpoint_every": 1}
    allowed = settings.code_named(flags, sets) | {*allow_code}
    config = settings.resolve(file, flags, sets, allowed)
    tell_what_it_leaves_out(config, file, flags, sets)
    for key in ("loss", "augment"):
        if config[key] is not None:
            raise UserError(f"{key} is given at every site: idiolect client --{key} …")
    builder(config, allowed, file)
    named = given["model"] is not None or any(s.startswith("model.name=") for s in sets)
    if not named and file is None:
        config["model"] = {}  # chosen once the sites have said what a sample looks like
    # The sites bring the data: nothing about it is decided here.
    config |= {"data": {"name": "sites"}, "split": {"name": "sites", "clients": clients}}
    defaults = settings.RunConfig().as_dict()
    config |= {
        k: defaults[k] for k in ("stragglers", "clock", "schedule", "save_models", "stop_after")
    }
    config["engine"] = "loop"
    run = out or Path("runs") / f"{settings.short_name(method)}-sites-seed{config['seed']}"
    if (run / "config.yaml").exists() or (run / experiment.FOLDER).exists():
        raise UserError(f"{run} holds a run; continue it with --resume {run} or choose --out")
    return run, config, FederationTerms(secrets.token_hex(16), clients, **terms)


def _resumed(run: Path, method: str | None, allow_code: Sequence[str] = ()) -> Path:
    from idiolect.deploy import experiment
    from idiolect.runs import seal
    from idiolect.runs.build import builder

    if not (run / experiment.FOLDER / experiment.TERMS).is_file():
        raise UserError(f"{run} is not a run of `idiolect server`")
    if (run / "summary.json").exists():
        away = experiment.without_model(run)
        if not away:
            raise UserError(f"{run} is finished; see `idiolect report {run}`")
        names = ", ".join(map(str, away))
        print(f"finished; waiting for clients without their model: {names}", file=sys.stderr)
    if method is not None:
        raise UserError("--resume goes on with the settings of the run; give no method")
    config = experiment.read_settings(run)
    builder(config, seal.approved(run, config) | {*allow_code}, run)
    if allow_code:  # the app's process reads the permission from the run
        seal.check(run, config, partial(print, file=sys.stderr))
        seal.write(run, config)
    return run


@commands.command(
    epilog=examples(
        "idiolect client --server fl.example.org:8443 --id 0 --data ward.npz --classes 10 "
        "--state /var/lib/idiolect --ca ca.pem --key client_0",
        "idiolect client --server 127.0.0.1:8443 --id 1 --data mydata:load --state s1 --insecure",
        "idiolect client --server fl.example.org:8443 --id 2 --data beds.npz --task regression "
        "--loss my.py:huber --state /var/lib/idiolect --ca ca.pem --key client_2",
    )
)
@with_settings(*SITE, kind=SiteOptions)
def client(
    server: Annotated[str, typer.Option(help="Address of the server, HOST:PORT.")],
    client_id: Annotated[int, typer.Option("--id", min=0, help="This client's id, 0 to N-1.")],
    data: Annotated[
        str, typer.Option(help="Own data: .npz file, folder of .npy files, or file.py:function.")
    ],
    state: State,
    classes: Annotated[
        str | None,
        typer.Option(help="The federation's classes: how many, names (a,b,c), or a file of names."),
    ] = None,
    ca: Certificate = None,
    key: PrivateKey = None,
    insecure: Insecure = False,
    name: Annotated[str, typer.Option(help="Name shown to the server.")] = "",
    model: AcceptedModel = None,
    method: AcceptedMethod = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    worker: Annotated[
        str, typer.Option(help="idiolect: one process that stays; flower: one per message.")
    ] = "idiolect",
    **given: Any,
) -> None:
    """Take part in a federation with this machine's data."""
    from idiolect.deploy import processes
    from idiolect.deploy.run_client import run_client, start_supernode

    processes.needs_flower()
    if worker not in ("idiolect", "flower"):
        raise UserError(f"--worker is idiolect or flower, not {worker}")
    _check_connection(server, insecure, ca, key)
    if not data.strip():
        raise UserError("--data is empty; name an .npz file, a folder of .npy files or a function")
    settings: dict[str, Any] = {
        "client": client_id,
        "data": data,
        "classes": classes,
        "state": str(state.resolve()),
        "name": name,
        "model": model and own_code.whole(model),
        "method": method and own_code.whole(method),
        **SiteOptions(**{k: v for k, v in given.items() if v is not None}).as_dict(),
        "device": device,
    }
    children = processes.ChildProcesses(state / "logs")
    try:
        start = partial(start_supernode, children, settings, server, ca, key, worker)
        run_client(children, start)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        children.end()


def _check_connection(server: str, insecure: bool, ca: Path | None, key: Path | None) -> None:
    from idiolect.deploy import credentials, processes

    if insecure == (ca is not None or key is not None) or (ca is None) != (key is None):
        raise UserError("give --ca and --key (see `idiolect keys`), or --insecure to try it out")
    machine, _, port = server.rpartition(":")
    if not machine or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UserError(f"--server must be HOST:PORT, as fl.example.org:8443, not {server}")
    if insecure and machine not in processes.LOOPBACK:
        raise UserError(f"--insecure is for a server on this machine, not for {server}")
    for path in (ca, key):
        if path is not None and not path.is_file():
            raise UserError(f"{path} does not exist")
    if ca is not None and key is not None:
        credentials.check_site(ca, key)


@commands.command(epilog=examples(MAKE_KEYS, "idiolect keys mine --client 2"))
def keys(
    folder: Annotated[
        Path, typer.Argument(parser=as_path, help="Folder for certificates and keys.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address sites reach the server by; repeatable."),
    ] = None,
    clients: Annotated[int, typer.Option(min=0, help="Also make keys for clients 0 to N-1.")] = 0,
    client_id: Annotated[
        int | None,
        typer.Option("--client", min=0, help="Only make this client's key (at the site)."),
    ] = None,
) -> None:
    """Make the server's certificates and the clients' node keys; existing files are kept."""
    from idiolect.deploy import credentials, processes

    processes.needs_flower()
    try:
        if client_id is not None:
            made = credentials.make_client(folder, client_id)
        else:
            made = credentials.make_server(folder, [*(host or []), "localhost", "127.0.0.1"])
            for i in range(clients):
                made += credentials.make_client(folder, i)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from None
    for path in made:
        print(path)
    if not made:
        print(f"{folder} already holds them", file=sys.stderr)
