"""The table of a recipe: the paper's number beside ours in every cell, in four formats."""

import csv
import io
import re
import statistics
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from idiolect.papers import rivals
from idiolect.papers.cells import VAL_SHARE, planned_seeds, trial_seeds
from idiolect.papers.numbers import unit
from idiolect.papers.recipe import PAPERS, Recipe, RecipeColumn, RecipeRow
from idiolect.papers.tuned_rows import Tuned, states
from idiolect.papers.verdicts import Seedings, Values

QUICK = "QUICK: shrunk settings, not the paper's; for trying out only"
States = Mapping[tuple[str, str], str]  # why a cell is empty: "no data", "failed", "cannot run"

LARGE = 1e6  # numbers from here on are written as 1.45e+12


@dataclass(frozen=True)
class TableCell:
    """Ours and the paper's number of one row and column."""

    row: str
    column: str
    metric: str
    seeds: tuple[int, ...]
    mean: float | None
    std: float | None
    paper: tuple[float, float | None] | None
    state: str
    exists: bool
    diverged: int = 0  # of its seeds
    best: bool = False
    tuned: str = ""  # what was chosen, where settings are

    def ours(self, digits: int) -> str:
        if not self.exists:
            return ""
        if self.mean is None:
            return self.state or "–"
        count = digits > 1 and self.mean.is_integer() and not self.std
        form = ".3g" if abs(self.mean) >= LARGE else f".{0 if count else digits}f"
        text = f"{self.mean:{form}}"
        return text if self.std is None else f"{text} ± {self.std:{form}}"

    def theirs(self) -> str:
        if self.paper is None:
            return "–" if self.exists else ""
        mean, std = self.paper
        return f"{mean:g}" if std is None else f"{mean:g} ± {std:g}"


class PaperTable:
    """All cells of a recipe, ready to be shown."""

    def __init__(
        self,
        recipe: Recipe,
        values: Values,
        why: States | None = None,
        quick: bool = False,
        tuned: Tuned | None = None,
        diverged: Seedings | None = None,
    ) -> None:
        self.recipe, self.quick, self.tuned, self.values = recipe, quick, tuned or {}, values
        self.diverged = diverged or {}
        self.why: States = {**states(self.tuned), **(why or {})}
        size = recipe.size
        self.rows = [r for r in recipe.rows if not quick or not size.rows or r.id in size.rows]
        self.columns = [
            c for c in recipe.columns if not quick or not size.columns or c.id in size.columns
        ]
        self.cells = {
            (row.id, column.id): self._cell(row, column, row.id in best)
            for column in self.columns
            for best in [self._best(column)]
            for row in self.rows
        }

    @property
    def caption(self) -> str:
        run = {seed for cell in self.cells.values() for seed in cell.seeds}
        seeds = [seed for seed in self._planned if seed in run] or sorted(run)
        told = f"{PAPERS[self.recipe.paper]}, {self.recipe.title}. "
        if not seeds:
            told += "Nothing was run yet; the numbers are the paper's."
        else:
            told += f"Ours: mean ± standard deviation over seeds ({_spans(seeds)}); "
            told += "below it the paper's number."
        return f"{QUICK}. {told}" if self.quick else told

    @property
    def remarks(self) -> list[str]:
        """Lines under the table: which rows are tuned, on what, and what was chosen; which rows
        are above the paper's winner."""
        tuned = {row for row, _ in self.tuned}
        told = [self._tuned_line(row) for row in self.rows if row.id in tuned]
        return told if self.quick else [*told, *rivals.lines(self.recipe, self.values)]

    def digits(self, metric: str) -> int:
        return 1 if unit(metric) == "%" else 3

    def ours(self, cell: TableCell, mark: Callable[[str], str] = str) -> str:
        text = cell.ours(self.digits(cell.metric))
        if cell.mean is None:
            return text
        notes = [f"n={len(cell.seeds)}"] if set(cell.seeds) != set(self._planned) else []
        notes += [f"{cell.diverged} diverged"] if cell.diverged else []
        text = mark(text) if cell.best else text
        return f"{text} ({', '.join(notes)})" if notes else text

    @property
    def _planned(self) -> Sequence[int]:
        return planned_seeds(self.recipe, self.quick)

    def lines(self) -> Iterator[tuple[RecipeRow, list[TableCell]]]:
        """The paper's rows, then those that are not in it."""
        for row in sorted(self.rows, key=lambda row: row.extra):
            yield row, [self.cells[row.id, column.id] for column in self.columns]

    def _tuned_line(self, row: RecipeRow) -> str:
        seeds = trial_seeds(self.recipe, self.quick)
        held = f"{100 * VAL_SHARE:g} % of every client's training samples"
        held += f", seed{'s' if len(seeds) > 1 else ''} {_spans(seeds)}"
        grid = "; ".join(f"{key} from {', '.join(map(str, v))}" for key, v in row.tune.items())
        found: dict[str, list[str]] = {}
        for column in self.columns:
            if one := self.tuned.get((row.id, column.id)):
                found.setdefault(one.line, []).append(column.label)
        each = [f"{', '.join(columns)}: {line}" for line, columns in found.items()]
        return (
            f"{row.label} is tuned in every column on validation samples ({held}): "
            f"{grid}. Chosen: {'; '.join(each)}."
        )

    def _cell(self, row: RecipeRow, column: RecipeColumn, best: bool) -> TableCell:
        place, metric = (row.id, column.id), self.recipe.metric_of(row.id, column.id)
        found = self.values.get((*place, metric), {})
        tuned, diverged = self.tuned.get(place), len(self.diverged.get(place, ()))
        return TableCell(
            *place,
            metric,
            tuple(sorted(found)),
            statistics.fmean(found.values()) if found else None,
            statistics.stdev(found.values()) if len(found) > 1 else None,
            self.recipe.paper_value(*place),
            self.why.get(place, "diverged" if diverged else ""),
            self.recipe.has_cell(*place),
            diverged,
            best,
            tuned.line if tuned else "",
        )

    def _best(self, column: RecipeColumn) -> set[str]:
        """The paper's rows with the best mean of a column, bold only where that is an accuracy on
        the same data and every row that could be run was. Rows of which seeds are missing do not
        compete: one seed may be a lucky one."""
        rows = [r for r in self.rows if not r.extra and self.recipe.has_cell(r.id, column.id)]
        if any(key == "data" or key.startswith("data.") for row in rows for key in row.set):
            return set()
        means: dict[int, dict[str, float]] = {}  # by number of seeds
        for row in rows:
            place, metric = (row.id, column.id), self.recipe.metric_of(row.id, column.id)
            found = self.values.get((*place, metric))
            if found and unit(metric) == "%":
                means.setdefault(len(found), {})[row.id] = statistics.fmean(found.values())
            elif place not in self.why and place not in self.diverged:
                return set()  # it was not run yet
        whole = means[max(means)] if means else {}
        best = max(whole.values(), default=0.0)
        return {row for row, mean in whole.items() if mean == best} if len(whole) > 1 else set()


def terminal(table: PaperTable, width: int = 120) -> Any:
    """The table in as many pieces, one below the other, as a screen of that width needs."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    views: list[Table] = []
    for columns in _pieces(table, width):
        title = Text(table.caption) if not views else None
        view = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left",
            title_style="bold red" if table.quick else "",
        )  # fmt: skip
        view.add_column("")
        for column in columns:
            view.add_column(Text(column.heading), justify="right", min_width=_width(table, column))
        for row, _ in table.lines():
            cells = [table.cells[row.id, column.id] for column in columns]
            shown = [
                Text(table.ours(cell), style="bold" if cell.best else "")
                + Text(f"\n{cell.theirs()}", style="dim")
                for cell in cells
            ]
            view.add_row(Text(row.heading), *shown)
        views.append(view)
    return Group(*views)


def _pieces(table: PaperTable, width: int) -> list[list[RecipeColumn]]:
    """The columns that fit beside the rows' names."""
    room = max(width - min(width // 3, max(len(row.heading) for row in table.rows)), 1)
    pieces: list[list[RecipeColumn]] = [[]]
    left = room
    for column in table.columns:
        needed = _width(table, column) + 2
        if needed > left and pieces[-1]:
            pieces.append([])
            left = room
        pieces[-1].append(column)
        left -= needed
    return pieces


def _width(table: PaperTable, column: RecipeColumn) -> int:
    """Letters of the longest number or word in a column."""
    cells = [table.cells[row.id, column.id] for row in table.rows]
    numbers = [text for cell in cells for text in (table.ours(cell), cell.theirs())]
    return max(map(len, [*numbers, *column.heading.split()]))


def markdown(table: PaperTable) -> str:
    head = ["", *(no_html(column.heading) for column in table.columns)]
    lines = [head, ["---"] + ["--:"] * len(table.columns)]
    for row, cells in table.lines():
        shown = [_join(table.ours(cell, _bold), cell.theirs()) for cell in cells]
        lines.append([no_html(row.heading), *shown])
    grid = "".join(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in li)} |\n" for li in lines)
    below = "".join(f"\n{no_html(line)}\n" for line in table.remarks)
    return f"{no_html(table.caption)}\n\n{grid}{below}"


def no_html(text: str) -> str:
    """Words of a recipe in Markdown: no part of the page that shows it."""
    return text.replace("<", "&lt;")


def latex(table: PaperTable) -> str:
    """A booktabs table; ours above the paper's number."""
    columns = "l" + "r" * len(table.columns)
    out = [rf"% {table.caption}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    out.append(" & ".join(["", *(_tex(c.heading) for c in table.columns)]) + r" \\")
    out.append(r"\midrule")
    extra = False
    for row, cells in table.lines():
        if row.extra and not extra:
            out.append(r"\midrule")
            extra = True
        ours = [_tex(table.ours(cell)) for cell in cells]
        ours = [rf"\textbf{{{o}}}" if c.best else o for o, c in zip(ours, cells, strict=True)]
        out.append(" & ".join([_tex(row.heading), *ours]) + r" \\")
        theirs = [rf"\textit{{{_tex(text)}}}" if (text := c.theirs()) else "" for c in cells]
        out.append(" & ".join(["", *theirs]) + r" \\")
    out += [r"\bottomrule", r"\end{tabular}"]
    out += [rf"\par {_tex(line)}" for line in table.remarks]
    if table.quick:
        out.append(rf"\par\textbf{{{_tex(QUICK)}}}")
    return "\n".join([*out, ""])


def as_csv(table: PaperTable) -> str:
    """One line per cell, full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["recipe", "row", "column", "metric", "unit", "mean", "std", "seeds", "paper_mean",
         "paper_std", "difference", "in_paper", "state", "quick", "tuned"]
    )  # fmt: skip
    extra = {column.id for column in table.columns if column.extra}
    for row, cells in table.lines():
        for cell in (cell for cell in cells if cell.exists):
            paper = cell.paper or (None, None)
            gap = None if cell.mean is None or cell.paper is None else cell.mean - cell.paper[0]
            writer.writerow(
                [table.recipe.name, cell.row, cell.column, cell.metric, unit(cell.metric),
                 _number(cell.mean), _number(cell.std), " ".join(map(str, cell.seeds)),
                 _number(paper[0]), _number(paper[1]), _number(gap),
                 "no" if row.extra or cell.column in extra else "yes",
                 cell.state, "yes" if table.quick else "no", cell.tuned]
            )  # fmt: skip
    return text.getvalue()


FORMATS: dict[str, Callable[[PaperTable], str]] = {"md": markdown, "latex": latex, "csv": as_csv}


def _join(ours: str, theirs: str) -> str:
    return f"{ours}<br>{theirs}" if ours or theirs else ""


def _bold(text: str) -> str:
    return f"**{text}**"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _tex(text: str) -> str:
    special: dict[str, str | int | None] = {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "~": r"\~{}", "^": r"\^{}",
        "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$", "–": "--",
        "≥": r"$\ge$", "≤": r"$\le$", "×": r"$\times$", "−": "$-$", "…": r"\ldots{}",
    }  # fmt: skip
    return _GREEK.sub(_greek, text.translate(str.maketrans(special)))


_GREEK = re.compile("[\u0370-\u03ff]")


def _greek(letter: re.Match[str]) -> str:
    """θ as $\\theta$. LaTeX has no names for the capitals that look Latin."""
    name = unicodedata.name(letter[0], "").split()  # GREEK SMALL LETTER THETA
    if len(name) != 4 or name[0] != "GREEK":
        return letter[0]
    word = {"LAMDA": "lambda"}.get(name[3], name[3].lower())
    return f"$\\{word if name[1] == 'SMALL' else word.capitalize()}$"


def _spans(seeds: Sequence[int]) -> str:
    """0, 1, 2 as 0-2."""
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ", ".join(map(str, seeds))
