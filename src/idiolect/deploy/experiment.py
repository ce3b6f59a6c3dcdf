"""One experiment from its run directory: gather the clients, run the rounds, write the run."""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from idiolect import methods, models
from idiolect.core import files
from idiolect.deploy.enrolment import Enrolment
from idiolect.deploy.server import FederationServer
from idiolect.deploy.terms import FederationTerms
from idiolect.deploy.transport import Transport
from idiolect.errors import UserError
from idiolect.runs import checkpoint, seal
from idiolect.runs.directory import read_config
from idiolect.runs.execute import execute

log = logging.getLogger("idiolect.server")

FOLDER = "flower"  # inside the run: what only a real federation has
TERMS, SETTINGS, JOURNAL, STATUS = "terms.json", "settings.json", "journal.jsonl", "status.json"
WITHOUT_MODEL = "without_model.json"  # clients that were away when the last word was sent


def plan(run: Path, config: dict[str, Any], terms: FederationTerms) -> Path:
    """Write down what `run_experiment` will do; returns the run."""
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / SETTINGS, config)
    files.write_json(folder / TERMS, terms.as_dict())
    seal.write(run, config)  # what was allowed on the command line holds for the app's process too
    return run


def proxy_folder(run: Path) -> Path:
    """Where the experiment and the proxy in front of it leave notes for one another."""
    return run / FOLDER


def read_terms(run: Path) -> FederationTerms:
    return FederationTerms(**json.loads((run / FOLDER / TERMS).read_text(encoding="utf-8")))


def change_terms(run: Path, terms: dict[str, Any]) -> None:
    """Another word on whom a run that goes on waits for, and how long."""
    if terms:
        files.write_json(run / FOLDER / TERMS, replace(read_terms(run), **terms).as_dict())


def read_settings(run: Path) -> dict[str, Any]:
    """The settings of a run, also of one that waits for its first clients."""
    if (run / "config.yaml").exists():
        return read_config(run)
    return dict(json.loads((run / FOLDER / SETTINGS).read_text(encoding="utf-8")))


def run_experiment(run: Path, transport: Transport) -> dict[str, Any]:
    """Run or continue the experiment; returns the summary."""
    folder = run / FOLDER
    files.remove_drafts(folder, TERMS, SETTINGS, STATUS, WITHOUT_MODEL)
    handler = logging.FileHandler(folder / "server.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("idiolect")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    write_status(run, "running")
    try:
        summary = _run(run, transport)
    except BaseException as error:
        log.exception("the experiment stopped")
        write_status(run, "failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        root.removeHandler(handler)
        handler.close()
    write_status(run, "done")
    return summary


def _run(run: Path, transport: Transport) -> dict[str, Any]:
    folder = run / FOLDER
    resume, config = (run / "config.yaml").exists(), read_settings(run)
    allowed = seal.approved(run, config)
    terms = read_terms(run)
    enrolment = Enrolment(terms, transport, folder / JOURNAL)
    # Sites that compute something else are turned away before anybody waits for their work.
    enrolment.dispatcher.settings = {"method": config["method"]}
    enrolment.dispatcher.revision = methods.build(config["method"], allowed).revision
    finished = (run / "summary.json").exists()
    enrolment.wait_for(1 if finished else terms.minimum or terms.clients)
    kind = enrolment.kind
    assert kind is not None
    config["model"].setdefault("name", models.default_model(kind.shape, kind.form))
    servers: list[FederationServer] = []

    def build(config: dict[str, Any]) -> FederationServer:
        servers.append(FederationServer(config, enrolment, allowed))
        return servers[0]

    if finished:
        _deliver(run, build(config))
    done = execute(config, run, resume, build=build)
    if servers:
        _finish(run, servers[0])
    log.info("done: %s", dict(enrolment.registry.counts))
    return done


def _deliver(run: Path, server: FederationServer) -> None:
    """The run is finished; clients that were away get their personal models."""
    folder = run / "checkpoint"
    newest = next(iter(checkpoint.rounds(folder)), checkpoint.NOTHING_YET)
    try:
        saved = checkpoint.read(folder, newest)
        server.restore(saved.tensors, saved.meta)
    except checkpoint.Damaged as damage:
        raise UserError(f"{folder}: {damage}; there is no last word to deliver") from None
    kept = set(range(server.terms.clients)) - set(without_model(run))
    for client, entry in server.registry.clients.items():
        entry.kept = client in kept
    server.deliver()


def _finish(run: Path, server: FederationServer) -> None:
    """Note who has no personal model yet; write what all share if that is wanted."""
    files.write_json(run / FOLDER / WITHOUT_MODEL, server.without_model())
    model = server.server_model() if server.terms.save_models else None
    if model is not None:
        folder = run / "models" / "last"
        folder.mkdir(parents=True, exist_ok=True)
        files.remove_drafts(folder, "server.safetensors", "round.json")
        files.write_tensors(folder / "server.safetensors", model)
        files.write_json(folder / "round.json", {"round": server.round})


def without_model(run: Path) -> list[int]:
    """Clients of a finished run that lack their personal model."""
    try:
        return list(json.loads((run / FOLDER / WITHOUT_MODEL).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return []


def write_status(run: Path, state: str, reason: str = "") -> None:
    """Tell the process that started the federation, which watches this file."""
    files.write_json(run / FOLDER / STATUS, {"state": state, "reason": reason, "time": time.time()})


def read_status(run: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((run / FOLDER / STATUS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {"state": "none", "reason": ""}
