"""When a run ends early: a number of rounds have passed without a better validation score.

It depends on the rounds so far and on nothing else, so a resumed run ends where it would have.
"""

from collections.abc import Mapping

import numpy as np

from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.simulation import metrics


def best_round(scores: Mapping[int, float | None]) -> int | None:
    """The first round with the best score; the untrained round 0 does not count."""
    known = {t: s for t, s in scores.items() if t > 0 and s is not None and np.isfinite(s)}
    return min(known, key=lambda t: (-known[t], t), default=None)


def is_over(scores: Mapping[int, float | None], after: int, eval_every: int = 1) -> bool:
    """Whether the last of these rounds is `after` rounds behind the best one, asked when models
    were tested: rounds between two tests say nothing."""
    best = best_round(scores)
    if not after or best is None or max(scores) % eval_every:
        return False
    return max(scores) - best >= after


def told(scores: Mapping[int, float | None], after: int) -> dict[str, int | None]:
    """How a run that ended early says so in its summary; the best round only where rounds were
    judged."""
    return {"round": max(scores), "best_round": best_round(scores) if after else None}


def check_validation(federation: Federation, after: int) -> None:
    """There must be something to judge rounds by that is not the test."""
    if after and not bool(federation.sizes("val").any()):
        raise UserError(
            "stop_after looks at validation samples and there are none; add --set "
            "split.val_share=0.2"
        )


def scores_of(rounds: Mapping[int, metrics.Table], protocol: str) -> dict[int, float | None]:
    """The validation score of every round, more is better."""
    return {t: metrics.selection(rows, protocol) for t, rows in rounds.items()}
