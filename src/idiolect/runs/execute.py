"""Running configs into run directories: a new run, a resumed one, or several in one stack."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from idiolect.engine.ranks import Ranks
from idiolect.errors import UserError
from idiolect.runs import directory, seal, tracking
from idiolect.runs.build import build as from_config
from idiolect.runs.config import Config, digest, label, labels
from idiolect.runs.environment import same_threads
from idiolect.runs.interruption import Interrupted, forget_stop, is_asked_to_stop, stop_requests
from idiolect.runs.progress import Progress
from idiolect.runs.recorder import Follower, Recorder
from idiolect.runs.resumption import restore

Builder = Callable[[Config], Any]


@dataclass(frozen=True)
class Saving:
    """When runs under way are saved: every `checkpoint_every` rounds, unless that was done within
    `seconds`. `at_end`: after the last round too, for whoever wants the models."""

    seconds: float = 0.0
    at_end: bool = True


ALWAYS = Saving()


def execute(
    config: Config,
    out: Path | str,
    resume: bool = False,
    progress: Progress | None = None,
    build: Builder | None = None,
    from_start: bool = False,
) -> dict[str, Any]:
    """Run a resolved config into `out`, or continue there; returns the summary. `from_start`: what
    the run recorded is put aside, and it begins at round 0."""
    again = [str(out)] if from_start else []
    return execute_together([config], [out], resume, progress, build, again)[0]


def execute_together(
    configs: Sequence[Config],
    outs: Sequence[Path | str],
    resume: bool = False,
    progress: Progress | None = None,
    build: Builder | None = None,
    from_start: Collection[str] = (),
    saving: Saving = ALWAYS,
) -> list[dict[str, Any]]:
    """Seeds and settings of one method, each into its own directory, in one stack where they can
    be. `from_start`: the folders of runs that begin at round 0, whatever they recorded, which is
    put aside."""
    build = build or from_config
    progress, ranks = progress or Progress(), Ranks.current()
    todo: list[tuple[Config, Path]] = []
    for config, folder in zip(configs, map(Path, outs), strict=True):
        found, again = ranks.agree(directory.state, folder, config), str(folder) in from_start
        if found == "finished" and resume and not again:
            continue
        _refuse(folder, found, resume, again)
        tracking.check(config)
        if ranks.first:
            directory.check_writable(folder)
        if found != "new":
            seal.check(folder, config, progress.note)
        if found == "unfinished" and not again:
            same_threads(folder)
        todo.append((config, folder))
    if todo:
        built = [(config, folder, build(config)) for config, folder in todo]
        _run(built, resume, progress, from_start, saving)
    return [ranks.agree(directory.read_summary, Path(folder)) for folder in outs]


def _run(
    todo: Sequence[tuple[Config, Path, Any]],
    resume: bool,
    progress: Progress,
    from_start: Collection[str],
    saving: Saving,
) -> None:
    ranks = Ranks.current()
    with ExitStack() as guards:
        if ranks.first:
            outs = [out for _, out, _ in todo]
            place = outs[0] if len(outs) == 1 else outs[0].parent
            go_on = partial(directory.how_runs_go_on, outs)
            guards.enter_context(directory.disk_errors(place, go_on))
        for _, out, _ in todo if ranks.first else ():
            guards.enter_context(directory.locked(out))
            forget_stop(out)
        stop = guards.enter_context(stop_requests())
        recorders = _opened(todo, resume, progress, from_start)
        for group in _stacks(recorders):
            lead = group[0]
            for number, run in enumerate(group):
                run.place = number
            past = [event for run in group for event in run.events]
            sent = sum(event["bytes_up"] + event["bytes_down"] for event in past)
            configs = [run.config for run in group]
            rounds = max(lead.round, 0), lead.config["rounds"]
            progress.start(label(*configs), *rounds, sent, labels(configs))
            try:
                _rounds(group, stop, saving)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"stopped at once; {_go_on(group)} continues after round {lead.saved or 0}"
                ) from None
            finally:
                progress.close()


def _opened(
    todo: Sequence[tuple[Config, Path, Any]],
    resume: bool,
    progress: Progress,
    from_start: Collection[str],
) -> list[Recorder]:
    """A recorder per run. All that is there is read and checked before anything is written."""
    ranks = Ranks.current()
    kind = Recorder if ranks.first else Follower
    runs: dict[str, list[Recorder]] = {"new": [], "unfinished": []}
    opened: list[Recorder] = []
    for config, out, sim in todo:
        # Another process may have come first while the data was loading.
        found, again = ranks.agree(directory.state, out, config), str(out) in from_start
        _refuse(out, found, resume, again)
        if found != "new" and again:
            if ranks.first:
                progress.note(f"what {out} recorded so far is in {directory.put_aside(out)}")
            found = "unfinished"
        run: Recorder = kind(config, out, sim, progress)
        runs[found].append(run)
        opened.append(run)
    ranks.any(False)  # nobody reads what the first rank still puts aside
    restore(runs["unfinished"])
    for run in runs["unfinished"]:
        if ranks.agree(lambda run: run.saved, run) != run.saved:
            raise UserError(f"{run.out}: its checkpoint is not what the first process reads there")
    ranks.any(False)  # nor cuts what another has yet to read
    for run in runs["new"]:
        run.begin()
    for run in runs["unfinished"]:
        run.cut()
    return opened


def _stacks(recorders: list[Recorder]) -> list[list[Recorder]]:
    """Runs that take their rounds together, as far as they can: those of one stack again, in the
    order they had."""
    if len(recorders) == 1:
        return [recorders]
    from idiolect.simulation.side_by_side import Sweep

    stacks: dict[Any, list[Recorder]] = {}
    for run in recorders:
        # One that may end early takes its rounds alone: the others of its stack would go on.
        alone = id(run) if run.config.get("stop_after") else 0
        stacks.setdefault((alone, run.round, run.stack, Sweep.kind(run.sim)), []).append(run)
    for (_, _, before, _), group in stacks.items():
        if before:
            group.sort(key=lambda run: before.index(digest(run.config)))
    return list(stacks.values())


def _rounds(group: list[Recorder], stop: Event, saving: Saving) -> None:
    lead, ranks = group[0], Ranks.current()
    last_saved = time.monotonic()
    for run in group:
        run.stack = tuple(digest(member.config) for member in group)
    total, every = lead.config["rounds"], lead.config["checkpoint_every"]
    start, step = _steppers(group)
    if lead.round < 0:
        for run, done in zip(group, start(), strict=True):
            run.record(done)
            if every == 1:  # real sites cannot go back to before they trained
                run.checkpoint()
    while not ranks.agree(lambda run: run.is_over, lead):
        if ranks.any(stop.is_set() or any(is_asked_to_stop(run.out) for run in group)):
            for run in group:
                run.checkpoint()
                forget_stop(run.out)
            ranks.any(True)  # torchrun ends the others when one leaves: not before all is saved
            raise Interrupted(
                f"stopped after round {lead.round} of {total}; continue with: "
                f"{_go_on(group).strip('`')}"
            )
        for run, done in zip(group, step(), strict=True):
            run.record(done)
        due = lead.round % every == 0 and lead.round < total
        if due and ranks.agree(
            lambda since: time.monotonic() - since >= saving.seconds, last_saved
        ):
            for run in group:
                run.checkpoint()
            last_saved = time.monotonic()
    for run in group if saving.at_end else ():
        run.checkpoint()  # all of them, before the first is finished and left alone
    for run in group:
        run.finish()


def _steppers(group: list[Recorder]) -> tuple[Callable[[], list[Any]], ...]:
    """Round 0, and one round, of every run in the group."""
    if len(group) == 1:
        sim = group[0].sim
        return lambda: [sim.start()], lambda: [sim.step()]
    from idiolect.simulation.side_by_side import Sweep

    sweep = Sweep([run.sim for run in group])
    return sweep.start, sweep.step


def _go_on(group: list[Recorder]) -> str:
    """How a user continues these runs."""
    return f"`idiolect resume {group[0].out}`" if len(group) == 1 else "the same command"


def _refuse(out: Path, found: str, resume: bool, again: bool) -> None:
    if found == "finished" and not again:
        raise UserError(
            f"{out} already holds this run, finished; see `idiolect report {out}` or choose "
            "another --out"
        )
    if found == "unfinished" and not resume:
        raise UserError(f"{out} holds this run, unfinished; continue with `idiolect resume {out}`")
