"""The comparison table: one row per method (and setting), mean over seeds."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from idiolect.core.task import ACCURACY, Metric, metric_named
from idiolect.core.text import one_line
from idiolect.report.load import Run
from idiolect.runs import config as settings
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
        "validation data, it may lie below accuracy",
    ),
    ("pooled", "pooled %", "weighted by test size, last round"),
    ("p10", "p10 %", "bottom decile of clients"),
    ("worst", "worst %", "worst client"),
    ("gain", "gain over local", "percentage points, mean over clients"),
    ("harmed", "harmed %", "share of clients worse off than with local training alone"),
    ("mb_up", "MB up", "all clients, all rounds"),
    ("mb_down", "MB down", ""),
    ("samples", "samples", "seen in local training, with repeats: all clients, all rounds"),
    ("steps", "steps", "gradient steps of local training: all clients, all rounds"),
    ("lr", "lr", "client learning rate; – where the method has none"),
    ("seconds_per_round", "s/round", "evaluation included"),
)

# What names from elsewhere must not do in a document, a table of a program or on a page
MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*[]|~$"} | {"<": "&lt;", "&": "&amp;"})
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "%_&#{}"}
    | {"$": r"\textdollar{}", "\\": r"\textbackslash{}", "^": r"\textasciicircum{}"}
    | {"~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}"}
    | {"±": r"$\pm$", "–": "--", '"': r"\textquotedbl{}"}
)
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")

COLOURS = 7  # that people can tell apart
LOCAL, FADED = COLOURS, COLOURS + 1  # greys
LABELLED = 3  # settings written out in a row's label


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seed."""

    label: str
    runs: list[Run]
    colour: int = 0  # of the page's palette; LOCAL and FADED are greys
    dash: int = 0  # tells lines of one colour apart

    @property
    def method(self) -> str:
        return self.runs[0].method

    @cached_property
    def accuracy(self) -> float | None:
        """Mean over clients in the last round, mean over seeds: of the task's metric."""
        return _mean([run.summary["accuracy"]["last"]["mean"] for run in self.runs])

    @cached_property
    def metric(self) -> Metric:
        return metrics.metric_of(self.runs[0].table)

    @property
    def goodness(self) -> float:
        """By which groups are ranked, the larger the better."""
        return -np.inf if self.accuracy is None else self.metric.sign * self.accuracy

    @property
    def scale(self) -> int:
        """Times a score: percent where the metric is a share."""
        return 100 if self.metric.share else 1

    def gains(self, found: Sequence[Run]) -> Iterator[tuple[Run, Run, dict[str, Any]]]:
        """Each run, the `local` run on the same clients, and what the clients win over it."""
        for run in self.runs:
            local = reference(run, found)
            gain = metrics.gain(run.table, local.table) if local else None
            if local and gain:
                yield run, local, gain


def groups(found: Sequence[Run]) -> list[Group]:
    """Runs by setting, local first; a method with several settings is called by what differs."""
    by_setting: dict[str, list[Run]] = {}
    for run in found:
        by_setting.setdefault(settings.digest({**run.config, "seed": 0}), []).append(run)
    sets = sorted(by_setting.values(), key=lambda members: members[0].method != "local")
    made = [
        Group(_label(m[0], [o[0] for o in sets]), sorted(m, key=lambda run: run.seed)) for m in sets
    ]
    return _coloured(made)


def _coloured(made: Sequence[Group]) -> list[Group]:
    """A colour each for as many methods as people can tell apart, the best ones; the others are
    thin grey lines. `local` has a grey of its own, with another dash for each of its settings."""
    others = [n for n, group in enumerate(made) if group.method != "local"]
    alone = [n for n, group in enumerate(made) if group.method == "local"]
    best = sorted(others, key=lambda n: -made[n].goodness)[:COLOURS]
    shown = [n for n in others if n in best]
    return [
        replace(group, colour=LOCAL, dash=alone.index(n))
        if n in alone
        else replace(group, colour=shown.index(n) if n in shown else FADED)
        for n, group in enumerate(made)
    ]


def _label(run: Run, others: Sequence[Run]) -> str:
    """`fedprox mu=0.1`; the folder's name where settings differ in too much to be written out."""
    alike = [one for one in others if one.method == run.method]
    varied = settings.differences([one.config for one in alike])
    if len(varied) > LABELLED:
        return one_line(f"{run.method} ({run.path.name})")
    at = alike.index(run)
    values = [f"{key.removeprefix('method.')}={v[at]}" for key, v in varied.items()]
    return one_line(" ".join([run.method, *values]))


def reference(run: Run, found: Sequence[Run]) -> Run | None:
    """The `local` run on the same clients: same data, split and seed. Of several, the one that has
    most settings in common with this run."""
    if run.method == "local":
        return None

    def in_common(other: Run) -> int:
        mine = run.config["method"]
        return sum(key in mine and mine[key] == v for key, v in other.config["method"].items())

    def same_clients(other: Run) -> bool:
        return all(other.config[key] == run.config[key] for key in ("data", "split", "seed"))

    alone = [other for other in found if other.method == "local"]
    return max(filter(same_clients, alone), key=in_common, default=None)


def rows(found: Sequence[Run]) -> list[Row]:
    """The table as plain values: fractions, megabytes, seconds; None where not known."""
    return [_row(group, found) for group in groups(found)]


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
        "diverged": any(run.summary["diverged"] for run in group.runs),
        "accuracy": _mean(accuracies),
        "accuracy_std": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "protocol": _mean(quoted),
        "protocol_std": float(np.std(quoted, ddof=1)) if len(quoted) > 1 else None,
        "best": _mean([stats["mean"] for stats in best]),
        "pooled": _mean([stats["pooled"] for stats in last]),
        "p10": _mean([stats["p10"] for stats in last]),
        "worst": _mean([stats["worst"] for stats in last]),
        "gain": _mean([gain["mean"] for gain in gains]),
        "harmed": _mean([gain["harmed"] for gain in gains]),
        "mb_up": _mean([run.summary["bytes_up"] / 1e6 for run in group.runs]),
        "mb_down": _mean([run.summary["bytes_down"] / 1e6 for run in group.runs]),
        "samples": _mean([run.summary.get("samples") for run in group.runs]),
        "steps": _mean([run.summary.get("steps") for run in group.runs]),
        "lr": group.runs[0].config["method"].get("lr"),
        "seconds_per_round": _mean(paces),
    }


def cells(row: Row) -> list[str]:
    """A row as people read it: percent, points, MB."""
    name = row["method"] + ("" if row["finished"] else f" (unfinished, round {row['rounds']})")
    name += " (diverged)" if row["diverged"] else ""
    share = metric_named(row.get("metric", "accuracy")).share
    gain = "–" if row["gain"] is None else f"{100 * row['gain']:+.1f}"
    if not share and row["gain"] is not None:
        gain = f"{row['gain']:+.3g}"
    return [
        name,
        *(_with_spread(row, key, share) for key in ("accuracy", "protocol")),
        *(score(row[key], share) for key in ("best", "pooled", "p10", "worst")),
        gain,
        _percent(row["harmed"], digits=0),
        *(f"{row[key]:.1f}" for key in ("mb_up", "mb_down")),
        *(_short(row[key]) for key in ("samples", "steps")),
        "–" if row["lr"] is None else f"{row['lr']}",
        f"{row['seconds_per_round']:.3g}",
    ]


def markdown(table: Sequence[Row]) -> str:
    head = headings(table)
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *map(cells, table)]
    escaped = [[cell.translate(MARKDOWN) for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def latex(table: Sequence[Row]) -> str:
    """A booktabs table."""
    named = headings(table)
    lines = [" & ".join(cell.translate(LATEX) for cell in cells(row)) + r" \\" for row in table]
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


def best_values(table: Sequence[Row], *keys: str) -> dict[str, float]:
    """The best value of each of these columns, where one is known."""
    known = {key: [row[key] for row in table if row[key] is not None] for key in keys}
    lower = any(metric_named(row.get("metric", "accuracy")).lower for row in table)
    best = {key: min if lower and key != "gain" else max for key in keys}
    return {key: best[key](values) for key, values in known.items() if values}


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


def score(value: float | None, share: bool) -> str:
    """Percent, or the plain number of a metric that is no share."""
    return _percent(value) if share or value is None else f"{value:.4g}"


def _with_spread(row: Row, key: str, share: bool) -> str:
    spread = row[f"{key}_std"]
    told = "" if spread is None else f" ± {100 * spread:.1f}" if share else f" ± {spread:.2g}"
    return score(row[key], share) + told


def headings(table: Sequence[Row]) -> list[str]:
    """Of the columns, with the metric that these rows have."""
    names = list(dict.fromkeys(row.get("metric", "accuracy") for row in table)) or ["accuracy"]
    told = [heading for _, heading, _ in COLUMNS]
    if names == ["accuracy"]:
        return told
    metric = metric_named(names[0])
    unit = " %" if metric.share else ""
    arrow = " (lower is better)" if metric.lower else ""
    shown = [one if one == "harmed %" else one.replace(" %", unit) for one in told]
    return [one.replace("accuracy", " / ".join(names) + arrow) for one in shown]


def _metric_of(runs: Sequence[Run]) -> Row:
    metric = metrics.metric_of(runs[0].table)
    return {} if metric is ACCURACY else {"metric": metric.name}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
