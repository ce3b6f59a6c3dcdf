"""Comparisons and sweeps from Python: methods on your own federation, as a table and as run
directories."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from torch import nn

from idiolect import methods as registry
from idiolect.core import shown
from idiolect.core.method import Method
from idiolect.core.text import shortened
from idiolect.data import Federation
from idiolect.errors import UserError, did_you_mean
from idiolect.report import write_report
from idiolect.report.load import Run, load
from idiolect.report.run_groups import Group, groups
from idiolect.report.tables import Row, cells, columns, headings, markdown, rows
from idiolect.runs.fair_work import LOCAL_WORK, shared_work
from idiolect.runs.from_python import simulate
from idiolect.simulation.simulate import OPTIONS

Given = Method | str | Mapping[str, Any]
MOST_TOLD = 6  # methods in the one line of a comparison


@dataclass(frozen=True)
class Compared:
    """Runs of several methods on the same clients."""

    runs: list[Run]

    @property
    def rows(self) -> list[Row]:
        """The table as plain values, a row per method: pandas.DataFrame(c.rows)."""
        return rows(self.runs)

    def frame(self) -> Any:
        """The same as a pandas DataFrame."""
        return shown.frame(self.rows)

    def report(self, out: str | Path) -> Path:
        """Write the self-contained page."""
        return write_report(self.runs, out)

    def __repr__(self) -> str:
        found = groups(self.runs)
        told = [f"{one.label} {_score(one)}" for one in found[:MOST_TOLD]]
        more = [f"{len(found) - MOST_TOLD} more"] if found[MOST_TOLD:] else []
        return f"Compared({len(self.runs)} runs: {', '.join([*told, *more])})"

    def _repr_html_(self) -> str:
        table = self.rows
        there = columns(table)
        return shown.html_table(headings(table), (cells(row, there) for row in table))

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
    if isinstance(methods, str | Mapping | Method) or not isinstance(methods, Iterable):
        raise UserError(
            f'compare takes a list of methods, such as ["local", "fedavg"], got '
            f"{shortened(repr(methods), 40)}"
        )
    work = {key: options.pop(key) for key in LOCAL_WORK if key in options}
    made = [method_of(one, work, as_published) for one in methods]
    length = rounds or max(one.rounds_default for one in made)
    found = []
    for seed in seeds:
        for one in made:
            place = Path(out) / f"{one.name}-seed{seed}"
            simulate(one, federation, model, out=place, rounds=length, seed=seed, **options)
            found.append(load(place))
    return Compared(found)


def sweep(
    method: Given,
    federation: Federation,
    model: nn.Module,
    over: Mapping[str, Sequence[Any]],
    *,
    out: str | Path,
    seeds: Sequence[int] = (0,),
    **options: Any,
) -> Compared:
    """Run one method with every combination of the values in `over`, each into a directory of its
    own: settings of the method, or options of `simulate` such as `participation`.

    >>> sweep("fedprox", federation, MyModule(), {"mu": [0.01, 0.1]}, out="runs/mu", rounds=20)
    """
    first = method if isinstance(method, Method) else registry.build(method)
    settings = {known.name for known in fields(first)}
    for name, values in over.items():
        if name not in settings and name not in OPTIONS:
            raise did_you_mean(name, [*settings, *OPTIONS], f"setting of {first.name} or option")
        if name in options or isinstance(values, str) or not len(values):
            raise UserError(f"sweep: over has {name}; give it once, as a list of values")
    points = [dict(zip(over, values, strict=True)) for values in product(*over.values())]
    # A wrong value is told before the first run.
    todo = [(replace(first, **_part(point, settings)), point) for point in points]
    found = []
    for seed in seeds:
        for one, point in todo:
            told = [f"{name}{value}".replace("/", "_") for name, value in point.items()]
            place = Path(out) / "-".join([one.name or type(one).__name__, *told, f"seed{seed}"])
            how = {name: value for name, value in point.items() if name not in settings}
            simulate(one, federation, model, out=place, seed=seed, **{**options, **how})
            found.append(load(place))
    return Compared(found)


def _part(point: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in point.items() if name in names}


def method_of(given: Given, work: Mapping[str, Any], as_published: bool = False) -> Method:
    """With this local work, where the method knows its settings and was not given others."""
    if isinstance(given, Method):
        return given
    section = {"name": given} if isinstance(given, str) else dict(given)
    name = section["name"]
    known = registry.REGISTRY[name].__dataclass_fields__ if name in registry.REGISTRY else {}
    section = {**{k: v for k, v in work.items() if k in known}, **section}
    if known and not as_published:
        section = {**shared_work(name, {"method": section}, ()), **section}
    return registry.build(section)


def _score(group: Group) -> str:
    if group.accuracy is None:
        return shown.NOTHING
    return f"{100 * group.accuracy:.1f} %" if group.metric.share else f"{group.accuracy:.4g}"
