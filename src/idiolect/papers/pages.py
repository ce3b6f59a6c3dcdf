"""docs/papers/, one page per paper: our numbers beside the paper's, figures, claims with verdicts,
notes and commands. `python -m idiolect.papers.pages benchmarks/results/papers docs/papers` writes
them from recipes and results alone, so that the same files give the same pages everywhere. Recipes
that share runs take them over from one another before that, where their data is, and tables,
verdicts and figures are written anew.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from idiolect.core import files
from idiolect.papers import cell_list, paper_table, recipe
from idiolect.papers.campaign import Campaign
from idiolect.papers.cells import count, planned_seeds
from idiolect.papers.evidence import Evidence
from idiolect.papers.recipe import PAPERS, Recipe
from idiolect.papers.results import Results

MARKS = {"holds": "**holds**", "does not hold": "**does not hold**"}
WRITTEN = "<!-- written by `python -m idiolect.papers.pages`; edit the recipe, not this page -->\n"


class Section(Evidence):
    """One recipe on a page: at full size where something was run, else quick."""

    def answers(self) -> list[int]:
        """Claims that hold, that do not, and that are open: all of them where it was shrunk."""
        found = [verdict.answer for verdict in self.verdicts]
        if self.quick:
            return [0, 0, len(found)]
        return [found.count(a) for a in ("holds", "does not hold", "not enough evidence")]

    def open_for(self) -> Counter[str]:
        """Why claims are open: for want of data, of runs, or though all their runs are there."""
        states, found = self.results.states(), Counter[str]()
        seeds = len(planned_seeds(self.recipe, self.quick))
        for verdict in self.verdicts:
            places = self.recipe.places_of(verdict.claim)
            if any(states.get(place) == "no data" for place in places):
                why = "data"
            elif self.quick or min((c.n for c in verdict.comparisons), default=0) < seeds:
                why = "runs"
            else:
                why = "evidence"
            found[why] += self.quick or verdict.answer == "not enough evidence"
        return found

    def speaks_against(self) -> int:
        """Open claims of which some comparison points the other way."""
        told = ("" if self.quick else verdict.reason for verdict in self.verdicts)
        return sum("against it so far" in reason for reason in told)

    def printed(self) -> tuple[int, int, int]:
        """Numbers that the paper prints, those of them with ours beside, those without data. Extra
        rows and columns have a printed number a second time."""
        places = {
            (row, column)
            for row, own in self.recipe.paper_values.items()
            for column in own
            if not self.recipe.row(row).extra and not self.recipe.column(column).extra
        }
        states = self.results.states()
        lacking = {place for place in places if states.get(place) == "no data"}
        found = {(r, c) for r, c, m in self.values if m == self.recipe.metric_of(r, c)}
        return len(places), 0 if self.quick else len(places & found), len(lacking - found)

    def counts(self) -> tuple[int, int]:
        """Cells and trials done, and all."""
        seeds = planned_seeds(self.recipe, self.quick)
        drawn = cell_list.finished(self.results, self.tuned, drawn=True)
        done = sum(cell.seed in seeds for cell, _ in drawn)
        tried = sum(one.finished for one in self.tuned.values())
        return done + tried, count(self.recipe, self.quick)


def render(results: Path, docs: Path) -> dict[str, str]:
    """The text of every page by its file name. Links from `docs` to `results` are relative."""
    names = sorted(recipe.names(), key=_by_number)
    sections = [_section(results, recipe.read(name)) for name in names]
    link = Path(os.path.relpath(results, docs))
    pages = {"README.md": _overview(sections)}
    for paper in PAPERS:
        own = [one for one in sections if one.recipe.paper == paper]
        if own:
            pages[f"{paper}.md"] = "".join(_page(paper, own, link))
    return pages


def _by_number(name: str) -> tuple[str, int]:
    """figure2 before figure10."""
    word = name.rstrip("0123456789")
    return word, int(name.removeprefix(word) or 0)


def _section(root: Path, read: Recipe) -> Section:
    full, quick = Results(root, read), Results(root, read, quick=True)
    return Section(quick if quick.records and not full.records else full)


def _overview(sections: Sequence[Section]) -> str:
    lines = [
        WRITTEN,
        "# The papers' tables and figures, run again\n",
        "Every table and figure is a recipe ([recipes.md](../recipes.md)). A claim is decided by "
        "paired differences\nover seeds; *open* means not enough evidence yet. QUICK rows were "
        "shrunk and are no evidence about a paper. What each\nrecipe is, what cannot be run "
        "and what differs from the papers in general: [notes.md](notes.md).\n",
        _total(sections),
        "| recipe | what | runs | claims hold | do not hold | open |\n|---|---|--:|--:|--:|--:|",
    ]
    for one in sections:
        done, total = one.counts()
        size = "QUICK " if one.quick else ""
        told = f"{size}{done} of {total}" if done else "none yet"
        numbers = one.answers()
        name = f"[{one.recipe.name}]({one.recipe.paper}.md#{one.recipe.name})"
        cells_ = [name, one.recipe.title, told, *map(str, numbers)]
        lines.append(f"| {' | '.join(cells_)} |")
    return "\n".join(lines) + "\n"


def _total(sections: Sequence[Section]) -> str:
    hold, fail, open_ = (sum(each) for each in zip(*(s.answers() for s in sections), strict=True))
    why = sum((section.open_for() for section in sections), Counter[str]())
    against = sum(section.speaks_against() for section in sections)
    printed, known, lacking = (
        sum(each) for each in zip(*(section.printed() for section in sections), strict=True)
    )
    return (
        f"Of {hold + fail + open_} claims {hold} hold, {fail} do not hold, {open_} are open: "
        f"{why['runs']} lack runs,\n{why['data']} lack data, and of {why['evidence']} all runs "
        f"are there,\nwhich are too few seeds to tell. Against {against} open "
        "claims speaks what was run so far (“against it so far”).\nEach verdict is at 5 % by "
        "itself: of so many some are wrong by chance. Numbers printed in a paper are taken as "
        "exact.\n\n"
        f"Of {printed} numbers that the papers print in tables and figures, {known} have ours "
        f"beside them at full size; {lacking} lack data,\nthe others were not run yet.\n"
    )


def _page(paper: str, sections: Sequence[Section], link: Path) -> Iterator[str]:
    yield f"{WRITTEN}\n# {PAPERS[paper]}\n\n"
    yield "How claims are decided, and what the commands do: [recipes.md](../recipes.md).\n"
    for one in sections:
        yield f"\n## {one.recipe.name}\n\n"
        yield from _recipe(one, link)


def _recipe(one: Section, link: Path) -> Iterator[str]:
    name, folder = one.recipe.name, one.results.folder
    place = link / name / "quick" if one.quick else link / name
    option = " --quick" if one.quick else ""
    yield paper_table.markdown(one.table_with(one.results.states())) + "\n"
    if (folder / "figure.png").exists():
        alt = f"{PAPERS[one.recipe.paper]}, {one.recipe.title}" + (" (QUICK)" if one.quick else "")
        yield f"![{alt}]({place / 'figure.png'})\n\n"
        done, total = one.counts()
        if done < total:
            yield f"The figure shows {done} of {total} runs.\n\n"
    if one.recipe.claims:
        yield from _claims(one)
    for note in one.recipe.notes:
        yield f"- {note}\n"
    for reason in one.results.unavailable().values():
        yield f"- No data: {reason}\n"
    for cell, reason in one.results.failures().items():
        yield f"- {cell} failed: {reason}\n"
    yield f"\n```\nidiolect recipe {name}{option}\n```\n"
    if one.results.records:
        machines = sorted({str(r.machine.get("device")) for r in one.results.records})
        yield f"\nRun on {', '.join(machines)}; every run is in [{name}]({place}/cells.csv).\n"


def _claims(one: Section) -> Iterator[str]:
    """Every claim with its verdict; of a shrunk recipe there is none."""
    if one.quick:
        yield "| claim (no verdict: shrunk runs are no evidence about the paper) |\n|---|\n"
        yield from (f"| {_cell(verdict.claim.says)} |\n" for verdict in one.verdicts)
    else:
        yield "| claim | verdict | what it rests on |\n|---|---|---|\n"
        for verdict in one.verdicts:
            answer = MARKS.get(verdict.answer, verdict.answer)
            rests = f"{verdict.reason}; {verdict.test}"
            yield f"| {_cell(verdict.claim.says)} | {answer} | {_cell(rests)} |\n"
    yield "\n"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def main(results: Path, docs: Path) -> None:
    every = [recipe.read(name) for name in recipe.names()]
    for quick in (False, True):
        campaign = Campaign(every, results, Path("runs/recipes"), quick)
        whole = [part for part in campaign.parts if not part.lost_its_data]
        if not quick:
            taken = campaign.take_over(print, whole)
            fresh = {part.recipe.name: part for part in taken}
            whole = [fresh.get(part.recipe.name, part) for part in whole]
        for part in whole:
            if (part.results.folder / "runs.jsonl").exists():  # also if none of them counts now
                part.write(print)
    docs.mkdir(parents=True, exist_ok=True)
    for name, text in render(results, docs).items():
        files.write_text(docs / name, text)


if __name__ == "__main__":
    main(*(Path(word) for word in sys.argv[1:3]))
