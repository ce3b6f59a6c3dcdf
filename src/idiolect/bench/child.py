"""Runs a peer's main program and times its rounds; started by `peers.py`, imports nothing of us.

Usage: child.py SPEC.json RESULT.json. Modules that the program imports but does not need here, and
that are not installed, are replaced by empty stand-ins; whatever would be called in one fails.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


class Enough(BaseException):
    """The rounds asked for are done; no `except Exception` of the program stops it."""


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last, so it is asked only for modules that are not installed."""

    def __init__(self, names: list[str]):
        self.names, self.used = names, set[str]()

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        self.used.add(module.__name__.partition(".")[0])

        def absent(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)

            def call(*_: Any, **__: Any) -> None:
                raise RuntimeError(f"{module.__name__}.{name} is needed: install {module.__name__}")

            return type(name, (), {"__init__": call})

        module.__getattr__ = absent  # type: ignore[method-assign]


def wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def pfllib(rounds: int) -> Callable[[], dict[str, Any]]:
    """Its server tests all clients, trains, aggregates, and writes down how long that took.

    Stops at the test that follows the last round.
    """
    server_class: Any = importlib.import_module("flcore.servers.serverbase").Server
    evaluate, servers = server_class.evaluate, list[Any]()
    cpu, tested = list[float](), list[float]()

    def watched(self: Any, *args: Any, **options: Any) -> None:
        cpu.append(time.process_time())
        began = time.perf_counter()
        evaluate(self, *args, **options)
        wait()
        tested.append(time.perf_counter() - began)
        if len(tested) == rounds + 2:
            servers.append(self)
            raise Enough

    server_class.evaluate = watched

    def result() -> dict[str, Any]:
        (server,) = servers
        seconds = statistics.median(server.Budget[1:])
        evaluation = statistics.median(tested[1:-1])
        return {
            "rounds": len(server.Budget),
            "seconds": seconds,
            "train_s": seconds - evaluation,
            "evaluation_s": evaluation,
            "cpu_s": statistics.median(b - a for a, b in pairwise(cpu[1:])),
            "first_round_s": server.Budget[0],
            "accuracy": float(server.rs_test_acc[-1]),
        }

    return result


def pfl(rounds: int) -> Callable[[], dict[str, Any]]:
    """Its algorithm asks for the next central iteration until there is none.

    One iteration lasts from one request to the next; the last request finds the finished model.
    """
    algorithm: Any = importlib.import_module("pfl.algorithm.federated_averaging").FederatedAveraging
    central: Any = importlib.import_module(
        "pfl.callback.central_evaluation"
    ).CentralEvaluationCallback
    following, begin = algorithm.get_next_central_contexts, central.on_train_begin
    after = central.after_central_iteration
    marks, cpu, tested = list[float](), list[float](), dict[int, float]()
    callbacks, scores = list[Any](), list[float]()

    def asked(self: Any, model: Any, *args: Any, **options: Any) -> Any:
        wait()
        marks.append(time.perf_counter())
        cpu.append(time.process_time())
        if len(marks) == rounds + 2:
            final = begin(callbacks[0], model=model).to_simple_dict()
            scores.extend(v for k, v in final.items() if k.lower().endswith("accuracy"))
            raise Enough
        return following(self, model, *args, **options)

    def begun(self: Any, *, model: Any) -> Any:
        callbacks.append(self)
        return begin(self, model=model)

    def done(self: Any, *args: Any, central_iteration: int, **options: Any) -> Any:
        began = time.perf_counter()
        stop, metrics = after(self, *args, central_iteration=central_iteration, **options)
        if len(metrics):
            tested[central_iteration] = time.perf_counter() - began
        return stop, metrics

    algorithm.get_next_central_contexts = asked
    central.on_train_begin, central.after_central_iteration = begun, done

    def result() -> dict[str, Any]:
        laps = [b - a for a, b in pairwise(marks)]
        plain = [lap for i, lap in enumerate(laps) if i and i not in tested]
        return {
            "rounds": len(laps),
            "seconds": (marks[-1] - marks[1]) / rounds,
            "plain_s": statistics.median(plain) if plain else None,
            "evaluation_s": sum(tested.values()) / rounds,
            "cpu_s": (cpu[-1] - cpu[1]) / rounds,
            "first_round_s": laps[0],
            "accuracy": scores[0],
        }

    return result


WATCHES = {"pfllib": pfllib, "pfl": pfl}


def main(spec_file: str, result_file: str) -> None:
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    torch.set_num_threads(spec["threads"])
    sys.path[:0] = spec["search"]
    stand_ins = StandIns(spec["spare"])
    sys.meta_path.append(stand_ins)
    result = WATCHES[spec["watch"]](spec["rounds"])
    sys.argv = [spec["program"], *spec["arguments"]]
    with suppress(Enough):
        runpy.run_path(spec["program"], run_name="__main__")
    found = result() | {"stood_in": sorted(stand_ins.used)}
    Path(result_file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
