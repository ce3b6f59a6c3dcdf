"""What a restarted server knows of its clients."""

from __future__ import annotations

from idiolect.deploy.client_registry import ClientEntry, ClientRegistry


def test_checkpoints_of_earlier_versions_stay_readable() -> None:
    """The keys are fixed: `--resume` continues runs that an earlier version began."""
    about = {"name": "ward", "node": 7, "sizes": {"train": 5}, "fresh": True, "since": 3}
    old = {"seats": {"1": about}, "counts": {"lost": 2}}
    registry = ClientRegistry()
    registry.restore(old)
    entry = registry.clients[1]
    assert (entry.status, entry.since, entry.recall) == ("gone", 3, True)
    assert registry.counts["lost"] == 2

    assert registry.state() == {"seats": {"1": about | {"kept": False}}, "counts": {"lost": 2}}


def test_a_client_that_came_before_the_restore_keeps_its_place() -> None:
    registry = ClientRegistry()
    registry.clients[1] = ClientEntry(1, "ward", 9, {"train": 5})
    about = {"name": "ward", "node": 7, "sizes": {"train": 5}, "fresh": False, "since": -1}
    registry.restore({"seats": {"1": about}, "counts": {}})
    entry = registry.clients[1]
    assert (entry.node, entry.status, entry.recall) == (9, "idle", False)
