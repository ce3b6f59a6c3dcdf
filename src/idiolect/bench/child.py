"""Runs a peer's main program and times its rounds; started by `peers.py`, imports nothing of us.

Usage: child.py SPEC.json RESULT.json. Modules that the program imports but does not need here, and
that are not installed, are replaced by empty stand-ins; whatever would be called in one fails. The
folder `stand_ins` has those it calls for its settings.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import os
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


class Absent(type):
    """A name of a module that is not there: it may be looked at, but not called."""

    @staticmethod
    def of(module: str, name: str) -> "Absent":
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*_: Any, **__: Any) -> None:
            raise RuntimeError(f"{module}.{name} is needed: install {module}")

        return Absent(name, (), {"__init__": call, "__module__": module})

    def __getattr__(cls, name: str) -> "Absent":
        return Absent.of(cls.__module__, name)


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
            return Absent.of(module.__name__, name)

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


def flbench(rounds: int) -> Callable[[], dict[str, Any]]:
    """Its server trains and tests client after client, then aggregates and notes the metrics.

    It reads our samples, dealt as ours are and normalized already, beside its working folder: as
    its own dataset of stored arrays, without transforms. The device is the one we were given.
    """
    constants: Any = importlib.import_module("src.utils.constants")
    constants.FLBENCH_ROOT = Path("..").resolve()
    functional: Any = importlib.import_module("src.utils.functional")
    functional.get_optimal_cuda_device = lambda use_cuda: torch.device(
        "cuda:0" if use_cuda else "cpu"
    )
    datasets: Any = importlib.import_module("data.utils.datasets").DATASETS
    datasets["cifar10"] = datasets["synthetic"]
    base: Any = importlib.import_module("src.server.fedavg")
    base.pickle = json  # how the samples are dealt is in a JSON file
    server_class, client_class = base.FedAvgServer, base.FedAvgClient
    server_class.get_dataset_transforms = lambda self: {}
    display, evaluate = server_class.display_metrics, client_class.evaluate
    train = server_class.train
    marks, cpu, tested, scores = list[float](), list[float](), [0.0], list[float]()

    def mark() -> None:
        wait()
        marks.append(time.perf_counter())
        cpu.append(time.process_time())

    def begun(self: Any) -> None:
        mark()
        train(self)

    def measured(self: Any, *args: Any, **options: Any) -> Any:
        wait()
        began = time.perf_counter()
        found = evaluate(self, *args, **options)
        tested[-1] += time.perf_counter() - began
        return found

    def done(self: Any) -> None:
        display(self)
        mark()
        if len(marks) == rounds + 2:
            self.test_client_models()
            (final,) = self.test_results[rounds + 1].values()
            scores.append(final["before"]["test"].accuracy / 100)
            raise Enough
        tested.append(0.0)

    server_class.train, server_class.display_metrics = begun, done
    client_class.evaluate = measured
    return lambda: laps(marks, cpu, tested, scores)


def blazefl(rounds: int) -> Callable[[], dict[str, Any]]:
    """Its handler draws the clients of a round, and tests the model at the end of it.

    Its serial trainer tests every client's model too.
    """
    contrib: Any = importlib.import_module("blazefl.contrib")
    handler, serial = contrib.FedAvgServerHandler, contrib.FedAvgSerialClientTrainer
    draw, summary, evaluate = handler.sample_clients, handler.get_summary, serial.evaluate
    marks, cpu, tested, scores = list[float](), list[float](), [0.0], list[float]()

    def mark() -> None:
        marks.append(time.perf_counter())
        cpu.append(sum(os.times()[:4]))  # that of worker processes that have ended included

    def timed(work: Callable[..., Any], *args: Any) -> Any:
        wait()
        began = time.perf_counter()
        found = work(*args)
        tested[-1] += time.perf_counter() - began
        return found

    def begun(self: Any) -> Any:
        if not marks:
            mark()
        return draw(self)

    def done(self: Any) -> Any:
        found = timed(summary, self)
        mark()
        scores.append(found["server_acc"])
        if len(marks) == rounds + 2:
            raise Enough
        tested.append(0.0)
        return found

    handler.sample_clients, handler.get_summary = begun, done
    serial.evaluate = lambda self, loader: timed(evaluate, self, loader)
    return lambda: laps(marks, cpu, tested, scores)


def laps(
    marks: list[float], cpu: list[float], tested: list[float], scores: list[float]
) -> dict[str, Any]:
    """Rounds from their ends (the first mark is where the first round begins)."""
    seconds = [b - a for a, b in pairwise(marks)]
    middle, evaluation = statistics.median(seconds[1:]), statistics.median(tested[1:])
    return {
        "rounds": len(seconds),
        "seconds": middle,
        "train_s": middle - evaluation,
        "evaluation_s": evaluation,
        "cpu_s": statistics.median(b - a for a, b in pairwise(cpu[1:])),
        "first_round_s": seconds[0],
        "accuracy": scores[-1],
    }


WATCHES = {"pfllib": pfllib, "pfl": pfl, "flbench": flbench, "blazefl": blazefl}


def main(spec_file: str, result_file: str) -> None:
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    torch.set_num_threads(spec["threads"])
    here = Path(__file__).parent / "stand_ins"
    sys.path[:] = [*spec["search"], *sys.path, str(here)]
    stand_ins = StandIns(spec["spare"])
    sys.meta_path.append(stand_ins)
    result = WATCHES[spec["watch"]](spec["rounds"])
    sys.argv = [spec["program"], *spec["arguments"]]
    with suppress(Enough):
        runpy.run_path(spec["program"], run_name="__main__")
    small = {n for n in sys.modules if (here / f"{n}.py").exists() or (here / n).is_dir()}
    small = {n for n in small if str(sys.modules[n].__file__).startswith(str(here))}
    found = result() | {"stood_in": sorted(stand_ins.used | small)}
    Path(result_file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
