"""What `idiolect advise` found, and the same from Python: which method suits your federation."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from idiolect.core import files, shown
from idiolect.core.method import Method
from idiolect.data import Federation, findings
from idiolect.data.build import with_validation
from idiolect.data.heterogeneity import Heterogeneity, heterogeneity
from idiolect.errors import UserError
from idiolect.report import advice_words
from idiolect.report.advice import Advice
from idiolect.report.comparison import Given, compare, method_of
from idiolect.report.load import Run, load
from idiolect.report.tables import Row, cells, columns, headings
from idiolect.runs import tournament
from idiolect.runs.fair_work import LOCAL_WORK
from idiolect.runs.from_python import simulate
from idiolect.simulation.simulate import given_options, prepare


@dataclass(frozen=True)
class Advised:
    """The choice of a tournament with its reasons; `print` tells it in words."""

    advice: Advice
    heterogeneity: Heterogeneity
    gradient_similarity: dict[str, float]  # mean cosine of two clients' updates, by layer
    left_out: dict[str, str]  # methods that do not fit, and why
    largest_input: float | None = None  # of a table that should be standardised

    @classmethod
    def of(
        cls, runs: Sequence[Run], probe: Run, federation: Federation, left_out: Mapping[str, str]
    ) -> "Advised":
        """From the runs of a tournament and the one in which updates were compared."""
        cosines = probe.summary.get("measured", {}).get("gradient_similarity", {})
        alike = {layer: value for layer, value in cosines.items() if value is not None}
        large = findings.unscaled(federation)
        return cls(Advice(runs), heterogeneity(federation), alike, dict(left_out), large)

    @property
    def method(self) -> str:
        """The one to take."""
        return self.advice.chosen.label

    @property
    def rows(self) -> list[Row]:
        """Scores on validation samples as plain values, a row per method."""
        return self.advice.rows

    def frame(self) -> Any:
        """The same as a pandas DataFrame."""
        return shown.frame(self.rows)

    @cached_property
    def words(self) -> list[str]:
        large = self.largest_input
        told = large and f"Inputs {findings.unscaled_told(large)}; these scores say little."
        return [
            *([told] if told else []),
            advice_words.difference_told(self.heterogeneity),
            advice_words.updates_told(self.gradient_similarity),
            *advice_words.lines(self.advice),
        ]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        differ = {**asdict(self.heterogeneity), "gradient_similarity": self.gradient_similarity}
        about = {"heterogeneity": differ, "left_out": self.left_out, "words": self.words}
        return {**self.advice.as_dict(), **about}

    def write(self, folder: Path) -> Path:
        files.write_json(folder / "advice.json", self.as_dict())
        return folder / "advice.json"

    def __str__(self) -> str:
        return "\n".join(self.words)

    def __repr__(self) -> str:
        score = advice_words.score_of(self.advice.chosen)
        how = f"{score} on validation samples, {len(self.advice.groups)} methods"
        return f"Advised({self.method}: {how})"

    def _repr_html_(self) -> str:
        there = columns(self.rows)
        table = shown.html_table(headings(self.rows), (cells(row, there) for row in self.rows))
        return table + shown.html_lines(self.words)


def advise(
    federation: Federation,
    model: nn.Module,
    *,
    out: str | Path,
    methods: Sequence[Given] = tournament.METHODS,
    seeds: Sequence[int] = tournament.SEEDS,
    rounds: int = tournament.ROUNDS,
    val_share: float = tournament.VAL_SHARE,
    **options: Any,
) -> Advised:
    """Which method suits these clients, as `idiolect advise` tells it: a short tournament that
    validation samples decide, written to `out`. `local` and `fedavg` always take part. Clients
    without validation samples keep `val_share` of their training samples for it. The options are
    those of `compare`.

    >>> print(advise(federation, MyModule(), out="runs/advice", lr=0.1))
    """
    if not 0 < val_share < 1:
        raise UserError(f"val_share must be between 0 and 1, got {val_share}")
    judged = with_validation(federation, val_share, 0)
    work = {key: options.pop(key) for key in LOCAL_WORK if key in options}
    options = {"eval_every": max(1, rounds // tournament.TESTS), **options}
    fit, left_out = _fitting(_contestants(methods, work), judged, model, options)
    probed = min(tournament.PROBED_ROUNDS, rounds)
    probe = {**options, "rounds": probed, "eval_every": probed, "measure": "gradients"}
    place = Path(out) / tournament.PROBE
    simulate(fit["fedavg"], judged, model, out=place, seed=seeds[0], **probe)
    contest = list(fit.values())
    done = compare(contest, judged, model, out=out, seeds=seeds, rounds=rounds, **options)
    found = Advised.of(done.runs, load(place), judged, left_out)
    found.write(Path(out))
    return found


def _fitting(
    made: Mapping[str, Method], federation: Federation, model: nn.Module, options: dict[str, Any]
) -> tuple[dict[str, Method], dict[str, str]]:
    """The methods that fit the task and the network, and why the others do not."""
    left_out = {}
    for name, one in made.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they come when the run begins
                prepare(one, federation, model, given_options(options))
        except UserError as error:
            if name in tournament.NEEDED:  # a mistake in the settings
                raise
            left_out[name] = str(error)
    return {name: one for name, one in made.items() if name not in left_out}, left_out


def _contestants(methods: Sequence[Given], work: Mapping[str, Any]) -> dict[str, Method]:
    """With the same local work, those that are needed first; fine-tuning takes the learning rate
    that is given for training, unless it is given one."""
    made: dict[str, Method] = {}
    for given in (*tournament.NEEDED, *methods):
        section = {"name": given} if isinstance(given, str) else given
        if not isinstance(section, Method) and section["name"].endswith("_ft") and "lr" in work:
            section = {"ft_lr": work["lr"], **section}
        one = method_of(section, work)
        made[one.name] = one  # a method given with settings of its own replaces a needed one
    return made
