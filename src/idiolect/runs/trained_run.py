"""A run opened again for its models: its clients, and what each of them predicts with."""

import re
import warnings
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from idiolect import methods, models
from idiolect.core.fields import make
from idiolect.core.text import shortened
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.errors import UserError, did_you_mean
from idiolect.runs import checkpoint, directory, revision, run_files, seal
from idiolect.runs import config as settings
from idiolect.runs.build import builder
from idiolect.runs.config import RunConfig
from idiolect.runs.environment import check_inputs
from idiolect.runs.from_python import SOURCE
from idiolect.runs.history import ClientLog
from idiolect.simulation.simulate import prepare
from idiolect.simulation.starting_weights import read_weights

SAVE_FIRST = "run it again with --save-models last"


@dataclass(frozen=True)
class PersonalModel:
    """What a client predicts with, under the plain module's names."""

    weights: Tree
    round: int
    source: str  # the part of the run it was read from
    trained: tuple[str, ...] = ()  # names of what trained; the rest was frozen

    @property
    def merged(self) -> Tree:
        """The weights with the adapters added to them, if there are any."""
        return models.merged(self.weights)


class TrainedRun:
    """The settings, clients and models of a run; nothing of the run is changed."""

    def __init__(self, path: Path, allow_code: Collection[str] = ()) -> None:
        self.path, self.config = path, directory.read_config(path)
        if self.config.get("data", {}).get("name") == "sites":
            raise UserError(
                f"{path} is a run of real sites, which keep their models: see models/ in the "
                "folder that the site was given as --state"
            )
        if self.config["data"]["name"] == SOURCE:
            raise UserError(
                f"the data of {path} came from Python and is not here; the clients' models are the "
                "files in its folder models/"
            )
        self._allowed = seal.approved(path, self.config) | {*allow_code}
        seal.check(path, self.config, lambda line: None)  # runs of earlier versions have none
        settings.check(self.config, path / "config.yaml", self._allowed)
        # Where the run computed says nothing about this machine.
        self._here = self.config | {"device": "auto"}
        self.sim: Any = builder(self._here, self._allowed, path)(self._here)
        check_inputs(path, self.config, self.sim)

    def with_federation(self, federation: Federation) -> "TrainedRun":
        """The same run with other clients besides its own."""
        other = copy(self)
        run = make(RunConfig, self._here, "a run")
        method, allowed = methods.build(run.method, self._allowed), self._allowed
        other.sim = prepare(method, federation, self.module(), run, allow_code=allowed)
        return other

    @property
    def federation(self) -> Federation:
        federation: Federation = self.sim.federation
        return federation

    @property
    def network(self) -> dict[str, Any]:
        """The section of the config that names the network."""
        federation = self.federation
        default = models.default_model(federation.shape, federation.form)
        return {"name": default, **self.config["model"]}

    def client(self, who: str) -> int:
        """A client's number, from its name or its number."""
        names = self.federation.names
        if who in names:
            return names.index(who)
        if re.fullmatch(r"\d{1,9}", who) and int(who) < len(names):
            return int(who)
        if len(names) > 50 or names == tuple(map(str, range(len(names)))):
            told = shortened(who, 40)
            raise UserError(f"{self.path} has no client '{told}'; give 0 to {len(names) - 1}")
        raise did_you_mean(who, names, f"client of {self.path}")

    def module(self, model: PersonalModel | None = None) -> nn.Module:
        """The plain module: with these weights, ready to predict, or as training starts from it
        (with its adapters, if it has any)."""
        fed, seed = self.federation, self.config["seed"]
        network = self.network if model is None else models.plain(self.network)
        module = models.build(network, fed.shape, fed.classes, seed, self._allowed, fed.form)
        if model is not None:
            floats = [v.dtype for v in model.weights.values() if v.is_floating_point()]
            module.to(floats[0]).load_state_dict(model.merged)
            module.eval()
        return module

    def personal(self, client: int) -> PersonalModel:
        """The model that the run saved, else the one of its last checkpoint."""
        folder = self._saved()
        if folder is None:
            at = self.restore()
            weights = self.sim.personal_model(client)
            return self.model(weights, at, f"checkpoint of round {at}")
        file = folder / f"client_{client:04d}.safetensors"
        with run_files.sound(file):
            weights = read_weights(file)
            at = run_files.read_json(folder / "round.json")["round"]
        return self.model(weights, int(at), f"models/{folder.name}")

    def model(self, weights: Tree, round: int, source: str) -> PersonalModel:
        """What a client of this run predicts with."""
        return PersonalModel(weights, round, source, self.sim.engine.net.names)

    def restore(self) -> int:
        """Put the simulation where the last checkpoint left it; its round."""
        if words := revision.of_folder(self.config, self.path):
            warnings.warn(f"{words}: its state is read as the present one's", stacklevel=2)
        folder = self.path / "checkpoint"
        newest = max(checkpoint.rounds(folder), default=checkpoint.NOTHING_YET)
        if newest == checkpoint.NOTHING_YET:
            raise UserError(f"{self.path} has neither models nor a checkpoint; {SAVE_FIRST}")
        try:
            saved = checkpoint.read(folder, newest)
            self.sim.restore(saved.tensors, saved.meta)
        except checkpoint.Damaged as damage:
            raise UserError(
                f"{folder}: the checkpoint of round {newest} is damaged ({damage}); {SAVE_FIRST}"
            ) from None
        return saved.round

    def accuracy(self, client: int, round: int, column: str = "") -> float | None:
        """What the run reports for a client in a round, `column` or the task's metric of what it
        predicts with; None where nothing was tested."""
        column = column or f"{self.federation.task.metric.name}_before"
        rows = self.table().get(round, {})
        if column not in rows:
            return None
        value = float(rows[column][rows["client"] == client][0])
        return value if np.isfinite(value) else None

    def table(self) -> dict[int, Any]:
        """clients.parquet by round."""
        log = ClientLog(self.path)
        with run_files.sound(log.path):
            log.load()
        return dict(log.rounds)

    def _saved(self) -> Path | None:
        """The export to take: the one the run made last."""
        folder = self.path / "models"
        rounds = sorted(folder.glob("round_*"), key=lambda path: (len(path.name), path.name))
        named = [folder / name for name in ("last", "best")]
        whole = [path for path in (*named, *rounds[::-1]) if (path / "round.json").is_file()]
        return next(iter(whole), None)
