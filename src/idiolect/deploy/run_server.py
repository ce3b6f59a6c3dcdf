"""`idiolect server`: SuperLink, proxy, keys and the Flower run, and a line per round."""

import json
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from idiolect.core import files, own_metric
from idiolect.core.task import metric_named
from idiolect.deploy import credentials, experiment, superlink
from idiolect.deploy.processes import ChildProcesses
from idiolect.deploy.proxy import serve_proxy
from idiolect.errors import UserError
from idiolect.runs.directory import read_events
from idiolect.runs.interruption import Interrupted


def run_server(run: Path, keys: Path | None, host: str, port: int) -> dict[str, Any]:
    """Run the experiment that `run` describes until it is done; returns its summary."""
    folder = run / experiment.FOLDER
    pair = None if keys is None else credentials.read(keys)
    children = ChildProcesses(folder / "logs")
    close: Callable[[], None] | None = None
    try:
        inner_port, home = superlink.start_superlink(children, folder, pair)
        terms = experiment.read_terms(run)
        if pair is not None:
            terms = replace(terms, nodes=superlink.register_nodes(home, folder, pair))
            files.write_json(folder / experiment.TERMS, terms.as_dict())
        scheme = "http" if pair is None else "https"
        inner = f"{scheme}://127.0.0.1:{inner_port}"
        close = serve_proxy(host, port, inner, pair, experiment.proxy_folder(run))
        experiment.write_status(run, "starting")
        superlink.submit(home, folder, run)
        how = "TLS and node keys" if pair else "no TLS"
        print(f"listening on {host}:{port} ({how}); run {run}", file=sys.stderr, flush=True)
        safe = "--insecure" if keys is None else f"--keys {shlex.quote(str(keys))}"
        again = f"idiolect server --resume {shlex.quote(str(run))} {safe} --host {host}"
        _watch(run, children, f"continue with: {again} --port {port}")
    finally:
        if close is not None:
            close()
        children.end()
    return dict(json.loads((run / "summary.json").read_text(encoding="utf-8")))


def _watch(run: Path, children: ChildProcesses, proceed: str) -> None:
    """Print rounds as they end, until the experiment is done or has failed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f"stopped; {proceed}")

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    shown = -1
    try:
        while True:
            for event in read_events(run):
                if event["round"] > shown:
                    shown = event["round"]
                    print(_line(event), file=sys.stderr, flush=True)
            status = experiment.read_status(run)
            if status["state"] == "done":
                return
            if status["state"] == "failed":
                log = run / experiment.FOLDER / "server.log"
                raise UserError(f"{status['reason']} (see {log}); {proceed}")
            if children.exit_code("superlink") is not None:
                ended = f"Flower's SuperLink ended: {children.tail('superlink')}"
                raise UserError(f"{ended}; {proceed}")
            time.sleep(0.5)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(event: dict[str, Any]) -> str:
    mean, about = event["accuracy"]["mean"], event.get("metric", {"name": "accuracy"})
    own_metric.remember(about)
    metric = metric_named(about["name"])
    accuracy = "" if mean is None else f", {metric.name} {metric.told(mean)}"
    came = f"{len(event['arrived'])} of {len(event['started'])} arrived"
    return f"round {event['round']}: {came}{accuracy}, {event['seconds']:.1f} s"
