"""Messages that get lost on the way are noticed and asked for again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from idiolect.deploy.messages import Payload
from idiolect.deploy.transport import Reply
from tests.deploy.local_federation import (
    LocalTransport,
    assert_same_private,
    assert_same_server,
    clients_on_disk,
    config,
    served,
    simulated,
)


class LossyTransport(LocalTransport):
    """Loses the first messages of a kind to client 2: the request, or the answer to it."""

    lost_kind, losses, how = "", 1, "request"

    def send(self, outgoing: Sequence[tuple[int, Payload]], ttl: float) -> list[str | None]:
        ids = super().send(outgoing, ttl)
        for (node, payload), message in zip(outgoing, ids, strict=True):
            if node == 1002 and payload.kind == self.lost_kind and self.losses:
                self.losses -= 1
                assert message is not None
                del self.answers[message]
                if self.how == "mislaid":
                    self.answers[message] = Reply(message, 1, None, "gone", mislaid=True)
        return ids


@pytest.mark.parametrize("how", ["request", "mislaid"])
@pytest.mark.parametrize("kind", ["fit", "evaluate"])
def test_lost_message_is_asked_again(kind: str, how: str, tmp_path: Path) -> None:
    """The round goes on after `repeat` seconds, not after the time limit; nothing is done twice."""
    made = config("fedas", rounds=2, epochs=1)
    here = clients_on_disk(tmp_path, 3)
    transport = LossyTransport(here)
    transport.lost_kind, transport.how = kind, how
    ours = served(made, transport, 3, repeat=0.2, timeout=60.0)
    ours.start()
    done = [ours.step(), ours.step()]
    assert [r.arrived for r in done] == [[0, 1, 2]] * 2
    assert sum(r.seconds for r in done) < 20
    assert ours.registry.counts["asked again"] >= 1
    assert ours.registry.counts["lost"] == 0 and not ours.registry.pending
    theirs = simulated(made, 3)
    for _ in range(2):
        theirs.step()
    assert_same_server(ours, theirs)
    for site in here:
        assert_same_private(site, theirs)


def test_lost_hello_is_asked_again(tmp_path: Path) -> None:
    transport = LossyTransport(clients_on_disk(tmp_path, 3))
    transport.lost_kind = "hello"
    ours = served(config("fedavg", rounds=1), transport, 3, repeat=0.1, patience=20.0)
    assert sorted(ours.registry.clients) == [0, 1, 2]


def test_messages_that_are_lost_again_and_again_are_given_up_at_the_limit(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    transport = LossyTransport(clients_on_disk(tmp_path, 3))
    transport.lost_kind, transport.losses = "fit", 1000
    ours = served(made, transport, 3, repeat=0.05, timeout=0.5)
    done = ours.step()
    assert done.arrived == [0, 1] and done.seconds < 5
    assert ours.registry.clients[2].status in ("gone", "idle")


def test_work_that_takes_long_is_not_asked_for_twice(tmp_path: Path) -> None:
    """Once the server has seen how long an answer takes, it does not take slow for lost."""
    made = config("fedavg", rounds=3)
    transport = LocalTransport(clients_on_disk(tmp_path, 2))
    ours = served(made, transport, 2, repeat=0.5, timeout=60.0)
    sent = 0.0

    def slow(answer: Payload) -> bool:
        return (
            answer.kind == "fit" and time.monotonic() < sent + 1.2
        )  # long against the delays of a busy machine

    transport.hold = slow
    asked = []
    for _ in range(3):
        sent = time.monotonic()
        assert ours.step().arrived == [0, 1]
        asked.append(ours.registry.counts["asked again"])
    assert asked == [2, 2, 2]  # in the first round nothing is known yet
