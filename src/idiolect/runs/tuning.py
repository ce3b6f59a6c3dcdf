"""Honest tuning: each method's values are chosen on validation data, by the same number of trials.

Trials are runs in `OUT/trials`. The chosen ones are copied to `OUT/METHOD-seedK`, the place a
comparison without tuning has them, so that only they are reported; `OUT/tuning.json` has all. With
more trials another may be chosen: what was chosen before is put aside.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from idiolect.core import files
from idiolect.core.own_code import called
from idiolect.errors import UserError
from idiolect.runs import directory, run_files
from idiolect.runs.compare import Plan, run_all
from idiolect.runs.config import Config, differences, digest
from idiolect.runs.execute import Builder
from idiolect.runs.history import ClientLog
from idiolect.runs.progress import Progress
from idiolect.runs.trials import mean_worth, rank, worth

TRIALS = "trials"
SELECTED_ON = "validation samples: mean accuracy over clients in the last round, mean over seeds"


@dataclass(frozen=True)
class Trial:
    """One method with one choice of values, over all seeds."""

    values: dict[str, Any]
    plans: list[Plan]
    validation: float | None = None

    @property
    def told(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values.items())


def trials_of(plan: Sequence[Plan]) -> dict[str, list[Trial]]:
    """The trials by method; UserError where one method would get more of them than another."""
    by_method: dict[str, list[Plan]] = {}
    for item in plan:
        by_method.setdefault(called(item.config["method"]["name"]), []).append(item)
    found = {name: _trials(items) for name, items in by_method.items()}
    counts = {name: len(trials) for name, trials in found.items()}
    most = max(counts, key=lambda name: counts[name])
    for name, count in counts.items():
        if count < max(2, counts[most]):
            raise UserError(
                f"--tune gives {name} {count} trial{'s' if count > 1 else ''} and {most} "
                f"{counts[most]}; give every method as many, e.g. --tune {name}.KEY=…"
            )
    return found


def _trials(plan: Sequence[Plan]) -> list[Trial]:
    varied = differences([item.config for item in plan])
    for key in varied:
        if not key.startswith("method."):
            raise UserError(f"--tune {key}: only a method's own settings are tuned; use --sweep")
    trials: dict[tuple[str, ...], Trial] = {}
    for at, item in enumerate(plan):
        values = {key.removeprefix("method."): column[at] for key, column in varied.items()}
        point = tuple(map(str, values.values()))
        trials.setdefault(point, Trial(values, [])).plans.append(item)
    return list(trials.values())


def check_validation(federation: Any) -> None:
    if not bool(federation.sizes("val").any()):
        raise UserError(
            "--tune chooses on validation samples and there are none; add --set split.val_share=0.2"
        )


def tune(
    plan: Sequence[Plan], progress: Progress, build: Builder | None = None
) -> dict[str, list[Trial]]:
    """Run all trials; those of each method with their validation accuracy, the chosen one first."""
    trials_of(plan)
    run_all(plan, progress, build)
    return {
        name: sorted(map(_validated, trials), key=lambda trial: -rank(trial.validation))
        for name, trials in trials_of(plan).items()
    }


def check_places(plan: Sequence[Plan], out: Path) -> None:
    """Before the first trial: where the chosen runs will be there may be trials chosen before, and
    nothing else."""
    for name, trials in trials_of(plan).items():
        for item in trials[0].plans:
            _check_place(_place(name, item, out), trials, item.config)


def keep_chosen(tuned: dict[str, list[Trial]], out: Path, progress: Progress) -> list[Plan]:
    """Copy the chosen runs to their place in the comparison, and write down what was chosen."""
    kept = []
    for name, trials in tuned.items():
        for item in trials[0].plans:
            place = _place(name, item, out)
            _check_place(place, trials, item.config)
            if not _is_copy(place, item.out):
                _copy(item.out, place, progress)
            kept.append(replace(item, out=place))
    told = {name: [_plain(trial) for trial in trials] for name, trials in tuned.items()}
    files.write_json(out / "tuning.json", {"selected_on": SELECTED_ON, "chosen_first": told})
    return kept


def _plain(trial: Trial) -> dict[str, Any]:
    return {"values": trial.values, "validation": trial.validation}


def _place(name: str, item: Plan, out: Path) -> Path:
    return out / f"{name}-seed{item.config['seed']}"


def _check_place(place: Path, trials: Sequence[Trial], config: Config) -> None:
    plans = [item for trial in trials for item in trial.plans]
    known = {digest(item.config) for item in plans if item.config["seed"] == config["seed"]}
    if directory.state(place, None) != "new":
        there = directory.read_config(place)
        directory.state(place, there if digest(there) in known else config)


def _is_copy(place: Path, run: Path) -> bool:
    """Whether the run was copied there, whole: a summary has seconds that no other run took."""
    made, there = run / "summary.json", place / "summary.json"
    return there.exists() and there.read_bytes() == made.read_bytes()


def _copy(run: Path, place: Path, progress: Progress) -> None:
    draft = place.with_name(f".{place.name}.draft")
    if files.kind(draft) == "a folder":  # of a copy that was killed
        shutil.rmtree(draft)
    shutil.copytree(run, draft, ignore=shutil.ignore_patterns(".lock", "exports", "earlier-*"))
    if directory.state(place, None) == "new":
        os.rename(draft, place)
    else:
        _replace(place, draft, progress)
    files.sync_folder(place.parent)


def _replace(place: Path, draft: Path, progress: Progress) -> None:
    """Put another run in the place of one, which is put aside; what says "finished" comes last."""
    with directory.locked(place):
        progress.note(f"what {place} recorded so far is in {directory.put_aside(place)}")
        for name in sorted(os.listdir(draft), key=lambda name: name == "summary.json"):
            os.replace(draft / name, place / name)
        draft.rmdir()


def _validated(trial: Trial) -> Trial:
    return replace(trial, validation=mean_worth([_worth(item) for item in trial.plans]))


def _worth(item: Plan) -> float | None:
    log = ClientLog(item.out)
    with run_files.sound(log.path):
        log.load()
    try:
        return worth(log.rounds, bool(directory.read_summary(item.out)["diverged"]))
    except UserError as error:
        raise UserError(f"{item.out}: {error}") from None
