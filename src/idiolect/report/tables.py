"""The comparison table: one row per method (and setting), mean over seeds."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from idiolect.core.task import ACCURACY, metric_named
from idiolect.report.load import Run
from idiolect.report.run_groups import Group, groups, mean_by_round, mean_of_known
from idiolect.report.significance import standings
from idiolect.simulation import metrics

Row = dict[str, Any]

# key, heading, what it is
COLUMNS = (
    ("method", "method", ""),
    ("accuracy", "accuracy %", "mean over clients, last round; ± over seeds"),
    ("protocol", "protocol %", "the number of the chosen protocol (cli.md); ± over seeds"),
    (
        "best",
        "best %",
        "in the round that is best on validation data (on test data if there is none); chosen on "
        "validation data, it may lie below that of the last round",
    ),
    ("pooled", "pooled %", "weighted by test size, last round"),
    ("p10", "p10 %", "bottom decile of clients"),
    ("worst", "worst %", "worst client"),
    ("validation", "validation %", "mean over clients on their validation samples, last round"),
    ("unseen", "unseen %", "mean over clients that took no part in training, last round"),
    ("gain", "gain over local", ""),  # its unit is that of the metric
    ("harmed", "harmed %", "share of clients worse off than with local training alone"),
    ("gain_ft", "gain over fedavg_ft", ""),
    ("rounds_to", "rounds to target", ""),
    ("mb_to", "MB to target", "up and down, all clients"),
    ("seconds_to", "s to target", "evaluation included"),
    ("mb_up", "MB up", "all clients, all rounds"),
    ("mb_down", "MB down", ""),
    ("samples", "samples", "seen in local training, with repeats: all clients, all rounds"),
    ("steps", "steps", "gradient steps of local training: all clients, all rounds"),
    ("lr", "lr", "client learning rate; – where the method has none"),
    ("seconds_per_round", "s/round", "evaluation included"),
)

GAINS = {"gain": "local", "gain_ft": "fedavg_ft"}  # over whom
TO_TARGET = ("rounds_to", "mb_to", "seconds_to")  # columns of a table with a target
# columns that a table without such samples, clients, runs or target leaves out
IF_ANY = ("validation", "unseen", "gain_ft", *TO_TARGET)

# What names from elsewhere must not do in a document, a table of a program or on a page
MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*[]|~$"} | {"<": "&lt;", "&": "&amp;"})
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "%_&#{}"}
    | {"$": r"\textdollar{}", "\\": r"\textbackslash{}", "^": r"\textasciicircum{}"}
    | {"~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}"}
    | {"±": r"$\pm$", "–": "--", '"': r"\textquotedbl{}"}
)
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def columns(table: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Those of COLUMNS that this table has."""
    left_out = {key for key in IF_ANY if all(row.get(key) is None for row in table)}
    if any(row.get("target") is not None for row in table):
        left_out -= set(TO_TARGET)  # that nobody reached it is worth a column
    return [column for column in COLUMNS if column[0] not in left_out]


def rows(found: Sequence[Run], target: float | None = None) -> list[Row]:
    """The table as plain values: fractions, megabytes, seconds; None where not known. `target`: a
    score, of which the table says when it was reached."""
    sets = groups(found)
    stand = standings(sets)
    made = [_row(group, found) | {"standing": stand.get(group.label)} for group in sets]
    if target is not None:
        made = [row | to_target(group, target) for row, group in zip(made, sets, strict=True)]
    return made


def _row(group: Group, found: Sequence[Run]) -> Row:
    last = [run.summary["accuracy"]["last"] for run in group.runs]
    best = [run.summary["accuracy"]["best"] for run in group.runs]
    gains = [gain for _, _, gain in group.gains(found)]
    accuracies = [stats["mean"] for stats in last if stats["mean"] is not None]
    numbers = [run.summary["protocol"]["value"] for run in group.runs]
    quoted = [value for value in numbers if value is not None]
    paces = [run.summary["seconds"] / max(1, run.summary["rounds"]) for run in group.runs]
    return {
        "method": group.label,
        **_metric_of(group.runs),
        "seeds": [run.seed for run in group.runs],
        "finished": all(run.finished for run in group.runs),
        "rounds": min(run.summary["rounds"] for run in group.runs),
        "diverged": group.diverged,
        "accuracy": mean_of_known(accuracies),
        "accuracy_std": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "protocol": mean_of_known(quoted),
        "protocol_std": float(np.std(quoted, ddof=1)) if len(quoted) > 1 else None,
        "best": mean_of_known([stats["mean"] for stats in best]),
        "pooled": mean_of_known([stats["pooled"] for stats in last]),
        "p10": mean_of_known([stats["p10"] for stats in last]),
        "worst": mean_of_known([stats["worst"] for stats in last]),
        "validation": _last(group, "val_{}_before", unseen=False),
        "unseen": _last(group, "{}_before", unseen=True),
        "gain": mean_of_known([gain["mean"] for gain in gains]),
        "harmed": mean_of_known([gain["harmed"] for gain in gains]),
        "gain_ft": mean_of_known([g["mean"] for _, _, g in group.gains(found, GAINS["gain_ft"])]),
        "mb_up": mean_of_known([run.summary["bytes_up"] / 1e6 for run in group.runs]),
        "mb_down": mean_of_known([run.summary["bytes_down"] / 1e6 for run in group.runs]),
        "samples": mean_of_known([run.summary.get("samples") for run in group.runs]),
        "steps": mean_of_known([run.summary.get("steps") for run in group.runs]),
        "lr": group.runs[0].config["method"].get("lr"),
        "seconds_per_round": mean_of_known(paces),
    }


def to_target(group: Group, target: float) -> Row:
    """When the mean over clients was first as good as the target, and what it took until then; mean
    over seeds, None unless all reached it."""
    metric, reached = group.metric, []
    for run in group.runs:
        sent = seconds = 0.0
        for event in run.events:
            sent += (event["bytes_up"] + event["bytes_down"]) / 1e6
            seconds += event["seconds"]
            score = event["accuracy"]["mean"]
            if score is not None and metric.sign * (score - target) >= 0:
                reached.append((event["round"], sent, seconds))
                break
    all_did = len(reached) == len(group.runs)
    means = np.mean(reached, axis=0).tolist() if reached and all_did else [None] * len(TO_TARGET)
    return {"target": target, "reached": len(reached), **dict(zip(TO_TARGET, means, strict=True))}


def _last(group: Group, column: str, unseen: bool) -> float | None:
    """The mean over these clients in the last round that has values, and over seeds."""
    series = [mean_by_round(run, column.format(group.metric.name), unseen) for run in group.runs]
    return mean_of_known([means[max(means)] for means in series if means])


def cells(row: Row, shown: Sequence[tuple[str, str, str]]) -> list[str]:
    """A row as people read it: percent, points, MB; of these columns."""
    name = row["method"] + ("" if row["finished"] else f" (unfinished, round {row['rounds']})")
    share = metric_named(row.get("metric", "accuracy")).share
    scores = ("best", "pooled", "p10", "worst", "validation", "unseen")
    texts = {
        "method": name + (" (diverged)" if row["diverged"] else ""),
        **{key: _with_spread(row, key, share) for key in ("accuracy", "protocol")},
        **{key: score(row[key], share) for key in scores},
        **{key: _gain(row[key], share) for key in GAINS},
        "harmed": _percent(row["harmed"], digits=0),
        **{key: f"{row[key]:.1f}" for key in ("mb_up", "mb_down")},
        **{key: _short(row[key]) for key in ("samples", "steps")},
        "lr": "–" if row["lr"] is None else f"{row['lr']}",
        "seconds_per_round": f"{row['seconds_per_round']:.3g}",
        **{key: _brief(row.get(key)) for key in TO_TARGET},
    }
    if row.get("reached") and row["rounds_to"] is None:
        texts["rounds_to"] = f"{row['reached']} of {len(row['seeds'])} seeds"
    return [texts[key] for key, _, _ in shown]


def is_bold(row: Row, key: str) -> bool:
    """Only the column that was tested can have bold cells."""
    return key == "accuracy" and row.get("standing") in ("best", "equal")


def _formatted(table: Sequence[Row], escapes: dict[int, str], bold: str) -> list[list[str]]:
    """The cells of all rows for a document; `bold` has a place for the text."""
    shown = columns(table)
    return [
        [
            bold.format(text.translate(escapes)) if is_bold(row, key) else text.translate(escapes)
            for (key, _, _), text in zip(shown, cells(row, shown), strict=True)
        ]
        for row in table
    ]


def markdown(table: Sequence[Row]) -> str:
    head = [cell.translate(MARKDOWN) for cell in headings(table)]
    lines = [head, ["---"] + ["--:"] * (len(head) - 1)]
    lines += _formatted(table, MARKDOWN, "**{}**")
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(table: Sequence[Row]) -> str:
    """A booktabs table."""
    named = headings(table)
    lines = [" & ".join(row) + r" \\" for row in _formatted(table, LATEX, r"\textbf{{{}}}")]
    head = " & ".join(heading.translate(LATEX) for heading in named) + r" \\"
    columns = "l" + "r" * (len(named) - 1)
    above = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*above, *lines, r"\bottomrule", r"\end{tabular}", ""])


def as_csv(table: Sequence[Row]) -> str:
    """Full precision, for programs: fractions, MB and seconds."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    for row in table:
        name = row["method"]
        # A spreadsheet would compute a name that begins like a formula.
        safe = f"'{name}" if name.lstrip().startswith(FORMULA) else name
        writer.writerow({**row, "method": safe, "seeds": " ".join(map(str, row["seeds"]))})
    return text.getvalue()


def _gain(value: float | None, share: bool) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.1f}" if share else f"{value:+.3g}"


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def _short(count: float | None) -> str:
    """A large number in three digits: 950, 12.3k, 4.56M."""
    if count is None:
        return "–"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"


def _brief(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}".removesuffix(".0")


def score(value: float | None, share: bool) -> str:
    """Percent, or the plain number of a metric that is no share."""
    return _percent(value) if share or value is None else f"{value:.4g}"


def _with_spread(row: Row, key: str, share: bool) -> str:
    spread = row[f"{key}_std"]
    told = "" if spread is None else f" ± {100 * spread:.1f}" if share else f" ± {spread:.2g}"
    return score(row[key], share) + told


def headings(table: Sequence[Row]) -> list[str]:
    """Of the columns, with the metric and the target that these rows have."""
    names = _metrics(table)
    told = [heading.replace("target", _goal(table)) for _, heading, _ in columns(table)]
    if names == ["accuracy"]:
        return told
    metric = metric_named(names[0])
    unit = " %" if metric.share else ""
    arrow = " (lower is better)" if metric.lower else ""
    shown = [one if one == "harmed %" else one.replace(" %", unit) for one in told]
    return [one.replace("accuracy", " / ".join(names) + arrow) for one in shown]


def meanings(table: Sequence[Row]) -> list[str]:
    """What the columns hold, with the unit of the metric that these rows have."""
    metric = metric_named(_metrics(table)[0])
    unit = "percentage points" if metric.share else f"in the unit of {metric.name}"
    told = dict.fromkeys(GAINS, f"{unit}, mean over clients; above zero they win")
    way = "at most" if metric.lower else "at least"
    told["rounds_to"] = f"first tested round with {way} {_goal(table)}, mean over clients"
    return [told.get(key, what) for key, _, what in columns(table)]


def _goal(table: Sequence[Row]) -> str:
    """The target as the table has scores: `85 %`."""
    target = table[0].get("target") if table else None
    if target is None:
        return "target"
    share = metric_named(_metrics(table)[0]).share
    return f"{100 * target:g} %" if share else f"{target:g}"


def _metrics(table: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.get("metric", "accuracy") for row in table)) or ["accuracy"]


def _metric_of(runs: Sequence[Run]) -> Row:
    metric = metrics.metric_of(runs[0].table)
    return {} if metric is ACCURACY else {"metric": metric.name}
