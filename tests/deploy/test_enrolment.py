"""Who may take part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect.data import Federation
from idiolect.deploy import experiment
from idiolect.deploy.client import Client
from idiolect.deploy.enrolment import Enrolment
from idiolect.deploy.messages import Payload
from idiolect.deploy.server import FederationServer
from idiolect.deploy.terms import FederationTerms
from idiolect.errors import UserError
from tests.deploy.local_federation import (
    EXPERIMENT,
    LocalTransport,
    clients_on_disk,
    config,
    served,
    site_data,
)


def test_hello_with_nonsense_does_not_stop_the_server(tmp_path: Path) -> None:
    transport = LocalTransport(clients_on_disk(tmp_path, 2))

    def change(answer: Payload) -> Payload:
        bad = answer.kind == "hello" and answer.meta["client"] == 1
        return Payload(answer.meta | {"client": {"a": 1}, "refused": "x"}) if bad else answer

    transport.change = change
    made = config("fedavg", rounds=1)
    with pytest.raises(UserError, match="only 1 of 2 clients came"):
        served(made, transport, 2, patience=0.3)


def test_two_nodes_cannot_be_the_same_client(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    here = clients_on_disk(tmp_path, 2)
    transport = LocalTransport(here)
    transport.sites[2000] = Client(1, site_data(1), tmp_path / "impostor")
    transport.online.add(2000)
    ours = served(made, transport, 2)
    ours.enrolment._greeted = 0.0
    ours.enrolment.poll()
    ours.enrolment.poll()
    assert ours.registry.clients[1].node == 1001
    assert ours.registry.counts["refused"] == 1


def test_an_impostor_does_not_say_what_samples_the_true_client_has(tmp_path: Path) -> None:
    """It was turned away, but its kind of samples stayed, and the true client was counted out."""
    x, y = np.zeros((4, 1, 5, 5)), np.array([0, 1, 2, 0])
    odd = Federation.from_arrays([{"x_train": x, "y_train": y, "x_test": x, "y_test": y}])
    transport = LocalTransport(clients_on_disk(tmp_path, 2))
    transport.sites[2000] = Client(1, odd, tmp_path / "impostor")
    transport.online.add(2000)
    enrolment = Enrolment(FederationTerms(EXPERIMENT, 2, poll=0.001, patience=0.3), transport)
    enrolment.wait_for(2)
    assert sorted(enrolment.registry.clients) == [0, 1]
    assert enrolment.registry.clients[1].node == 1001
    assert "as another node" in enrolment.registry.notices[2000]


@pytest.mark.parametrize("says", [7, None])
def test_a_site_whose_method_computes_something_else_is_turned_away(
    says: int | None, tmp_path: Path
) -> None:
    """Also one whose library is so old that it says nothing of revisions."""
    transport = LocalTransport(clients_on_disk(tmp_path, 2))

    def change(answer: Payload) -> Payload:
        if answer.kind != "hello" or answer.meta["client"] == 0:
            return answer
        meta = {k: v for k, v in answer.meta.items() if k != "revision"}
        return Payload(meta | ({} if says is None else {"revision": says}))

    transport.change = change
    terms = FederationTerms(EXPERIMENT, 2, poll=0.001, patience=0.3)
    run = tmp_path / "run"
    experiment.plan(run, config("fedavg", rounds=1), terms)
    with pytest.raises(UserError, match="only 1 of 2 clients came"):
        experiment.run_experiment(run, transport)
    log = (run / "flower" / "server.log").read_text()
    assert f"the method has revision {says} at client 1 and 1 here: it computes something" in log
    transport.change = lambda answer: answer
    assert experiment.run_experiment(run, transport)["rounds"] == 1


def test_a_site_that_lacks_the_method_says_so_at_its_hello(tmp_path: Path) -> None:
    """As one with an older library does; it was asked in vain in every round."""
    transport = LocalTransport(clients_on_disk(tmp_path, 1))
    enrolment = Enrolment(FederationTerms(EXPERIMENT, 1, poll=0.001, patience=0.3), transport)
    enrolment.dispatcher.settings = {"method": {"name": "fedavg", "of_tomorrow": 1}}
    with pytest.raises(UserError, match="only 0 of 1 clients came"):
        enrolment.wait_for(1)
    assert "the client says: " in enrolment.registry.notices[1000]
    assert "of_tomorrow" in enrolment.registry.notices[1000]


def test_key_decides_which_client_a_node_is(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    here = clients_on_disk(tmp_path, 2)
    with pytest.raises(UserError, match="only 1 of 2 clients came"):
        served(made, LocalTransport(here), 2, nodes={"1000": 0, "1001": 5}, patience=0.2)


def test_clients_with_other_samples_are_turned_away(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    x, y = np.zeros((4, 1, 5, 5)), np.array([0, 1, 2, 0])
    odd = Federation.from_arrays([{"x_train": x, "y_train": y, "x_test": x, "y_test": y}])
    transport = LocalTransport([*clients_on_disk(tmp_path, 1), Client(1, odd, tmp_path / "odd")])
    with pytest.raises(UserError, match="only 1 of 2"):
        served(made, transport, 2, patience=0.2)


def test_first_client_does_not_decide_what_samples_are(tmp_path: Path) -> None:
    """A site with other samples is turned away, even if it says hello before all others."""
    made = config("fedavg", rounds=1)
    x, y = np.zeros((4, 1, 5, 5)), np.array([0, 1, 2, 0])
    odd = Federation.from_arrays([{"x_train": x, "y_train": y, "x_test": x, "y_test": y}])
    sites = [Client(0, odd, tmp_path / "odd"), *clients_on_disk(tmp_path, 3)[1:]]
    transport = LocalTransport(sites)
    terms = FederationTerms(EXPERIMENT, 3, poll=0.001, patience=5.0)
    enrolment = Enrolment(terms, transport)
    enrolment.wait_for(2)
    assert enrolment.kind is not None and enrolment.kind.shape == (1, 8, 8)
    assert FederationServer(made, enrolment).step().arrived == [1, 2]
    assert enrolment.registry.counts["refused"] == 1
    assert "samples of shape" in enrolment.registry.notices[1000]


@pytest.mark.parametrize("first", [True, False])
def test_absurd_number_of_samples_counts_for_nothing(first: bool, tmp_path: Path) -> None:
    """A liar must not weigh more than all others together, whenever it says hello."""
    made = config("fedavg", rounds=1)
    transport = LocalTransport(clients_on_disk(tmp_path, 3))
    liar = 0 if first else 2

    def change(answer: Payload) -> Payload:
        lies = answer.kind == "hello" and answer.meta["client"] == liar
        sizes = {"train": 2_000_000_000, "val": 0, "test": 11}
        return Payload(answer.meta | {"sizes": sizes}) if lies else answer

    transport.change = change
    enrolment = Enrolment(FederationTerms(EXPERIMENT, 3, poll=0.001, patience=5.0), transport)
    enrolment.wait_for(2)
    ours = FederationServer(made, enrolment)
    assert ours.step().arrived == sorted({0, 1, 2} - {liar})
    assert "states 2000000000 training samples" in enrolment.registry.notices[1000 + liar]


def test_a_site_that_never_answers_does_not_cost_every_round_its_limit(tmp_path: Path) -> None:
    made = config("fedavg", rounds=13)
    transport = LocalTransport(clients_on_disk(tmp_path, 3))
    ours = served(made, transport, 3, timeout=0.2)
    told: list[dict[str, Any]] = []
    note = ours.registry.note
    ours.registry.note = lambda what, **about: (  # type: ignore[method-assign]
        told.append(about) if what == "lost" else None,
        note(what, **about),
    )
    transport.hold = lambda answer: answer.kind != "hello" and answer.meta["client"] == 2
    for _ in range(12):
        ours.enrolment._greeted, ours.enrolment._not_before = 0.0, {}
        assert ours.step().arrived == [0, 1]
    # After the second wait in vain it rests for a round, then for three, then for seven.
    assert [(n["kind"], n["version"]) for n in told] == [
        ("fit", 0), ("fit", 1), ("evaluate", 3), ("evaluate", 7)
    ]  # fmt: skip
    transport.hold = lambda answer: False
    ours.registry.clients[2].rests_until = 0
    ours.enrolment._greeted, ours.enrolment._not_before = 0.0, {}
    ours.enrolment.poll()
    assert ours.step().arrived == [0, 1, 2] and ours.registry.clients[2].waits == 0


def test_client_that_does_not_answer_is_given_up_and_may_come_back(tmp_path: Path) -> None:
    made = config("fedavg", rounds=3)
    transport = LocalTransport(clients_on_disk(tmp_path, 2))
    ours = served(made, transport, 2, timeout=0.3)
    transport.hold = lambda answer: answer.meta["client"] == 1
    first = ours.step()
    assert (first.started, first.arrived) == ([0, 1], [0])
    assert ours.registry.clients[1].status == "gone"
    ours.enrolment._greeted, ours.enrolment._not_before = 0.0, {}
    ours.enrolment.poll()
    (hello,) = ours.registry.pending_of("hello")
    assert hello.client == 1  # what the journal says of it is said of the client
    transport.hold = lambda answer: False
    ours.enrolment._greeted, ours.enrolment._not_before = 0.0, {}
    ours.enrolment.poll()
    assert ours.step().arrived == [0, 1]
