"""Rounds as other programs show them: a CSV file, TensorBoard, MLflow, Weights & Biases.

Each is a small sink over the lines of events.jsonl, written to `RUN/log`. A resumed run gives every
sink the rounds so far again, so that it holds what the run holds.
"""

import csv
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from idiolect.core import files
from idiolect.core.fields import flat
from idiolect.core.text import reason
from idiolect.errors import UserError
from idiolect.runs.directory import LOG
from idiolect.runs.loggers import Loggers

EVENT = dict[str, Any]


class Sink(Protocol):
    """What rounds are given to."""

    def round(self, number: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def check(config: Mapping[str, Any]) -> None:
    """Say before the work which package is missing."""
    for name in Loggers.of(config.get("log")).as_dict():
        package = PACKAGES.get(name)
        if package is not None and find_spec(package) is None:
            raise UserError(
                f"log {name} needs the package {package}; install it with: "
                "pip install 'idiolect[tracking]'"
            )


class Sinks:
    """The sinks that a run asks for, with the rounds so far. One that fails is left out from then
    on, which is said: the run itself needs none of them."""

    def __init__(
        self,
        out: Path,
        config: Mapping[str, Any],
        events: Sequence[EVENT],
        note: Callable[[str], None],
    ) -> None:
        wanted, folder = Loggers.of(config.get("log")).as_dict(), out / LOG
        if wanted and files.kind(folder) not in (None, "a folder"):
            raise UserError(f"{folder} is no folder of the run; move it away")
        self._note, self._open = note, dict[str, Sink]()
        for name in wanted:
            folder.mkdir(parents=True, exist_ok=True)
            self._try(
                name, lambda name=name: self._open.update({name: SINKS[name](folder, config)})
            )
        for event in events:
            self.round(event)

    def round(self, event: EVENT) -> None:
        values = numbers(event) if self._open else {}
        for name, sink in list(self._open.items()):
            self._try(name, lambda sink=sink: sink.round(event["round"], values))

    def close(self) -> None:
        for name, sink in list(self._open.items()):
            self._try(name, lambda sink=sink: sink.close())

    def _try(self, name: str, work: Callable[..., object]) -> None:
        try:
            work()
        except OSError:  # of the disk, which the run needs too
            raise
        except Exception as error:  # programs of others may fail in every way
            self._open.pop(name, None)
            self._note(f"warning: log {name} is left out, it failed: {reason(error)}")


def numbers(event: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a round by a name: `accuracy/mean`, `bytes_up`, `clients/arrived`."""
    metric = event.get("metric", {}).get("name", "accuracy")
    found: dict[str, float] = {}
    for name, value in event.items():
        if name in ("round", "time", "metric", "diverged", "staleness"):
            continue
        if name in ("started", "arrived"):
            found[f"clients/{name}"] = len(value)
        elif name == "measured":
            found |= {f"measured/{k}": v for k, v in value.items() if _is_number(v)}
        elif isinstance(value, Mapping):
            told = name.replace("accuracy", metric)
            found |= {f"{told}/{k}": v for k, v in value.items() if _is_number(v)}
        elif _is_number(value):
            found[name] = value
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class CsvFile:
    """rounds.csv: a row per round."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._path = folder / "rounds.csv"
        self._columns: list[str] = []
        self._rows: list[dict[str, float]] = []

    def round(self, number: int, values: Mapping[str, float]) -> None:
        self._rows.append({"round": number, **values})
        new = [name for name in self._rows[-1] if name not in self._columns]
        if new or len(self._rows) == 1:  # also the first row, in place of what an earlier try left
            self._columns += new
            files.write_text(self._path, self._text(self._rows, head=True))
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._text(self._rows[-1:]))

    def _text(self, rows: Sequence[Mapping[str, float]], head: bool = False) -> str:
        text = StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        if head:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def close(self) -> None: ...


class TensorBoard:
    """Scalars for `tensorboard --logdir RUN`."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier process wrote is shown no more: all rounds come again.
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=0)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Mlflow:
    """A run of MLflow, found again when the run is resumed."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store").setLevel(logging.WARNING)  # else it tells of its tables
        place = folder.parent.absolute().parent / "mlflow.db"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place}")
        self._known: dict[str, set[int]] = {}  # rounds that MLflow has, by the name of the number
        known = folder / "mlflow.json"
        try:
            self._run = str(json.loads(known.read_text(encoding="utf-8"))["run"])
            self._resumed(self._run)
        except Exception:  # there was none, or that server does not have it
            self._run = self._begun(folder.parent, config)
            files.write_json(known, {"run": self._run})

    def _resumed(self, run: str) -> None:
        for name in self._client.get_run(run).data.metrics:
            history = self._client.get_metric_history(run, name)
            self._known[name] = {one.step for one in history}
        self._client.update_run(run, status="RUNNING")

    def _begun(self, out: Path, config: Mapping[str, Any]) -> str:
        found = self._client.get_experiment_by_name("idiolect")
        where = found.experiment_id if found else self._client.create_experiment("idiolect")
        run = str(self._client.create_run(where, run_name=out.name).info.run_id)
        for name, value in flat(config).items():
            self._client.log_param(run, name, str(value)[:500])
        return run

    def round(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if number not in self._known.get(name, ()):
                self._client.log_metric(self._run, name, float(value), step=number)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Wandb:
    """An offline run of Weights & Biases; `wandb sync RUN/log/wandb/*` sends it."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(
            project="idiolect",
            mode="offline",
            dir=str(folder),
            name=folder.parent.name,
            config=flat(config),
            # It would record what the terminal shows, and say how to send it, in the middle of it.
            settings=wandb.Settings(silent=True, console="off"),
        )

    def round(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Any] = {
    "csv": CsvFile,
    "tensorboard": TensorBoard,
    "mlflow": Mlflow,
    "wandb": Wandb,
}
PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
