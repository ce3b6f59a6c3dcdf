"""Sites behind lines that are slow or lose messages, with real processes: a round ends at its limit
at the latest, what was lost is asked for again or given up, and the journal says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.bad_link import BadLink
from tests.deploy.federation_processes import events, federation, journal, needs_flower

pytestmark = [needs_flower, pytest.mark.heavy]
SLACK = 40.0  # seconds; the machine may be busy
SITES, PER_SITE = 32, 650  # megabytes: a site takes 450, and others need memory too


def test_a_site_behind_a_slow_line(tmp_path: Path) -> None:
    """4 kB a second: a model of 500 kB is not there within the minute that an answer may take."""
    run, limit = tmp_path / "run", 60.0
    with federation(tmp_path) as fed, BadLink(fed.port, rate=4000) as link:
        fed.server(
            *("fedavg", "--clients", "3", "--rounds", "4", "--model", "mlp"),
            *("--set=model.hidden=2000", "--out", "run"),
            *("--timeout", str(limit), "--repeat", "30", "--patience", "200"),
        )
        for i in range(2):
            fed.client(i)
        fed.client(2, port=link.port)
        assert fed.finished() == 0, fed.story()
    done = events(run)
    assert [e["round"] for e in done] == [0, 1, 2, 3, 4], fed.story()
    assert all({0, 1} <= set(e["arrived"]) for e in done[1:]), fed.story()
    for event in done:  # training, then a test: each ends at the limit
        asked = [n for n in journal(run, "lost") if n["version"] == event["round"]]
        assert event["seconds"] < (1 + len(asked)) * limit + SLACK, fed.story()
    lost = [n for n in journal(run, "lost") if n["kind"] != "hello"]
    assert lost and {(n["client"], n["reason"]) for n in lost} == {(2, "no answer within 60 s")}
    assert {n["client"] for n in journal(run, "asked again")} == {2}


def free_memory() -> int:
    """Megabytes (Linux)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if "MemAvailable" in line) // 1000


def test_lost_messages_among_many_sites(tmp_path: Path) -> None:
    """Flower has handed a test and a round's work over to a site, and the line broke: both are
    asked for again, long before their limit, and no site misses a round."""
    sites = min(SITES, free_memory() // PER_SITE)
    run, limit, unlucky = tmp_path / "run", 900.0, sites // 2
    with federation(tmp_path) as fed, BadLink(fed.port, losing=(2, 4)) as link:
        fed.server(
            *("fedavg", "--clients", str(sites), "--rounds", "2", "--model", "mlp"),
            *("--set=method.epochs=1", "--out", "run"),
            *("--timeout", str(limit), "--repeat", "60"),
        )
        for i in range(sites):
            fed.client(i, **({"port": link.port} if i == unlucky else {}))
        fed.wait("round 0", lambda: events(run), 1800)
        assert fed.finished(seconds=limit) == 0, fed.story()
    done, again = events(run), journal(run, "asked again")
    asked = [(n["client"], n["kind"], n["reason"]) for n in again]
    took = [round(e["seconds"]) for e in done]
    print(f"{sites} sites: rounds of {took} s; {link.lost} messages lost; asked again: {asked}")
    assert link.lost == 2, link.pulled
    assert all(e["arrived"] == list(range(sites)) for e in done[1:]), fed.story()
    assert all(e["seconds"] < limit for e in done), fed.story()
    assert [n["client"] for n in again].count(unlucky) >= 2, again
    assert not [n for n in journal(run, "lost") if n["kind"] != "hello"], journal(run)
