"""Comparisons from Python: methods on your own federation, as a table and as run directories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from idiolect import methods as registry
from idiolect.core import files
from idiolect.core.method import Method
from idiolect.core.task import metric_named
from idiolect.data import Federation
from idiolect.report.load import Run, load
from idiolect.report.tables import Row, markdown, rows, score
from idiolect.runs.fair_work import LOCAL_WORK, shared_work
from idiolect.runs.from_python import simulate

Given = Method | str | Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """Runs of several methods on the same clients."""

    runs: list[Run]

    @property
    def rows(self) -> list[Row]:
        """The table as plain values, a row per method: pandas.DataFrame(c.rows)."""
        return rows(self.runs)

    def report(self, out: str | Path) -> Path:
        """Write the self-contained page."""
        from idiolect.report.page import page

        path = Path(out)
        files.write_text(path, page(self.runs, None))
        return path

    def __repr__(self) -> str:
        told = [f"{row['method']} {_score(row)}" for row in self.rows]
        return f"Compared({len(self.runs)} runs: {', '.join(told)})"

    def _repr_markdown_(self) -> str:
        return markdown(self.rows)


def compare(
    methods: Sequence[Given],
    federation: Federation,
    model: nn.Module,
    *,
    out: str | Path,
    seeds: Sequence[int] = (0,),
    as_published: bool = False,
    rounds: int | None = None,
    **options: Any,
) -> Compared:
    """Run methods on the same clients, each into `OUT/METHOD-seedK`. Names and mappings get the
    same local work (`lr`, `epochs`, `steps` and `batch_size` may be among the options) unless
    `as_published`; a `Method` object is taken as it is.

    >>> compare(["local", "fedavg", "fedas"], federation, MyModule(), out="runs/mine", lr=0.1)
    """
    work = {key: options.pop(key) for key in LOCAL_WORK if key in options}
    made = [_method(one, work, as_published) for one in methods]
    length = rounds or max(one.rounds_default for one in made)
    found = []
    for seed in seeds:
        for one in made:
            place = Path(out) / f"{one.name}-seed{seed}"
            simulate(one, federation, model, out=place, rounds=length, seed=seed, **options)
            found.append(load(place))
    return Compared(found)


def _method(given: Given, work: Mapping[str, Any], as_published: bool) -> Method:
    if isinstance(given, Method):
        return given
    section = {"name": given} if isinstance(given, str) else dict(given)
    name = section["name"]
    known = registry.REGISTRY[name].__dataclass_fields__ if name in registry.REGISTRY else {}
    section = {**{k: v for k, v in work.items() if k in known}, **section}
    if known and not as_published:
        section = {**shared_work(name, {"method": section}, ()), **section}
    return registry.build(section)


def _score(row: Row) -> str:
    metric = metric_named(row.get("metric", "accuracy"))
    told = score(row["accuracy"], metric.share)
    return f"{told} %" if metric.share else f"{metric.name} {told}"
