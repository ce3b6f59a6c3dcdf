"""One experiment from its run directory: gather the clients, run the rounds, write the run."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from idiolect import models
from idiolect.core import files
from idiolect.deploy.dispatch import Post, Terms
from idiolect.deploy.server import Hub
from idiolect.runs.directory import read_config
from idiolect.runs.execute import execute

log = logging.getLogger("idiolect.server")

FOLDER = "flower"  # inside the run: what only a real federation has
TERMS, SETTINGS, JOURNAL, STATUS = "terms.json", "settings.json", "journal.jsonl", "status.json"


def plan(run: Path, config: dict[str, Any], terms: Terms) -> None:
    """Write down what `conduct` will do; a run that exists keeps what it has."""
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / SETTINGS, config)
    files.write_json(folder / TERMS, terms.as_dict())


def read_terms(run: Path) -> Terms:
    return Terms(**json.loads((run / FOLDER / TERMS).read_text(encoding="utf-8")))


def conduct(run: Path, post: Post) -> dict[str, Any]:
    """Run or continue the experiment; returns the summary."""
    folder = run / FOLDER
    handler = logging.FileHandler(folder / "server.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("idiolect")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    status(run, "running")
    try:
        summary = _conduct(run, post)
    except BaseException as error:
        log.exception("the experiment stopped")
        status(run, "failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        root.removeHandler(handler)
        handler.close()
    status(run, "done")
    return summary


def _conduct(run: Path, post: Post) -> dict[str, Any]:
    folder = run / FOLDER
    config = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    if (run / "config.yaml").exists():
        config = read_config(run)
    hub = Hub(config, read_terms(run), post, folder / JOURNAL)
    hub.gather()
    assert hub.shape is not None
    config["model"].setdefault("name", models.default_model(hub.shape))
    done = execute(config, run, resume=(run / "config.yaml").exists(), build=hub.open)
    log.info("done: %s", dict(hub.ledger.counts))
    return done


def status(run: Path, state: str, reason: str = "") -> None:
    """For the process that started the federation, which is another one."""
    files.write_json(run / FOLDER / STATUS, {"state": state, "reason": reason, "time": time.time()})


def read_status(run: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((run / FOLDER / STATUS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {"state": "none", "reason": ""}
