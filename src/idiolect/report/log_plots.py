"""What methods logged, and who answered late: heat maps whose rows are clients by id."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idiolect.core.text import shortened
from idiolect.report.load import Run
from idiolect.report.plots import Figure, plain

LARGEST_MATRIX = 200  # cells a side; larger ones are averaged down
NAMED_TICKS = 20  # classes or clients whose names stand beside the picture of a split
FEW_TICKS = 12  # clients or rounds that all have a tick; of more, a tick is a whole number anyway
MOST_CELLS = 120_000  # numbers of one log in a page: they decide how many rounds its slider has


def matrix(values: Mapping[int, Any], run: Run | None = None) -> tuple[Figure, str] | None:
    """What a method logged under one name: squares with a slider over rounds, a vector as one
    picture over all rounds, with the late arrivals of `run` marked. Absent clients are blank."""
    numbers = sorted(values)
    arrays = {number: values[number].double().numpy() for number in numbers}
    last = arrays[numbers[-1]]
    if last.size == 0 or last.ndim > 2:
        return None
    if last.ndim == 2 and min(last.shape) > 1:
        return _squares({n: a for n, a in arrays.items() if a.shape == last.shape})
    same = [number for number in numbers if arrays[number].size == last.size]
    rows = np.stack([arrays[number].reshape(-1) for number in same], axis=1)
    told = f"rounds {same[0]} to {same[-1]}"
    if last.size == 1:
        line: Figure = {"type": "scatter", "mode": "lines", "x": same, "y": rounded(rows[0])}
        line |= {"line": {"color": "$0", "width": 2}, "name": "", "hovertemplate": "%{y:.4g}"}
        layout: Figure = {"xaxis": {"title": {"text": "round"}}, "hovermode": "x unified"}
        return {"data": [line], "layout": layout}, told
    figure = heat_map(rows, same, range(last.size), "round")
    told += "; one row per client"
    if late := _late(run, figure["data"][0]) if run is not None else None:
        figure["data"].append(late)
        told += "; × arrived late"
    return figure, told


def _late(run: Run, heat: Figure) -> Figure | None:
    """A mark on the cell of every client and round whose work arrived late."""
    table = run.table
    late = table["staleness"] > 0 if "staleness" in table else np.zeros(0, bool)
    if not late.any():
        return None
    # A cell that stands for several clients or rounds carries the mark of any of them.
    cells = [
        np.asarray(heat[axis])[np.searchsorted(heat[axis], table[of][late], "right") - 1]
        for axis, of in (("x", "round"), ("y", "client"))
    ]
    places = np.unique(np.stack(cells), axis=1)
    line = {"color": "$1", "width": 1.5}
    marks: Figure = {"type": "scatter", "mode": "markers", "showlegend": False, "hoverinfo": "skip"}
    marks["marker"] = {"symbol": "x-thin", "size": 6, "line": line}
    return marks | {"x": places[0].tolist(), "y": places[1].tolist()}


def split(run: Run) -> tuple[Figure, str] | None:
    """Training samples, client by class; nothing where the run did not record them."""
    about = run.class_counts
    if about is None or not about["clients"] or not about["classes"]:
        return None
    size = f"{about['clients']} clients, {about['classes']} classes"
    if about.get("counts") is None:
        return {}, f"{size}: too many, so they were not recorded"
    cells = np.array(about["counts"], float)
    figure = heat_map(cells, range(about["classes"]), range(about["clients"]), "class")
    heat = figure["data"][0]
    unit = "training samples" + (", mean" if max(cells.shape) > LARGEST_MATRIX else "")
    heat["hovertemplate"] = f"client %{{y}}, class %{{x}}: %{{z:.4g}} {unit}<extra></extra>"
    most = max((value for row in heat["z"] for value in row), default=0)
    heat |= {"zmin": 0, "zmax": most or 1}  # the lightest is none, not the fewest
    if run.names and about["clients"] <= NAMED_TICKS:
        ids = range(about["clients"])
        called = [plain(shortened(run.names.get(k) or str(k), 40)) for k in ids]
        figure["layout"]["yaxis"] |= {"tickvals": list(ids), "ticktext": called}
    names = [plain(shortened(name, 40)) for name in about.get("class_names", ())]
    if len(names) == about["classes"] <= NAMED_TICKS:
        # As ticks, not as values: two classes may have one name.
        figure["layout"]["xaxis"] |= {"tickvals": list(range(len(names))), "ticktext": names}
    return figure, size


def staleness(run: Run) -> Figure | None:
    """How many rounds late each client's work arrived; blank where none arrived."""
    table = run.table
    if not len(table.get("round", ())) or "staleness" not in table:
        return None
    late = table["staleness"].astype(float)
    if not (late > 0).any():
        return None
    rounds, columns = np.unique(table["round"], return_inverse=True)
    clients, rows = np.unique(table["client"], return_inverse=True)
    cells = np.full((len(clients), len(rounds)), np.nan)
    cells[rows, columns] = np.where(late >= 0, late, np.nan)
    return heat_map(cells, rounds.tolist(), clients.tolist(), "round")


def _squares(arrays: Mapping[int, np.ndarray]) -> tuple[Figure, str]:
    numbers = sorted(arrays)
    last = smaller(arrays[numbers[-1]])
    most = max(1, MOST_CELLS // last.size)
    at = np.unique(np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(int))
    shown = [numbers[n] for n in at]
    side = range(arrays[numbers[-1]].shape[0])
    square = last.shape[0] == last.shape[1]
    across = "client" if square else "column"
    figure = heat_map(arrays[shown[-1]], range(arrays[shown[-1]].shape[1]), side, across)
    frames = [[rounded(row) for row in smaller(arrays[n])] for n in shown]
    figure |= {"rounds": shown, "frames": frames}
    if square:
        figure["order"] = similar_first(last)
    return figure, "rows and columns are clients" if square else "rows are clients"


def similar_first(values: np.ndarray) -> list[int]:
    """Rows so ordered that similar ones are neighbours: the leaves of average linkage."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import pdist

    known = np.where(np.isfinite(values), values, 0.0)
    np.fill_diagonal(known, 0.0)  # what a client gives itself says nothing about others
    if len(known) < 3:
        return list(range(len(known)))
    scaled = known / max(float(np.abs(known).max()), 1e-300)
    apart = pdist(scaled + scaled.T)
    return [int(n) for n in leaves_list(linkage(apart, "average", optimal_ordering=True))]


def heat_map(cells: np.ndarray, columns: Sequence[int], rows: Sequence[int], across: str) -> Figure:
    """A picture of numbers; `columns` and `rows` are the rounds or clients they stand for."""
    data = {
        "type": "heatmap",
        "z": [rounded(row) for row in smaller(cells)],
        "x": fewer(columns),
        "y": fewer(rows),
        "colorscale": "$scale",
        "colorbar": {"thickness": 10, "outlinewidth": 0},
        "hoverongaps": False,
        "hovertemplate": f"client %{{y}}, {across} %{{x}}: %{{z:.4g}}<extra></extra>",
    }
    title: Figure = {"xaxis": {"title": {"text": across}}, "yaxis": {"title": {"text": "client"}}}
    title["yaxis"] |= {"autorange": "reversed"}
    for axis, numbers in (("xaxis", columns), ("yaxis", rows)):
        if len(numbers) and max(numbers) - min(numbers) < FEW_TICKS:
            title[axis] |= {"tick0": 0, "dtick": 1}  # there is no client 0.5
    return {"data": [data], "layout": {**title, "hovermode": "closest"}}


def smaller(values: np.ndarray) -> np.ndarray:
    for axis in (0, 1):
        if (length := values.shape[axis]) > LARGEST_MATRIX:
            parts = np.split(values, _edges(length), axis)
            # Blank where nobody of the part took part.
            means = [np.ma.masked_invalid(part).mean(axis).filled(np.nan) for part in parts]
            values = np.stack(means, axis)
    return values


def fewer(labels: Sequence[int]) -> list[int]:
    """The first of the labels that `smaller` put together."""
    if len(labels) <= LARGEST_MATRIX:
        return [int(label) for label in labels]
    return [int(labels[n]) for n in (0, *_edges(len(labels)))]


def _edges(length: int) -> np.ndarray:
    return np.linspace(0, length, LARGEST_MATRIX + 1).astype(int)[1:-1]


def rounded(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
