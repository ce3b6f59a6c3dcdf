"""Recipes of one's own, on files of one's own."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.papers.cells import cells
from idiolect.papers.results import Results
from idiolect.runs.execute import execute_together
from tests.papers.tiny import TINY, tiny


def table(folder: Path, seed: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(seed)
    with (folder / "readings.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["site", "a", "b", "kind"])
        for row in range(120):
            a, b = rng.normal(size=2)
            lines.writerow([f"s{row % 4}", f"{a:.4f}", f"{b:.4f}", "up" if a > b else "down"])
    return (folder / "readings.csv").resolve()


def test_what_is_no_accuracy_is_refused(tmp_path: Path) -> None:
    """An error would be shown in percent, with the largest in bold."""
    data = {"name": str(table(tmp_path / "one", 0)), "client": "site", "label": "a"}
    data |= {"task": "regression"}
    base = {k: v for k, v in TINY["base"].items() if k != "split"} | {"data": data}
    rows, columns = [{"id": "fedavg", "method": "fedavg"}], [{"id": "all"}]
    made = tiny(base=base, rows=rows, columns=columns, paper_values={}, claims=[], quick={})
    found = cells(made, seeds=[0])
    assert not found[0].broken
    execute_together([found[0].config], [Path("runs/0")])
    with pytest.raises(UserError, match="recipes compare accuracies; this is rmse"):
        Results(Path("r"), made, False).add(found, [Path("runs/0")])


def test_finished_cells_are_found_again(tmp_path: Path) -> None:
    """Records leave out this machine's folders, but files of one name in two folders stay two."""

    def recipe(file: Path) -> Any:
        data = {"name": str(file), "client": "site", "label": "kind"}
        base = {k: v for k, v in TINY["base"].items() if k != "split"} | {"data": data}
        rows, columns = [{"id": "fedavg", "method": "fedavg"}], [{"id": "all"}]
        return tiny(base=base, rows=rows, columns=columns, paper_values={}, claims=[], quick={})

    one, other = (recipe(table(tmp_path / name, k)) for k, name in enumerate(("one", "other")))
    results = Results(Path("r"), one, False)
    found = cells(one, seeds=[0])
    execute_together([found[0].config], [Path("runs/0")])
    for _ in range(2):  # the second is the same run again
        results.add(found, [Path("runs/0")])
        again = Results(Path("r"), one, False)
        assert again.of(found[0]) is not None and len(again.records) == 1
    assert again.of(cells(other, seeds=[0])[0]) is None
    assert str(tmp_path) not in (again.folder / "runs.jsonl").read_text()
