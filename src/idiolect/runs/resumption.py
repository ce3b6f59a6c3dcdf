"""From which round runs go on.

Runs that were computed in one stack go on together, from the last round that all of them have: the
last bits of their numbers depend on what else is in the stack. A kill may fall between their
checkpoints; each keeps its last two, so there always is such a round.
"""

from collections.abc import Sequence

from idiolect.runs.checkpoint import NOTHING_YET
from idiolect.runs.config import digest
from idiolect.runs.recorder import Recorder


def restore(runs: Sequence[Recorder]) -> None:
    """Read back all runs; what was read is checked before this returns, and nothing is changed on
    disk."""
    for run in runs:
        run.read()
    begun = [run for run in runs if run.checkpoints]
    for group in _computed_together(begun):
        _restore(group)


def _computed_together(runs: Sequence[Recorder]) -> list[list[Recorder]]:
    """Runs by stack. One without a checkpoint of its own belongs to the stack that names it."""
    stacks = {run.stack for run in runs if run.stack}
    groups: dict[object, list[Recorder]] = {}
    for run in runs:
        mine = digest(run.config)
        key: object = run.stack or next((one for one in stacks if mine in one), id(run))
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _restore(group: list[Recorder]) -> None:
    while True:
        common = set.intersection(*(set(run.checkpoints) for run in group))
        if not common:
            for run in group:
                _restore([run])
            return
        if all(run.restore(max(common)) for run in group):
            break
    _say_who_is_missing(group)


def _say_who_is_missing(group: list[Recorder]) -> None:
    """Runs that go on without the whole of their stack are not the same to the last bit."""
    first = group[0]
    others = len(first.stack) - len(group)
    if others > 0 and NOTHING_YET < first.round < first.config["rounds"]:
        first.progress.note(
            f"{first.out}: {others} of the runs it was computed with do not go on with it; its "
            "last digits may differ. The same `idiolect compare` again continues all together"
        )
