"""The server's rounds against the simulator, and every kind of bad answer; no network."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idiolect.core import tree
from idiolect.data import Federation
from idiolect.deploy import messages
from idiolect.deploy.client import Site
from idiolect.deploy.messages import Letter
from idiolect.errors import UserError
from idiolect.simulation.outcome import Round
from idiolect.simulation.schedule import Turn
from tests.deploy.offline import (
    EXPERIMENT,
    LocalPost,
    assert_same_private,
    assert_same_server,
    config,
    hub,
    simulated,
    site_data,
    sites,
)

METHODS = {
    "fedavg": {},
    "fedper": {},
    "spfl": {"gamma": 2},
    "feddwa": {"top_k": 2},
    "pflego": {"tau": 3},
    "fedas": {"epochs": 1},
    "lga": {"steps": 2, "batch_size": 8},
    "plga": {"steps": 2, "batch_size": 8},
}


@pytest.mark.parametrize("method", METHODS)
def test_sites_give_the_simulators_numbers(method: str, tmp_path: Path) -> None:
    made = config(method, rounds=3, **METHODS[method])
    here = sites(tmp_path, 3)
    ours, theirs = hub(made, LocalPost(here), 3), simulated(made, 3)
    first = (ours.start(), theirs.start())
    pairs = [first, *((ours.step(), theirs.step()) for _ in range(3))]
    for mine, his in pairs:
        assert (mine.started, mine.arrived) == (his.started, his.arrived)
        assert (mine.bytes_up, mine.bytes_down) == (his.bytes_up, his.bytes_down)
        assert mine.samples == his.samples
        assert set(mine.clients) == set(his.clients)
        for name, column in his.clients.items():
            np.testing.assert_allclose(mine.clients[name], column, atol=1e-9, err_msg=name)
        assert set(mine.logs) == set(his.logs)
    assert_same_server(ours, theirs)
    for site in here:
        assert_same_private(site, theirs)


def spoil(kind: str) -> Callable[[Letter], Letter]:
    """Client 2 answers every fit wrongly."""

    def change(answer: Letter) -> Letter:
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
        return Letter(meta, {"up": {"model": model}})

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
}


@pytest.mark.parametrize("kind", REASONS)
def test_bad_answer_is_refused_and_the_round_goes_on(kind: str, tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    post = LocalPost(sites(tmp_path, 3))
    post.change = spoil(kind)
    ours = hub(made, post, 3)
    told: list[dict[str, Any]] = []
    note = ours.ledger.note

    def heard(what: str, **about: Any) -> None:
        told.append({"what": what} | about)
        note(what, **about)

    ours.ledger.note = heard  # type: ignore[method-assign]
    ours.start()
    done = ours.step()
    assert done.started == [0, 1, 2]
    assert done.arrived == [0, 1]
    bad = [t for t in told if t["what"] == "refused"]
    assert len(bad) == 1 and REASONS[kind] in bad[0]["reason"], told
    assert (ours.ledger.counts["refused"], ours.ledger.counts["lost"]) == (1, 0)
    theirs = simulated(made, 3, schedule=[Turn([0, 1, 2], {0: 0, 1: 0}, [2])])
    theirs.step()
    assert_same_server(ours, theirs)


def test_repeated_request_returns_the_same_answer_and_trains_nothing(tmp_path: Path) -> None:
    made = config("fedas", rounds=2, epochs=1)
    here = sites(tmp_path, 1)
    post = LocalPost(here)
    ours = hub(made, post, 1)
    ours.start()
    ours.step()
    node, request = next(s for s in post.sent if s[1].kind == "fit")
    site = post.sites[node]
    path = site.memory.path(EXPERIMENT)
    before = path.read_bytes()
    trained: list[int] = []
    for work in site._works.values():
        work.engine.run = lambda *_, **__: trained.append(1)  # type: ignore[assignment]
    first, again = site.answer(request), site.answer(request)
    assert trained == []
    assert path.read_bytes() == before
    assert first.meta == again.meta and first.meta["samples"] > 0
    for name, leaf in tree.leaves(first.record).items():
        assert torch.equal(leaf, tree.leaves(again.record)[name])
    # A new process reads the same answer from disk.
    reopened = Site(0, site_data(0), tmp_path / "site0").answer(request)
    assert messages.pack(reopened) == messages.pack(first)


def test_older_version_is_refused_by_the_client(tmp_path: Path) -> None:
    made = config("fedavg", rounds=2)
    post = LocalPost(sites(tmp_path, 1))
    ours = hub(made, post, 1)
    ours.start()
    ours.step()
    ours.step()
    _, request = next(s for s in post.sent if s[1].kind == "fit" and s[1].meta["version"] == 0)
    answer = post.sites[1000].answer(request)
    assert answer.meta["refused"] == "version 0 is older than 1, done before"
    assert not answer.record


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
    here = sites(tmp_path, 3)
    post = LocalPost(here)
    ours = hub(made, post, 3, window=0.01)

    def late(answer: Letter) -> bool:
        mine = answer.kind == "fit" and answer.meta["client"] == 2
        return mine and answer.meta["version"] == 0 and ours.round < 3

    post.hold = late
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
    post = LocalPost(sites(tmp_path, 3))
    ours = hub(made, post, 3, window=0.01)

    def late(answer: Letter) -> bool:
        first = answer.kind == "fit" and answer.meta["version"] == 0
        return first and answer.meta["client"] == 2 and ours.round < 3

    post.hold = late
    ours.start()
    done = [ours.step() for _ in range(5)]
    assert ours.ledger.counts["late"] == 1
    assert [r.started for r in done] == [[0, 1, 2], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    turns = [Turn(r.started, dict.fromkeys(r.arrived, r.round - 1)) for r in done]
    turns[0] = Turn([0, 1, 2], {0: 0, 1: 0}, [2])
    theirs = simulated(made, 3, schedule=turns)
    for _ in range(5):
        theirs.step()
    assert_same_server(ours, theirs)


@pytest.mark.parametrize("method", METHODS)
def test_server_goes_on_from_its_checkpoint(method: str, tmp_path: Path) -> None:
    """Killed after clients answered round 2 and before it was aggregated: nothing is done twice."""
    made = config(method, rounds=3, **METHODS[method])
    here = sites(tmp_path, 3)
    post = LocalPost(here)
    first = hub(made, post, 3)
    first.start()
    first.step()
    saved = first.state()
    saved = ({n: v.clone() for n, v in saved[0].items()}, json.loads(json.dumps(saved[1])))
    first.step()  # the clients have this on disk, the checkpoint does not
    post.answers.clear()
    for site in here:  # every client restarts too
        post.sites[1000 + site.client] = Site(
            site.client, site_data(site.client), tmp_path / f"site{site.client}"
        )
    again = hub(made, post, 3)
    again.restore(*saved)
    again.step()
    again.step()
    theirs = simulated(made, 3)
    for _ in range(3):
        theirs.step()
    assert_same_server(again, theirs)
    for site in post.sites.values():
        assert_same_private(site, theirs)


def test_work_that_was_out_is_recalled_after_a_crash(tmp_path: Path) -> None:
    made = config("plga", rounds=4, steps=2, batch_size=8)
    here = sites(tmp_path, 3)
    post = LocalPost(here)
    first = hub(made, post, 3, window=0.01)
    post.hold = lambda answer: answer.kind == "fit" and answer.meta["client"] == 2
    done = [first.start(), first.step(), first.step()][1:]
    saved = first.state()
    post.answers.clear()
    post.hold = lambda answer: False
    again = hub(made, post, 3, window=0.01)
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


def test_full_disk_fails_one_client_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = config("fedas", rounds=2, epochs=1)
    here = sites(tmp_path, 3)
    ours = hub(made, LocalPost(here), 3)
    ours.start()
    before = here[1].memory.path(EXPERIMENT).read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(here[1].memory, "commit", full)
    done = ours.step()
    assert done.arrived == [0, 2]
    assert ours.ledger.counts["lost"] == 1
    assert here[1].memory.path(EXPERIMENT).read_bytes() == before
    monkeypatch.undo()
    assert ours.step().arrived == [0, 1, 2]


def test_client_that_lost_its_disk_gets_the_starting_point_again(tmp_path: Path) -> None:
    made = config("fedas", rounds=3, epochs=1)
    here = sites(tmp_path, 2)
    ours = hub(made, LocalPost(here), 2)
    ours.start()
    ours.step()
    here[1].memory.path(EXPERIMENT).unlink()
    assert ours.step().arrived == [0]
    assert ours.step().arrived == [0, 1]


def test_two_nodes_cannot_be_the_same_client(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    here = sites(tmp_path, 2)
    post = LocalPost(here)
    post.sites[2000] = Site(1, site_data(1), tmp_path / "impostor")
    post.online.add(2000)
    ours = hub(made, post, 2)
    ours._greeted = 0.0
    ours.pump()
    ours.pump()
    assert ours.ledger.seats[1].node == 1001
    assert ours.ledger.counts["refused"] == 1


def test_key_decides_which_client_a_node_is(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    here = sites(tmp_path, 2)
    with pytest.raises(UserError, match="only 1 of 2 clients came"):
        hub(made, LocalPost(here), 2, nodes={"1000": 0, "1001": 5}, patience=0.2)


def test_clients_with_other_samples_are_turned_away(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    x, y = np.zeros((4, 1, 5, 5)), np.array([0, 1, 2, 0])
    odd = Federation.from_arrays([{"x_train": x, "y_train": y, "x_test": x, "y_test": y}])
    post = LocalPost([*sites(tmp_path, 1), Site(1, odd, tmp_path / "odd")])
    with pytest.raises(UserError, match="only 1 of 2"):
        hub(made, post, 2, patience=0.2)


def test_site_imports_no_model_it_was_not_told_to(tmp_path: Path) -> None:
    site = sites(tmp_path, 1)[0]
    made = config("fedavg")
    settings = {k: made[k] for k in ("method", "model", "seed", "dtype")}
    settings["model"] = {"name": "os:system"}
    asked = {"kind": "fit", "experiment": EXPERIMENT, "version": 0, "config": settings}
    answer = site.answer(Letter(asked))
    assert "start the client with --model os:system" in answer.meta["refused"]
    asked["experiment"] = "../../etc/passwd"
    asked["kind"] = "hello"
    assert "is not an experiment id" in site.answer(Letter(asked)).meta["refused"]


def test_private_state_never_travels(tmp_path: Path) -> None:
    """No leaf of `mine` equals a leaf that a FedAS client sends: the head and its name stay."""
    made = config("fedas", rounds=2, epochs=1)
    post = LocalPost(sites(tmp_path, 2))
    seen: list[Letter] = []
    post.change = lambda answer: (seen.append(answer), answer)[1]
    ours = hub(made, post, 2)
    ours.start()
    ours.step()
    fits = [a for a in seen if a.kind == "fit"]
    assert len(fits) == 2
    for answer in fits:
        names = set(tree.leaves(answer.record))
        assert names and not any("head" in name for name in names)


def test_others_step_in_for_those_who_are_gone(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    made["participation"] = {"kind": "fixed", "rate": 0.34}
    post = LocalPost(sites(tmp_path, 3))
    ours = hub(made, post, 3)
    drawn = ours.participation.draw([0, 1, 2], made["seed"], 0)
    assert len(drawn) == 1
    post.online.remove(1000 + drawn[0])
    ours._greeted = 0.0
    done = ours.step()
    assert len(done.arrived) == 1 and done.arrived != drawn
    assert ours.ledger.counts["gone"] == 1


def test_too_few_arrivals_change_nothing(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    post = LocalPost(sites(tmp_path, 3))
    post.change = spoil("NaN")
    ours = hub(made, post, 3, arrivals=3)
    ours.start()
    before, _ = ours.state()
    done = ours.step()
    after, _ = ours.state()
    assert done.arrived == [] and ours.ledger.counts["too few"] == 1
    for name in before:
        if name.startswith("server/"):
            assert torch.equal(before[name], after[name])


def test_client_that_does_not_answer_is_given_up_and_may_come_back(tmp_path: Path) -> None:
    made = config("fedavg", rounds=3)
    post = LocalPost(sites(tmp_path, 2))
    ours = hub(made, post, 2, timeout=0.3)
    post.hold = lambda answer: answer.meta["client"] == 1
    first = ours.step()
    assert (first.started, first.arrived) == ([0, 1], [0])
    assert ours.ledger.seats[1].status == "gone"
    post.hold = lambda answer: False
    ours._greeted, ours._not_before = 0.0, {}
    ours.pump()
    assert ours.step().arrived == [0, 1]
