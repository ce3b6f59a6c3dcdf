"""The report's figures as plain Plotly specifications (dicts), so that the page decides on colours.

A colour is written `$3` (the fourth series) or `$3@0.1` (the same, 10 % opaque); the page fills in
the light or dark palette.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from idiolect.report.load import Run
from idiolect.report.tables import Group
from idiolect.simulation import metrics

Figure = dict[str, Any]

COLOURS, GREY = 7, 7
DASHES = ("solid", "dash", "dot", "dashdot")
LARGEST_MATRIX = 200  # cells a side; larger ones are averaged down


def accuracy_over_rounds(groups: Sequence[Group], key: str) -> Figure | None:
    """Mean over clients per round; the band reaches down to the bottom decile."""
    data: list[Figure] = []
    for group in groups:
        rounds, mean = _curve(group, key, "mean")
        _, p10 = _curve(group, key, "p10")
        if not rounds:
            continue
        data.append(_line(group, rounds, p10, band=True, width=0))
        data.append(_line(group, rounds, mean, fill="tonexty", fillcolor=f"{colour(group)}@0.10"))
    return _figure(data, "round", _score_axis(groups), hover="x unified") if data else None


def gain_curves(groups: Sequence[Group], found: Sequence[Run]) -> Figure | None:
    """Every client's gain over local training, best to worst; below zero it was harmed."""
    data: list[Figure] = []
    for group in groups:
        gains: list[tuple[float, str]] = []
        for run, _, gain in group.gains(found):
            pairs = zip(gain["per_client"], gain["clients"], strict=True)
            gains += [
                (group.scale * value, f"{_plain(run.names[k])}, seed {run.seed}")
                for value, k in pairs
            ]
        if not gains:
            continue
        gains.sort(reverse=True)
        share = [round(100 * (n + 0.5) / len(gains), 2) for n in range(len(gains))]
        trace = _line(group, share, [round(value, 2) for value, _ in gains], width=1.5)
        hover = "%{text}<br>%{y:+.1f} points<extra>" + _plain(group.label) + "</extra>"
        trace |= {"mode": "lines+markers", "marker": {"size": 5, "color": colour(group)}}
        data.append(trace | {"text": [who for _, who in gains], "hovertemplate": hover})
    if not data:
        return None
    figure = _figure(
        data,
        "share of clients, %",
        "gain over local, points" if _in_percent(groups) else "gain over local",
    )
    figure["layout"]["yaxis"]["zeroline"] = True
    return figure


def local_scatter(groups: Sequence[Group], found: Sequence[Run]) -> Figure | None:
    """Each client's accuracy under local training and under the method."""
    data: list[Figure] = []
    for group in groups:
        x, y, who = [], [], []
        for run, local, _ in group.gains(found):
            theirs = metrics.client_accuracy(local.table)
            for client, (value, size) in metrics.client_accuracy(run.table).items():
                x.append(_short(theirs[client][0], group.scale))
                y.append(_short(value, group.scale))
                who.append(f"{_plain(run.names[client])}, seed {run.seed}, {size} test samples")
        if x:
            marker = {"size": 7, "color": colour(group), "opacity": 0.75}
            hover = "%{text}<br>local %{x:.1f}, here %{y:.1f}<extra></extra>"
            data.append(
                {"type": "scatter", "mode": "markers", "name": _plain(group.label), "x": x, "y": y}
                | {"text": who, "marker": marker, "hovertemplate": hover}
            )
    if not data:
        return None
    least = min(min(trace["x"] + trace["y"]) for trace in data)
    most = 100 if _in_percent(groups) else max(max(trace["x"] + trace["y"]) for trace in data)
    diagonal = {"type": "line", "x0": least, "y0": least, "x1": most, "y1": most}
    axis = _score_axis(groups)
    figure = _figure(
        data,
        axis.replace(",", " with local training,") if "," in axis else f"{axis}, local training",
        axis.replace(",", " with the method,") if "," in axis else f"{axis}, the method",
    )
    figure["layout"]["shapes"] = [diagonal | {"line": {"color": "$axis", "width": 1}}]
    return figure


def bytes_and_accuracy(groups: Sequence[Group]) -> Figure | None:
    """Mean accuracy against everything sent so far; what sends nothing is a level line."""
    data: list[Figure] = []
    silent: list[tuple[Group, float]] = []
    for group in groups:
        run = group.runs[0]
        sent = np.cumsum([event["bytes_up"] + event["bytes_down"] for event in run.events]) / 1e6
        points = [
            (round(float(mb), 4), _short(event["accuracy"]["mean"], group.scale, 3))
            for mb, event in zip(sent, run.events, strict=True)
            if event["accuracy"]["mean"] is not None
        ]
        if points and points[-1][0] == 0:
            silent.append((group, points[-1][1]))
        elif points:
            data.append(_line(group, [mb for mb, _ in points], [value for _, value in points]))
    if not data:
        return None
    reach = max(trace["x"][-1] for trace in data)
    for group, value in silent:
        trace = _line(group, [0, reach], [value, value], width=1.5)
        trace["line"]["dash"] = "dash"
        data.append(trace)
    return _figure(data, "MB sent so far, up and down, all clients", _score_axis(groups))


def matrix(values: dict[int, Any]) -> tuple[Figure, str] | None:
    """What a method logged under one name: a square as it last was, a vector over all rounds."""
    numbers = sorted(values)
    arrays = {number: values[number].double().numpy() for number in numbers}
    last = arrays[numbers[-1]]
    if last.size == 0:
        return None
    if last.ndim == 2 and min(last.shape) > 1:
        shown, note = last, f"round {numbers[-1]}; rows and columns are clients"
        titles = ("client", "client")
    elif last.size == 1:
        same = [number for number in numbers if arrays[number].size == 1]
        y = [_rounded(arrays[number].reshape(-1)[0]) for number in same]
        return _figure([_line(None, same, y)], "round", "", "x unified"), "over rounds"
    elif last.ndim <= 2:
        same = [number for number in numbers if arrays[number].size == last.size]
        shown = np.stack([arrays[number].reshape(-1) for number in same], axis=1)
        note, titles = f"rounds {same[0]} to {same[-1]}; one row per client", ("round", "client")
    else:
        return None
    heat = {
        "type": "heatmap",
        "z": [[_rounded(cell) for cell in row] for row in smaller(shown)],
        "colorscale": "$scale",
        "colorbar": {"thickness": 10, "outlinewidth": 0},
        "hovertemplate": titles[1] + " %{y}, " + titles[0] + " %{x}: %{z:.4g}<extra></extra>",
    }
    figure = _figure([heat], *titles)
    figure["layout"]["yaxis"] |= {"autorange": "reversed"}
    return figure, note


def colour(group: Group) -> str:
    return f"${GREY if group.method == 'local' else group.number % COLOURS}"


def _curve(group: Group, key: str, stat: str) -> tuple[list[int], list[float]]:
    """Mean over seeds, for the rounds every seed has."""
    seeds = [
        {e["round"]: e[key][stat] for e in run.events if e[key][stat] is not None}
        for run in group.runs
    ]
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    values = [float(np.mean([seed[number] for seed in seeds])) for number in rounds]
    return rounds, [_short(value, group.scale, 3) for value in values]


def _line(
    group: Group | None,
    x: Sequence[float],
    y: Sequence[float | None],
    width: float = 2,
    band: bool = False,
    **more: Any,
) -> Figure:
    label, line = (group.label, colour(group)) if group else ("", "$0")
    dash = DASHES[group.number // COLOURS % len(DASHES)] if group else "solid"
    trace: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": _plain(label),
        "legendgroup": label,
        "x": list(x),
        "y": list(y),
        "line": {"color": line, "width": width, "dash": dash},
        "hovertemplate": "%{y:.1f}",
    }
    if band:
        trace |= {"showlegend": False, "hoverinfo": "skip", "band": True}
        del trace["hovertemplate"]
    return trace | more


def _figure(data: list[Figure], x: str, y: str, hover: str = "closest") -> Figure:
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    return {"data": data, "layout": {**axes, "hovermode": hover}}


def _in_percent(groups: Sequence[Group]) -> bool:
    return all(group.scale == 100 for group in groups)


def _score_axis(groups: Sequence[Group]) -> str:
    """`accuracy, %`, or another metric's name."""
    names = dict.fromkeys(metrics.metric_of(group.runs[0].table).name for group in groups)
    told = " / ".join(names) or "accuracy"
    return f"{told}, %" if _in_percent(groups) else told


def _short(value: float, scale: int, digits: int = 2) -> float:
    """A score for a page: percent to some digits, other numbers to six figures."""
    return round(scale * value, digits) if scale == 100 else float(f"{value:.6g}")


def _plain(text: str) -> str:
    """Plotly reads a little HTML in names, and fields in braces in its notes."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("%{", "%&#123;")


def smaller(values: np.ndarray) -> np.ndarray:
    for axis in (0, 1):
        if (length := values.shape[axis]) > LARGEST_MATRIX:
            edges = np.linspace(0, length, LARGEST_MATRIX + 1).astype(int)[1:-1]
            parts = np.split(values, edges, axis)
            # Blank where nobody of the part took part.
            means = [np.ma.masked_invalid(part).mean(axis).filled(np.nan) for part in parts]
            values = np.stack(means, axis)
    return values


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None
