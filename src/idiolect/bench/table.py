"""How long one whole column of a paper's table takes: all its methods, three seeds each."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from idiolect.bench.job import Row, chosen
from idiolect.errors import UserError
from idiolect.papers import recipe as recipes
from idiolect.papers.campaign import Campaign
from idiolect.papers.recipe import Recipe
from idiolect.papers.runner import RecipeProgress

# FedAS, Table 3: CIFAR-10 over 20 clients by Dirichlet(0.1), everybody in every round.
RECIPE, COLUMN = "fedas-table3", "b0.1-p1"
QUICK = {
    "data": {"name": "digits"},
    "split": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
    "model": "mlp",
    "rounds": 1,
}


def table(
    device: str,
    quick: bool,
    dtype: str = "float32",
    only: str = "",
    jobs: int = 1,
    results: Path | None = None,
) -> Iterator[Row]:
    """A row per method: seconds of its three seeds, which run in one stack, and the number the
    recipe shows; the last row is the whole column by the clock, from the first process to the
    last result, `jobs` processes side by side. `results` is a folder for the recipe's results."""
    recipe = _small(recipes.read(RECIPE)) if quick else recipes.read(RECIPE)
    names = chosen(only, [row.id for row in recipe.rows if not row.extra], "method of this table")
    names = names[:2] if quick and not only else names
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idiolect-bench-")))
        campaign = Campaign(
            [recipe],
            results or folder / "results",
            folder / "runs",
            only=[f"{name}/{COLUMN}" for name in names],
            how={"device": device, "dtype": dtype},
        )
        if any(part.found.done for part in campaign.parts):
            raise UserError(
                f"{results} has runs of this table already; give --results a new folder"
            )
        began = time.perf_counter()
        outcome = campaign.run(jobs, None, RecipeProgress())
        seconds = time.perf_counter() - began
        if outcome.failed:
            label, reason = outcome.failed[0]
            raise UserError(f"{label}: {reason}")
        if outcome.interrupted:
            raise UserError("stopped before the whole column was there")
        campaign.write(lambda line: None)
    (part,) = campaign.parts
    common: Row = {"seeds": len(recipe.seeds), "dtype": dtype, "jobs": jobs}
    for name in names:
        own = [cell for cell in part.found.done if (cell.row, cell.column) == (name, COLUMN)]
        records = [part.results.of(cell) for cell in own]
        values = part.values[name, COLUMN, recipe.metric_of(name, COLUMN)]
        together = sum(record.seconds for record in records if record is not None)  # a part each
        row: Row = {"method": name, **common, "seconds": together}
        yield row | {"accuracy": statistics.mean(values.values())}
    yield {"method": "all", **common, "seconds": seconds}


def _small(recipe: Recipe) -> Recipe:
    """Embedded data and a small network: does it run?"""
    return replace(recipe, base={**recipe.base, **QUICK}, seeds=(0, 1))
