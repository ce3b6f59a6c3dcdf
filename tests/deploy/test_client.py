"""How a client answers: once, from disk, and only what it may."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from idiolect.core import tree
from idiolect.deploy import messages
from idiolect.deploy.client import Client
from idiolect.deploy.messages import Payload
from tests.deploy.local_federation import (
    EXPERIMENT,
    LocalTransport,
    clients_on_disk,
    config,
    served,
    site_data,
)


def test_repeated_request_returns_the_same_answer_and_trains_nothing(tmp_path: Path) -> None:
    made = config("fedas", rounds=2, epochs=1)
    here = clients_on_disk(tmp_path, 1)
    transport = LocalTransport(here)
    ours = served(made, transport, 1)
    ours.start()
    ours.step()
    node, request = next(s for s in transport.sent if s[1].kind == "fit")
    site = transport.sites[node]
    path = site.store.path(EXPERIMENT)
    before = path.read_bytes()
    trained: list[int] = []
    for work in site._experiments.values():
        work.engine.run = lambda *_, **__: trained.append(1)  # type: ignore[assignment]
    first, again = site.answer(request), site.answer(request)
    assert trained == []
    assert path.read_bytes() == before
    assert first.meta == again.meta and first.meta["samples"] > 0
    for name, leaf in tree.leaves(first.record).items():
        assert torch.equal(leaf, tree.leaves(again.record)[name])
    # A new process reads the same answer from disk.
    reopened = Client(0, site_data(0), tmp_path / "site0").answer(request)
    assert messages.pack(reopened) == messages.pack(first)


def test_older_version_is_refused_by_the_client(tmp_path: Path) -> None:
    made = config("fedavg", rounds=2)
    transport = LocalTransport(clients_on_disk(tmp_path, 1))
    ours = served(made, transport, 1)
    ours.start()
    ours.step()
    ours.step()
    _, request = next(s for s in transport.sent if s[1].kind == "fit" and s[1].meta["version"] == 0)
    answer = transport.sites[1000].answer(request)
    assert answer.meta["refused"] == "version 0 is older than 1, done before"
    assert not answer.record


def asked_of(transport: LocalTransport, kind: str) -> Payload:
    return next(payload for _, payload in transport.sent if payload.kind == kind)


@pytest.mark.parametrize("kind", ["fit", "rejoin"])
def test_forged_round_is_refused_and_true_ones_are_done(kind: str, tmp_path: Path) -> None:
    """Round 1,000,001 on disk would make every true round an older one."""
    made = config("fedavg", rounds=2)
    transport = LocalTransport(clients_on_disk(tmp_path, 1))
    ours = served(made, transport, 1)
    ours.start()
    ours.step()
    true = asked_of(transport, "fit")
    forged = Payload(true.meta | {"kind": kind, "version": 1_000_000, "since": 0}, true.record)
    answer = transport.sites[1000].answer(forged)
    assert answer.meta["refused"] == "round 1000001 is not one of the experiment's 2"
    assert ours.step().arrived == [0]


def test_settings_of_an_experiment_do_not_change(tmp_path: Path) -> None:
    """Nor can somebody raise the number of rounds to get a forged one done."""
    made = config("fedavg", rounds=2)
    transport = LocalTransport(clients_on_disk(tmp_path, 1))
    ours = served(made, transport, 1)
    ours.start()
    ours.step()
    true = asked_of(transport, "fit")
    more = {"version": 1_000_000, "config": true.meta["config"] | {"rounds": 2_000_000}}
    answer = transport.sites[1000].answer(Payload(true.meta | more, true.record))
    assert "not those it began with" in answer.meta["refused"]
    assert ours.step().arrived == [0]


def test_a_method_of_another_revision_is_not_computed(tmp_path: Path) -> None:
    """The site's library may change between two rounds, without another hello."""
    transport = LocalTransport(clients_on_disk(tmp_path, 1))
    ours = served(config("fedavg", rounds=2), transport, 1)
    ours.start()
    ours.step()
    true = asked_of(transport, "fit")
    answer = transport.sites[1000].answer(Payload(true.meta | {"revision": 9}, true.record))
    said = "the method has revision 1 here and 9 at the server: it computes something else"
    assert answer.meta["refused"].startswith(said) and not answer.record
    assert transport.sites[1000].answer(true).meta["samples"] > 0


def test_work_of_another_client_is_not_given_out(tmp_path: Path) -> None:
    """Two ids were started on one state folder, or a folder was copied to another site."""
    transport = LocalTransport(clients_on_disk(tmp_path, 2))
    ours = served(config("fedavg", rounds=2), transport, 2)
    ours.start()
    ours.step()
    true = asked_of(transport, "fit")
    recall = Payload(true.meta | {"kind": "recall"})
    assert transport.sites[1000].answer(recall).record
    other = Client(1, site_data(1), tmp_path / "site0").answer(recall)
    assert other.meta["refused"] == "the state on disk belongs to client 0" and not other.record


@pytest.mark.skipif(os.name == "nt", reason="modes of files are those of POSIX")
def test_only_the_owner_can_read_the_state_and_the_personal_model(tmp_path: Path) -> None:
    """Also in a folder that was there before, and that others may enter."""
    folder = tmp_path / "site0"
    folder.mkdir(mode=0o755)
    (folder / "models").mkdir(mode=0o755)
    ours = served(config("fedas", rounds=1), LocalTransport(clients_on_disk(tmp_path, 1)), 1)
    ours.start()
    ours.step()
    found = sorted(folder.rglob("*.safetensors"))
    assert [path.parent.name for path in found] == ["site0", "models"]
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}


def test_damaged_state_is_said_and_not_replaced(tmp_path: Path) -> None:
    made = config("fedas", rounds=2, epochs=1)
    here = clients_on_disk(tmp_path, 2)
    ours = served(made, LocalTransport(here), 2)
    ours.start()
    path = here[1].store.path(EXPERIMENT)
    path.write_bytes(path.read_bytes()[:100])
    damaged = path.read_bytes()
    answer = here[1].answer(asked_of(ours.enrolment.transport, "evaluate"))  # type: ignore[arg-type]
    assert "is damaged" in answer.meta["refused"] and "move it away" in answer.meta["refused"]
    assert str(tmp_path) not in answer.meta["refused"]  # where it is concerns the site only
    assert ours.step().arrived == [0]
    assert path.read_bytes() == damaged


def test_words_of_the_server_cannot_drive_the_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = clients_on_disk(tmp_path, 1)[0]
    about = {"kind": "hello", "experiment": EXPERIMENT, "version": 0}
    site.answer(Payload(about | {"notice": "\x1b[2Jall is well\r\n"}))
    (told,) = [r.getMessage() for r in caplog.records]
    assert told == "the server says:  [2Jall is well  "


def test_full_disk_fails_one_client_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = config("fedas", rounds=2, epochs=1)
    here = clients_on_disk(tmp_path, 3)
    ours = served(made, LocalTransport(here), 3)
    ours.start()
    before = here[1].store.path(EXPERIMENT).read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(here[1].store, "commit", full)
    done = ours.step()
    assert done.arrived == [0, 2]
    assert ours.registry.counts["lost"] == 1
    assert here[1].store.path(EXPERIMENT).read_bytes() == before
    monkeypatch.undo()
    assert ours.step().arrived == [0, 1, 2]


def test_client_that_lost_its_disk_gets_the_starting_point_again(tmp_path: Path) -> None:
    made = config("fedas", rounds=3, epochs=1)
    here = clients_on_disk(tmp_path, 2)
    ours = served(made, LocalTransport(here), 2)
    ours.start()
    ours.step()
    here[1].store.path(EXPERIMENT).unlink()
    assert ours.step().arrived == [0]
    assert ours.step().arrived == [0, 1]


def test_site_imports_no_model_it_was_not_told_to(tmp_path: Path) -> None:
    site = clients_on_disk(tmp_path, 1)[0]
    made = config("fedavg")
    settings = {k: made[k] for k in ("method", "model", "seed", "dtype")}
    settings["model"] = {"name": "os:system"}
    asked = {"kind": "fit", "experiment": EXPERIMENT, "version": 0, "config": settings}
    answer = site.answer(Payload(asked))
    assert "start the client with --model os:system" in answer.meta["refused"]
    asked["experiment"] = "../../etc/passwd"
    asked["kind"] = "hello"
    assert "is not an experiment id" in site.answer(Payload(asked)).meta["refused"]


def test_private_state_never_travels(tmp_path: Path) -> None:
    """No leaf of `mine` equals a leaf that a FedAS client sends: the head and its name stay."""
    made = config("fedas", rounds=2, epochs=1)
    transport = LocalTransport(clients_on_disk(tmp_path, 2))
    seen: list[Payload] = []
    transport.change = lambda answer: (seen.append(answer), answer)[1]
    ours = served(made, transport, 2)
    ours.start()
    ours.step()
    fits = [a for a in seen if a.kind == "fit"]
    assert len(fits) == 2
    for answer in fits:
        names = set(tree.leaves(answer.record))
        assert names and not any("head" in name for name in names)
