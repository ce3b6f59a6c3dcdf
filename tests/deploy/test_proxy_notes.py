"""What the proxy and the experiment tell one another."""

from __future__ import annotations

from pathlib import Path

from idiolect.deploy.proxy_notes import ProxyNotes


def test_notes_reach_the_other_process(tmp_path: Path) -> None:
    proxy, experiment = ProxyNotes(tmp_path), ProxyNotes(tmp_path)
    assert proxy.allowed() == 0
    experiment.allow(500)
    experiment.allow(100)  # an earlier, larger request may still be answered
    assert proxy.allowed() == 500
    assert list(experiment.turned_away()) == []
    proxy.turn_away("m1", 77, "too large")
    assert list(experiment.turned_away()) == [("m1", 77, "too large")]
    assert list(experiment.turned_away()) == []
    # A restarted experiment does not hear of what was before it.
    assert list(ProxyNotes(tmp_path).turned_away()) == []
