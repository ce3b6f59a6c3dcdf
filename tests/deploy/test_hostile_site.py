"""A registered site that does not keep to the rules, with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.deploy.federation_processes import events, federation, journal, needs_flower
from tests.deploy.test_faults import assert_same, replay

pytestmark = [needs_flower, pytest.mark.heavy]


def test_a_hostile_site_costs_only_itself(tmp_path: Path) -> None:
    """An unknown class, an answer without its parts, forged requests to the others, a giant, NaN:
    every round goes on with the others, and the journal says why."""
    run = tmp_path / "run"
    with federation(tmp_path) as fed:
        fed.run("keys", "keys", "keys", "--clients", "3")
        assert fed.finished("keys") == 0
        fed.server(
            *("fedavg", "--clients", "3", "--rounds", "6", "--dtype", "float64"),
            *("--model", "mlp", "--out", "run", "--timeout", "25"),
            keys=True,
        )
        fed.wait("the nodes", lambda: "listening on" in fed.out("server"))
        nodes = json.loads((run / "flower" / "nodes.json").read_text())
        others = [nodes[i]["node"] for i in ("0", "1")]
        (tmp_path / "nodes.txt").write_text(" ".join(others))
        for i in range(2):
            fed.client(i, keys=True)
        server = f"127.0.0.1:{fed.port}"
        fed.run("hostile", server, "2", module="tests.deploy.hostile_site")
        assert fed.finished() == 0, fed.story()
        told = fed.out("hostile")
    reasons = [n.get("reason", "") for n in journal(run)]
    for words in ("CustomDataClass", "no answer within 25 s", "sites ask nobody",
                  "an answer of more than", "holds NaN"):  # fmt: skip
        assert any(words in reason for reason in reasons), (words, reasons, told)
    done = events(run)[1:]
    assert len(done) == 6
    assert all({0, 1} <= set(e["arrived"]) for e in done), fed.story()
    assert max(e["seconds"] for e in done) < 70
    assert_same(run, tmp_path, replay(run, "fedavg"))
