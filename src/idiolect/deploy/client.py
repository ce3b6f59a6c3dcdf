"""A client: its data, its disk, and what it does when the server asks. Knows no network.

    hello     who I am and how much data I have
    fit       local work of a round; committed to disk before the answer
    rejoin    my late work arrives: look at the present first
    recall    the answer I gave for a round, if I still have it (after a server crash)
    evaluate  test what I would predict with now

Answers hold what the method sends up, and sample counts, losses and accuracies; `mine` stays.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idiolect import methods, models
from idiolect.core import tree
from idiolect.core.method import Down, Method
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.deploy.client_state import Memory, Remembered, Stage
from idiolect.deploy.messages import Letter
from idiolect.engine import select
from idiolect.engine.loop import LoopEngine
from idiolect.engine.samples import Part
from idiolect.errors import UserError
from idiolect.simulation.requests import Fit

log = logging.getLogger("idiolect.site")

HERE = 0  # the one client in a site's own data
LARGEST_LOG = 4096  # numbers of one thing a method shows per client and round
CACHED_WORKS = 4  # experiments whose model and data stay in memory


class Refused(Exception):
    """The request is not done; the reason goes back to the server."""


class Work:
    """One experiment as this client sees it: method and engine."""

    def __init__(self, config: dict[str, Any], data: Federation, client: int, device: str):
        self.method: Method = methods.build(config["method"])
        module = models.build(config["model"], data.shape, data.classes, config["seed"])
        select.check_model_fits(module, data)
        # Sample order and starting heads are keyed by the id the client has in the federation, so
        # a site alone gives the simulator's numbers.
        self.engine = LoopEngine(
            data,
            module,
            seed=config["seed"],
            device=torch.device(device),
            dtype=select.compute_dtype(config["dtype"]),
            keys=[(config["seed"], client)],
        )


class Site:
    """One client of a federation."""

    def __init__(
        self,
        client: int,
        data: Federation,
        state: Path,
        *,
        name: str = "",
        labels: str = "",
        model: str | None = None,
        device: str = "cpu",
    ):
        if data.n_clients != 1:
            raise UserError(f"a site holds the data of one client, not of {data.n_clients}")
        self.client, self.data, self.name = client, data, name or str(client)
        self.labels = labels
        self.memory = Memory(state)
        self.model, self.device = model, device
        self._works: dict[str, Work] = {}
        self._kinds: dict[str, Callable[[Letter, Work], Letter]] = {
            "fit": self._fit,
            "rejoin": self._rejoin,
            "recall": self._recall,
            "evaluate": self._evaluate,
        }

    def answer(self, request: Letter) -> Letter:
        """Whatever goes wrong here is an answer too: the server must not wait for a timeout."""
        echo = {k: request.meta.get(k) for k in ("kind", "experiment", "version")}
        echo["client"] = self.client
        try:
            done = self._do(request)
        except Refused as reason:
            log.warning("refused %s: %s", request.kind, reason)
            return Letter(echo | {"refused": str(reason)})
        except OSError as error:
            log.error("%s failed: %s", request.kind, error)
            return Letter(echo | {"refused": f"disk: {error.strerror or type(error).__name__}"})
        except UserError as error:
            log.error("%s failed: %s", request.kind, error)
            return Letter(echo | {"refused": str(error)})
        except Exception as error:
            # The text of an exception may quote data, so only its type leaves the site.
            log.exception("%s failed", request.kind)
            return Letter(echo | {"refused": f"{type(error).__name__} at the site, see its log"})
        return Letter(echo | done.meta, done.record)

    def _do(self, request: Letter) -> Letter:
        if request.kind == "hello":
            return self._hello(request)
        if request.kind not in self._kinds:
            raise Refused(f"unknown request '{request.kind[:40]}'")
        work = self._work(request.meta.get("config"))
        arranged = tree.ordered(request.record, work.engine.net.names)
        return self._kinds[request.kind](Letter(request.meta, arranged), work)

    def _work(self, config: Any) -> Work:
        key = json.dumps(config, sort_keys=True)
        if key not in self._works:
            if not isinstance(config, dict):
                raise Refused("the request carries no settings")
            self._check_model_name(str(config["model"]["name"]))
            if len(self._works) >= CACHED_WORKS:
                self._works.pop(next(iter(self._works)))
            self._works[key] = Work(config, self.data, self.client, self.device)
        return self._works[key]

    def _check_model_name(self, name: str) -> None:
        """`module:Class` is an import: the site decides what is imported at the site."""
        if self.model is not None and name != self.model:
            raise Refused(f"the server wants model {name}, this site runs {self.model}")
        if ":" in name and self.model is None:
            raise Refused(f"model {name} is code; start the client with --model {name} to allow it")

    # --- requests ---

    def _hello(self, request: Letter) -> Letter:
        known = self.memory.load(_experiment(request))
        return Letter(
            {
                "name": self.name,
                "sizes": {p: len(getattr(self.data, p)[0]) for p in ("train", "val", "test")},
                "classes": self.data.classes,
                "labels": self.labels,
                "shape": list(self.data.shape),
                "fresh": known is None,
                "done": -1 if known is None else known.fitted.version,
            }
        )

    def _fit(self, request: Letter, work: Work) -> Letter:
        version = _whole(request.meta, "version")
        state = self._state(request, work)
        if state.fitted.version == version:
            log.info("round %d: answered again from disk", version + 1)
            return Letter(state.fitted.answer, {"up": state.fitted.up})
        if state.fitted.version > version:
            raise Refused(f"version {version} is older than {state.fitted.version}, done before")
        down = Down(request.record.get("shared", {}), request.record.get("each", {}))
        done = Fit([HERE], version, down, state.mine).do(work.method, work.engine)
        loss = float(done.train_loss.mean())
        answer: dict[str, Any] = {
            "samples": int(done.samples.sum()),
            "train_loss": loss if math.isfinite(loss) else None,
            "logs": {n: v.tolist() for n, v in done.logs.items() if _shown(v)},
        }
        if request.meta.get("test"):
            answer["after"] = self._test(work, done.trained)
        fitted = Stage(version, done.mine, done.up, answer)
        self.memory.commit(_experiment(request), Remembered(self.client, fitted))
        log.info("round %d: trained on %d samples", version + 1, answer["samples"])
        return Letter(answer, {"up": done.up})

    def _rejoin(self, request: Letter, work: Work) -> Letter:
        version, since = _whole(request.meta, "version"), _whole(request.meta, "since")
        state = self._state(request, work)
        if state.fitted.version != since:
            raise Refused(f"my last work is of version {state.fitted.version}, not {since}")
        if state.rejoined is not None and state.rejoined.version == version:
            return Letter(state.rejoined.answer, {"up": state.rejoined.up})
        seen = Down(request.record.get("shared", {}), request.record.get("each", {})).stacked(1)
        local = work.engine.local([HERE], version)
        # Always from the state right after training, so asking twice is asking once.
        up, mine = work.method.rejoin(seen, state.fitted.mine, state.fitted.up, local)
        answer: dict[str, Any] = {}
        if request.meta.get("test"):
            answer["after"] = self._test(work, work.method.trained(seen, up, mine))
        state.rejoined = Stage(version, mine, up, answer)
        self.memory.commit(_experiment(request), state)
        return Letter(answer, {"up": up})

    def _recall(self, request: Letter, work: Work) -> Letter:
        state = self.memory.load(_experiment(request))
        if state is None or state.fitted.version != _whole(request.meta, "version"):
            return Letter({"have": False})
        return Letter(state.fitted.answer | {"have": True}, {"up": state.fitted.up})

    def _evaluate(self, request: Letter, work: Work) -> Letter:
        state = self._state(request, work)
        record = request.record
        down = Down(record.get("shared", {}), record.get("each", {})).stacked(1)
        params = work.method.personal(down, work.engine.to_device(state.mine))
        coming = work.engine.local([HERE], _whole(request.meta, "version"))
        answer = {"before": self._test(work, work.method.adapt(params, coming))}
        part = request.meta.get("global")
        shared: Tree | None = record.get("global") or record.get("shared", {}).get(part)
        if shared is not None:
            answer["global"] = self._test(work, tree.expand(shared, 1))
        return Letter(answer)

    # --- what they share ---

    def _state(self, request: Letter, work: Work) -> Remembered:
        """From disk, or made from the starting point the server sends at the first contact."""
        experiment = _experiment(request)
        state = self.memory.load(experiment)
        if state is not None:
            if state.client != self.client:
                raise Refused(f"the state on disk belongs to client {state.client}")
            for stage in filter(None, (state.fitted, state.rejoined)):
                stage.mine = tree.ordered(stage.mine, work.engine.net.names)
                stage.up = tree.ordered(stage.up, work.engine.net.names)
            return state
        if "start" not in request.record:
            raise Refused("no state of this experiment here: the starting point is needed")
        begin = tree.expand(request.record["start"], 1)
        mine = work.method.client_init(begin, work.engine.local([HERE], 0))
        state = Remembered(self.client, Stage(-1, mine))
        self.memory.commit(experiment, state)
        return state

    def _test(self, work: Work, params: Tree) -> dict[str, dict[str, float | None]]:
        found: dict[str, dict[str, float | None]] = {}
        parts: tuple[Part, ...] = ("test", "val")
        for part in parts:
            rows = work.engine.samples.parts[part][HERE]
            if len(rows):
                correct, loss = work.engine.evaluate(params, [HERE], part)
                found[part] = {"correct": float(correct[0]), "loss": _finite(loss[0])}
        return found


def _shown(value: Tensor) -> bool:
    return value.numel() <= LARGEST_LOG and bool(torch.isfinite(value.double()).all())


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _experiment(request: Letter) -> str:
    try:
        return Memory.checked(str(request.meta.get("experiment")))
    except ValueError as error:
        raise Refused(str(error)) from None


def _whole(meta: dict[str, Any], key: str) -> int:
    value = meta.get(key)
    if type(value) is not int or value < 0:
        raise Refused(f"{key} must be a whole number, got {value!r}")
    return value
