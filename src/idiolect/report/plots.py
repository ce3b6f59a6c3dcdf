"""The report's figures as plain Plotly specifications (dicts), so that the page decides on colours.

A colour is written `$3` (the fourth series) or `$3@0.1` (the same, 10 % opaque); the page fills in
the light or dark palette. A trace with `band` is drawn only while that band is wanted.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from idiolect.report.load import Run
from idiolect.report.run_groups import FADED, Group, mean_by_round
from idiolect.simulation import metrics

Figure = dict[str, Any]
Event = dict[str, Any]

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SENT = "MB sent so far, up and down, all clients"
SECONDS = "seconds of computation so far, evaluation included"


def accuracy_over_rounds(groups: Sequence[Group], key: str) -> Figure | None:
    """Mean over clients and seeds; bands: the spread over seeds, and down to the bottom decile."""
    return _curves(groups, key, "round", lambda event: 1.0)


def accuracy_over_bytes(groups: Sequence[Group]) -> Figure | None:
    """The same against everything sent so far; what sends nothing is a level line."""

    def sent(event: Event) -> float:
        return (event["bytes_up"] + event["bytes_down"]) / 1e6

    quiet = [g for g in groups if not any(sent(e) for run in g.runs for e in run.events)]
    figure = _curves([g for g in groups if g not in quiet], "accuracy", SENT, sent)
    if figure is None:
        return None
    reach = max(trace["x"][-1] for trace in figure["data"])
    for group in quiet:
        _, mean = _over_rounds(group, "accuracy", "mean")
        if len(mean):
            level = short(float(mean[:, -1].mean()))
            figure["data"].append(_line(group, [0, reach], [level, level], width=1.5))
    return figure


def accuracy_over_seconds(groups: Sequence[Group]) -> Figure | None:
    return _curves(groups, "accuracy", SECONDS, lambda event: float(event["seconds"]))


def training_loss(groups: Sequence[Group]) -> Figure | None:
    """The loss that local training reports, mean over seeds."""
    data: list[Figure] = []
    for group in groups:
        seeds = [
            {e["round"]: e["train_loss"] for e in run.events if _is_number(e.get("train_loss"))}
            for run in group.runs
        ]
        rounds = sorted(set.intersection(*map(set, seeds)))
        if rounds:
            y = [_rounded(float(np.mean([seed[n] for seed in seeds]))) for n in rounds]
            data.append(_line(group, rounds, y, hovertemplate="%{y:.4g}"))
    figure = _figure(data, "round", "training loss", _hover(groups)) if data else None
    if figure:
        figure["layout"]["yaxis"]["rangemode"] = "tozero"
        figure["named_lines"] = True
    return figure


def unseen_over_rounds(groups: Sequence[Group]) -> Figure | None:
    """Clients that took no part in training, mean over them and over seeds."""
    return _means(groups, "{}_before", unseen=True)


def validation_over_rounds(groups: Sequence[Group]) -> Figure | None:
    """The score on validation data, by which `best` is chosen: mean over clients and seeds."""
    return _means(groups, "val_{}_before", unseen=False)


def _means(groups: Sequence[Group], column: str, unseen: bool) -> Figure | None:
    """A column of the client tables over rounds, for the methods that have values in it."""
    data: list[Figure] = []
    for group in groups:
        seeds = [mean_by_round(run, column.format(group.metric.name), unseen) for run in group.runs]
        rounds = sorted(set.intersection(*map(set, seeds)))
        if rounds:
            means = [np.mean([seed[n] for seed in seeds]) for n in rounds]
            data.append(_line(group, rounds, [short(group.scale * float(one)) for one in means]))
    return _scored(groups, data, "round") if data else None


def gain_curves(groups: Sequence[Group], found: Sequence[Run]) -> Figure | None:
    """Every client's gain over local training, best to worst; below zero it was harmed."""
    data: list[Figure] = []
    for group in groups:
        gains: list[tuple[float, str]] = []
        for run, _, gain in group.gains(found):
            pairs = zip(gain["per_client"], gain["clients"], strict=True)
            gains += [(group.scale * value, who(run, k)) for value, k in pairs]
        if not gains:
            continue
        gains.sort(reverse=True)
        share = [round(100 * (n + 0.5) / len(gains), 2) for n in range(len(gains))]
        trace = _line(group, share, [short(value) for value, _ in gains], width=1.5)
        unit = " points" if group.metric.share else f" {group.metric.name}"
        hover = "%{text}<br>%{y:+.3g}" + f"{unit}<extra>{plain(group.label)}</extra>"
        if group.colour != FADED:
            trace |= {"mode": "lines+markers", "marker": {"size": 5, "color": colour(group)}}
        data.append(trace | {"text": [plain(name) for _, name in gains], "hovertemplate": hover})
    if not data:
        return None
    unit = "points" if _in_percent(groups) else score_axis(groups)
    title = f"gain over local, {unit}"
    figure = _figure(data, "share of clients, %", title)
    # Small differences of errors as 0.0006, not as 600µ.
    whole = {"zeroline": True, "exponentformat": "none"}
    figure["layout"]["yaxis"] |= {**whole, **_without_outliers(data, title)}
    return figure


def local_scatter(groups: Sequence[Group], found: Sequence[Run]) -> Figure | None:
    """Each client's accuracy under local training and under the method."""
    data: list[Figure] = []
    for group in groups:
        x, y, names = [], [], []
        for run, local, _ in group.gains(found):
            theirs = metrics.client_accuracy(local.table)
            for client, (value, size) in metrics.client_accuracy(run.table).items():
                x.append(short(group.scale * theirs[client][0]))
                y.append(short(group.scale * value))
                names.append(plain(f"{who(run, client)}, {size} test samples"))
        if x:
            marker = {"size": 7, "color": colour(group), "opacity": 0.75}
            unit = " %" if group.metric.share else ""
            told = f"{group.metric.name} alone %{{x:.4g}}{unit}, here %{{y:.4g}}{unit}"
            hover = "%{text}<br>" + told + "<extra></extra>"
            data.append(
                {"type": "scatter", "mode": "markers", "name": plain(group.label), "x": x, "y": y}
                | {"text": names, "marker": marker, "hovertemplate": hover, "group": group.label}
                | {"showlegend": group.colour != FADED}
            )
    if not data:
        return None
    values = [value for trace in data for value in trace["x"] + trace["y"]]
    most = 100 if _in_percent(groups) else max(values)
    diagonal = {"type": "line", "x0": min(values), "y0": min(values), "x1": most, "y1": most}
    score = score_axis(groups)
    figure = _figure(data, f"{score}, trained alone", f"{score}, with the method")
    figure["layout"]["shapes"] = [diagonal | {"line": {"color": "$axis", "width": 1}}]
    for axis in ("xaxis", "yaxis") if _in_percent(groups) else ():
        figure["layout"][axis] |= percent_axis(values)
    return figure


def who(run: Run, client: int) -> str:
    name = run.names.get(int(client))
    return (f"{name}, client {client}" if name else f"client {client}") + f", seed {run.seed}"


def colour(group: Group) -> str:
    return f"${group.colour}"


def score_axis(groups: Sequence[Group]) -> str:
    """`accuracy, %`, or another metric's name."""
    told = " / ".join(dict.fromkeys(group.metric.name for group in groups)) or "accuracy"
    return f"{told}, %" if _in_percent(groups) else told


def _in_percent(groups: Sequence[Group]) -> bool:
    return all(group.metric.share for group in groups)


def short(value: float) -> float:
    """A score for a page, to six figures."""
    return float(f"{value:.6g}")


def percent_axis(values: Sequence[float]) -> Figure:
    """Whole tens, so that 100 has a tick where values come near it."""
    least, most = min(values), max(values)
    step = 20 if most - least > 50 else 10
    low = step * int(max(0.0, least) // step)
    high = min(100, 10 * -int(-most // 10))
    return {"range": [low - 0.01 * (high - low), high + 1], "tick0": 0, "dtick": step}


def plain(text: str) -> str:
    """Plotly reads a little HTML in names, and fields in braces in its notes."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("%{", "%&#123;")


def _curves(
    groups: Sequence[Group], key: str, title: str, amount: Callable[[Event], float]
) -> Figure | None:
    data: list[Figure] = []
    for group in groups:
        rounds, mean = _over_rounds(group, key, "mean")
        _, p10 = _over_rounds(group, key, "p10")
        if not rounds:
            continue
        x: list[float] = list(rounds)
        if title != "round":
            sums = [np.cumsum([amount(event) for event in run.events]) for run in group.runs]
            x = [round(float(np.mean([one[n] for one in sums])), 4) for n in rounds]
        centre, spread = mean.mean(0), mean.std(0, ddof=1) if len(mean) > 1 else None
        if group.colour != FADED:
            if p10.shape == mean.shape:
                data += _band(group, x, p10.mean(0), centre, "p10")
            if spread is not None:
                data += _band(group, x, centre - spread, centre + spread, "seeds")
        data.append(_line(group, x, [short(float(value)) for value in centre]))
    if not data:
        return None
    return _scored(groups, data, title)


def _scored(groups: Sequence[Group], data: list[Figure], title: str) -> Figure:
    """Lines of scores, named at their ends where there is room."""
    hover = _hover(groups) if title == "round" else "closest"
    figure = _figure(data, title, score_axis(groups), hover) | {"named_lines": True}
    if _in_percent(groups):
        # The spread over seeds is in sight, too; the page takes the wider axis while p10 is wanted.
        near = [value for trace in data if trace.get("band") != "p10" for value in trace["y"]]
        figure["layout"]["yaxis"] |= percent_axis(near)
        if any(trace.get("band") == "p10" for trace in data):
            figure["axis_with_p10"] = percent_axis([v for trace in data for v in trace["y"]])
    return figure


def _hover(groups: Sequence[Group]) -> str:
    """One note for all lines, as long as it is not longer than the figure."""
    return "x unified" if len(groups) <= 8 else "closest"


def _over_rounds(group: Group, key: str, stat: str) -> tuple[list[int], np.ndarray]:
    """The score (percent if it is a share) by seed and round, for the rounds every seed has."""
    seeds = [
        {e["round"]: e[key][stat] for e in run.events if e[key][stat] is not None}
        for run in group.runs
    ]
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return rounds, np.array([[group.scale * seed[number] for number in rounds] for seed in seeds])


def _band(
    group: Group, x: Sequence[float], low: np.ndarray, high: np.ndarray, kind: str
) -> list[Figure]:
    edges = [_line(group, x, [short(v) for v in edge.tolist()], width=0) for edge in (low, high)]
    edges[1] |= {"fill": "tonexty", "fillcolor": f"{colour(group)}@0.12"}
    for edge in edges:
        edge |= {"showlegend": False, "hoverinfo": "skip", "band": kind}
        del edge["hovertemplate"]
    return edges


def _line(
    group: Group, x: Sequence[float], y: Sequence[float | None], width: float = 2, **more: Any
) -> Figure:
    faded = group.colour == FADED
    dash = DASHES[group.dash % len(DASHES)]
    trace: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": plain(group.label),
        "legendgroup": plain(group.label),
        "group": group.label,
        "showlegend": not faded,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour(group), "width": min(width, 1) if faded else width, "dash": dash},
        "hovertemplate": "%{y:.1f} %" if group.metric.share else "%{y:.4g}",
    }
    return trace | more


def _without_outliers(data: Sequence[Figure], title: str) -> Figure:
    """One client at -100 must not press all others into a line: it is outside, and said so."""
    values = np.concatenate([trace["y"] for trace in data])
    low, high = np.percentile(values, [2, 98])
    reach = max(high, 0) - min(low, 0)
    far = (values < min(low, 0) - reach) | (values > max(high, 0) + reach)
    if not far.any() or reach == 0:
        return {}
    inside = values[~far]
    pad = 0.05 * (inside.max() - inside.min())
    text = f"{title} ({far.sum()} outside: double-click shows all)"
    limits = [float(min(inside.min(), 0) - pad), float(max(inside.max(), 0) + pad)]
    return {"range": limits, "title": {"text": text}}


def _figure(data: list[Figure], x: str, y: str, hover: str = "closest") -> Figure:
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    return {"data": data, "layout": {**axes, "hovermode": hover}}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None
