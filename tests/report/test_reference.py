"""Which run of `local` a run is compared with: the one that has most settings in common with it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from idiolect import report
from idiolect.report import run_groups
from tests.report.test_story import add_run

N = 6


def pairs(folder: Path, *settings: dict[str, Any]) -> list[report.Run]:
    """local and fedavg at every setting; fedavg is 0.1 better than local of the same setting."""
    for n, changes in enumerate(settings):
        for name, lift in (("local", 0.0), ("fedavg", 0.1)):
            changed = {**changes, "method": {"name": name, **changes.get("method", {})}}
            start = torch.linspace(0.1, 0.2, N) + lift + 0.2 * n
            add_run(folder / f"{n}-{name}", start, **changed)
    return report.find([folder])


def compared(found: list[report.Run]) -> dict[str, str | None]:
    """Of every fedavg run the folder of its reference."""
    chosen = {
        run.path.name: run_groups.reference(run, found) for run in found if run.method == "fedavg"
    }
    return {name: other.path.name if other else None for name, other in chosen.items()}


@pytest.mark.parametrize(
    "settings",
    [
        [{"rounds": 1}, {"rounds": 3}],
        [{"participation": {"rate": 0.5}}, {"participation": {"rate": 1.0}}],
        [{"stragglers": {"count": 1}}, {"stragglers": {"count": 0}}],
        [{"model": {"name": "cnn_small", "hidden": h}} for h in (16, 64)],
        [{"clock": {"window": 2}}, {"clock": None}],
        [{"method": {"epochs": 1}}, {"method": {"epochs": 2}}],
        # Rounds say more than everything else, what is outside the method more than what is in it.
        [{"rounds": 1, "dtype": "float64"}, {"rounds": 3}],
    ],
    ids=["rounds", "participation", "stragglers", "model", "clock", "method", "two"],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_sweep_is_compared_point_by_point(
    settings: list[dict[str, Any]], turned: bool, tmp_path: Path
) -> None:
    found = pairs(tmp_path, *(settings[::-1] if turned else settings))
    assert compared(found) == {"0-fedavg": "0-local", "1-fedavg": "1-local"}
    gains = [row["gain"] for row in report.rows(found) if row["gain"] is not None]
    assert len(gains) == 2 and all(0 < gain <= 0.1 for gain in gains)


def test_rounds_count_most_and_the_method_least(tmp_path: Path) -> None:
    one = torch.linspace(0.1, 0.2, N)
    near = {"epochs": 2, "batch_size": 16}
    add_run(tmp_path / "fedavg", one, rounds=3, method={"name": "fedavg", **near})
    add_run(tmp_path / "a", one, rounds=2, method={"name": "local", **near})
    assert compared(report.find([tmp_path])) == {"fedavg": "a"}  # better than none
    model = {"name": "cnn_small", "hidden": 16}
    add_run(tmp_path / "b", one, rounds=3, model=model, method={"name": "local", **near})
    assert compared(report.find([tmp_path])) == {"fedavg": "b"}
    add_run(tmp_path / "c", one, rounds=3, method={"name": "local"}, engine="loop")
    assert compared(report.find([tmp_path])) == {"fedavg": "c"}


def test_other_clients_are_no_reference(tmp_path: Path) -> None:
    one = torch.linspace(0.1, 0.2, N)
    add_run(tmp_path / "fedavg", one, method={"name": "fedavg"})
    add_run(tmp_path / "alpha", one, method={"name": "local"}, split={"alpha": 0.7})
    add_run(
        tmp_path / "rows",
        one,
        method={"name": "local"},
        data={"name": "digits", "rows": [300, 100]},
    )
    add_run(tmp_path / "seed", one, method={"name": "local"}, seed=1)
    found = report.find([tmp_path])
    assert compared(found) == {"fedavg": None}
    [row] = [row for row in report.rows(found) if row["method"].startswith("fedavg")]
    assert row["gain"] is None and row["harmed"] is None
