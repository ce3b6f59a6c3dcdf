"""What comes back: bad answers, late work, work that was done while the server was down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idiolect.deploy import validate
from idiolect.deploy.messages import Payload
from idiolect.simulation.outcome import Round
from idiolect.simulation.schedule import Turn
from tests.deploy.local_federation import (
    LocalTransport,
    assert_same_private,
    assert_same_server,
    clients_on_disk,
    config,
    served,
    simulated,
)


def spoil(kind: str) -> Callable[[Payload], Payload]:
    """Client 2 answers every fit wrongly."""

    def change(answer: Payload) -> Payload:
        if answer.kind != "fit" or answer.meta["client"] != 2:
            return answer
        model = dict(answer.record["up"]["model"])
        meta, name = dict(answer.meta), next(iter(model))
        if kind == "NaN":
            model[name] = model[name] * float("nan")
        elif kind == "shape":
            model[name] = model[name][:, :-1]
        elif kind == "dtype":
            model[name] = model[name].float()
        elif kind == "missing":
            del model[name]
        elif kind == "extra":
            model["stranger"] = torch.zeros(1, 1, dtype=torch.float64)
        elif kind == "giant":
            model[name] = torch.zeros(4_000_000, dtype=torch.float64)
        elif kind == "version":
            meta["version"] += 1
        elif kind == "sender":
            meta["client"] = 1
        elif kind == "experiment":
            meta["experiment"] = "f" * 32
        elif kind == "samples":
            meta["samples"] = "many"
        elif kind == "accuracy":
            meta["after"] = {"test": {"correct": 99, "loss": 0.0}}
        elif kind == "enormous":
            model[name] = model[name] * 1e30
        elif kind == "count":
            meta["samples"] = 10**60
        elif kind == "loss":
            meta["train_loss"] = 10**400
        elif kind == "tested":
            meta["after"] = {"test": {"correct": 5, "loss": 10**400}}
        elif kind == "log":
            meta["logs"] = {"norm": [10**400]}
        elif kind == "log name":
            meta["logs"] = {"\x1b[2J": [1.0]}
        return Payload(meta, {"up": {"model": model}})

    return change


REASONS = {
    "NaN": "holds NaN",
    "shape": "has shape",
    "dtype": "expected torch.float64",
    "missing": "is missing",
    "extra": "was not asked for",
    "giant": "bytes, at most",
    "version": "version is 1",
    "sender": "client is 1",
    "experiment": "experiment is",
    "samples": "is not a count",
    "accuracy": "99 correct of 11",
    "enormous": "usual is up to",
    "count": "is absurd for 34 training samples",
    "loss": "train_loss is not a number",
    "tested": "is not a number",
    "log": "log 'norm' is none",
    "log name": "log '\\x1b[2J' is none",
}


@pytest.mark.parametrize("kind", REASONS)
def test_bad_answer_is_refused_and_the_round_goes_on(kind: str, tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    transport = LocalTransport(clients_on_disk(tmp_path, 3))
    transport.change = spoil(kind)
    ours = served(made, transport, 3)
    told: list[dict[str, Any]] = []
    note = ours.registry.note

    def heard(what: str, **about: Any) -> None:
        told.append({"what": what} | about)
        note(what, **about)

    ours.registry.note = heard  # type: ignore[method-assign]
    ours.start()
    done = ours.step()
    assert done.started == [0, 1, 2]
    assert done.arrived == [0, 1]
    bad = [t for t in told if t["what"] == "refused"]
    assert len(bad) == 1 and REASONS[kind] in bad[0]["reason"], told
    assert (ours.registry.counts["refused"], ours.registry.counts["lost"]) == (1, 0)
    theirs = simulated(made, 3, schedule=[Turn([0, 1, 2], {0: 0, 1: 0}, [2])])
    theirs.step()
    assert_same_server(ours, theirs)


def test_an_answer_nobody_thought_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong while an answer is looked at, the round goes on with the others."""
    made = config("fedavg", rounds=1)
    ours = served(made, LocalTransport(clients_on_disk(tmp_path, 3)), 3)
    honest = ours.arrivals.dispatcher.handlers["fit"]

    def accept(request: Any, answer: Payload) -> str | None:
        if request.client == 2:
            raise ZeroDivisionError
        return honest(request, answer)

    monkeypatch.setitem(ours.arrivals.dispatcher.handlers, "fit", accept)
    assert ours.step().arrived == [0, 1]
    assert ours.registry.counts["refused"] == 1


def test_honest_updates_may_differ_and_one_alone_is_judged_too(tmp_path: Path) -> None:
    """An update is enormous beside the others', or beside what the server expects."""
    usual = [{"w": 3.0}, {"w": 40.0}]
    assert validate.enormous({"w": 900.0}, usual, {"w": 0.1}) is None
    assert validate.enormous({"w": 9e5}, usual, {"w": 0.1}) is not None
    assert validate.enormous({"w": 9e5}, [{"w": 8e5}, {"w": 7e5}], {"w": 0.1}) is None
    assert validate.enormous({"w": 9e5}, [], {"w": 0.1}) is None
    assert validate.enormous({"w": 9e9}, [], {"w": 0.1}) is not None


def test_the_site_is_told_why_its_answer_was_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = config("fedavg", rounds=1)
    transport = LocalTransport(clients_on_disk(tmp_path, 3))
    transport.change = spoil("NaN")
    ours = served(made, transport, 3)
    ours.step()
    told = [r.getMessage() for r in caplog.records if r.name == "idiolect.client"]
    assert len([t for t in told if "your fit of round 1 was refused" in t and "NaN" in t]) == 1


def as_schedule(done: list[Round]) -> list[dict[str, Any]]:
    return [
        {
            "start": r.started,
            "arrive": [[i, r.round - s] for i, s in zip(r.arrived, r.staleness, strict=True)],
        }
        for r in done
    ]


@pytest.mark.parametrize("method", ["fedavg_async", "lga", "plga"])
def test_late_work_is_used_with_its_staleness(method: str, tmp_path: Path) -> None:
    made = config(method, rounds=5, steps=2, batch_size=8)
    here = clients_on_disk(tmp_path, 3)
    transport = LocalTransport(here)
    ours = served(made, transport, 3, window=0.01)

    def late(answer: Payload) -> bool:
        mine = answer.kind == "fit" and answer.meta["client"] == 2
        return mine and answer.meta["version"] == 0 and ours.round < 3

    transport.hold = late
    ours.start()
    done = [ours.step() for _ in range(5)]
    assert [r.arrived for r in done] == [[0, 1], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert done[3].staleness == [0, 0, 3]
    assert [2 in r.started for r in done] == [True, False, False, False, True]
    theirs = simulated(made, 3, schedule=as_schedule(done))
    rounds = [theirs.step() for _ in range(5)]
    assert_same_server(ours, theirs)
    for site in here:
        assert_same_private(site, theirs)
    np.testing.assert_allclose(
        done[-1].clients["accuracy_before"], rounds[-1].clients["accuracy_before"], atol=1e-9
    )


def test_late_work_of_a_synchronous_method_is_dropped(tmp_path: Path) -> None:
    made = config("fedavg", rounds=5)
    transport = LocalTransport(clients_on_disk(tmp_path, 3))
    ours = served(made, transport, 3, window=0.01)

    def late(answer: Payload) -> bool:
        first = answer.kind == "fit" and answer.meta["version"] == 0
        return first and answer.meta["client"] == 2 and ours.round < 3

    transport.hold = late
    ours.start()
    done = [ours.step() for _ in range(5)]
    assert ours.registry.counts["late"] == 1
    assert [r.started for r in done] == [[0, 1, 2], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    turns = [Turn(r.started, dict.fromkeys(r.arrived, r.round - 1)) for r in done]
    turns[0] = Turn([0, 1, 2], {0: 0, 1: 0}, [2])
    theirs = simulated(made, 3, schedule=turns)
    for _ in range(5):
        theirs.step()
    assert_same_server(ours, theirs)


def test_work_that_was_out_is_recalled_after_a_crash(tmp_path: Path) -> None:
    made = config("plga", rounds=4, steps=2, batch_size=8)
    here = clients_on_disk(tmp_path, 3)
    transport = LocalTransport(here)
    first = served(made, transport, 3, window=0.01)
    transport.hold = lambda answer: answer.kind == "fit" and answer.meta["client"] == 2
    done = [first.start(), first.step(), first.step()][1:]
    saved = first.state()
    transport.answers.clear()
    transport.hold = lambda answer: False
    again = served(made, transport, 3, window=0.01)
    again.restore(*saved)
    done += [again.step(), again.step()]
    assert done[2].arrived == [0, 1, 2]
    assert done[2].staleness == [0, 0, 2]
    theirs = simulated(made, 3, schedule=as_schedule(done))
    for _ in range(4):
        theirs.step()
    assert_same_server(again, theirs)
    for site in here:
        assert_same_private(site, theirs)


def test_too_few_arrivals_change_nothing(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    transport = LocalTransport(clients_on_disk(tmp_path, 3))
    transport.change = spoil("NaN")
    ours = served(made, transport, 3, arrivals=3)
    ours.start()
    before, _ = ours.state()
    done = ours.step()
    after, _ = ours.state()
    assert done.arrived == [] and ours.registry.counts["too few"] == 1
    for name in before:
        if name.startswith("server/"):
            assert torch.equal(before[name], after[name])
