"""Testing: which models of a round are tested, and on whose samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from idiolect.core import record, tree
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.engine.samples import Part
from idiolect.errors import UserError
from idiolect.simulation.measures import Measures
from idiolect.simulation.requests import Asking, FisherTrace, Score
from idiolect.simulation.scores import PARTS, Scores

TESTED_TOGETHER = 256  # clients whose models are on the device at once while testing

Models = tuple[list[int], Tree]  # of these clients


@dataclass(frozen=True)
class RoundsTested:
    """In which rounds (from 1) models are tested: every few, and always those at the end that the
    protocol's number is taken from."""

    rounds: int
    every: int = 1
    at_end: int = 1

    def __post_init__(self) -> None:
        for name, count in (("rounds", self.rounds), ("eval_every", self.every)):
            if count < 1:
                raise UserError(f"{name} must be at least 1, not {count}")

    def __contains__(self, round: object) -> bool:
        assert isinstance(round, int)
        return round % self.every == 0 or round > self.rounds - self.at_end

    def after(self, round: int) -> int:
        """The first tested round after this one."""
        regular = round - round % self.every + self.every
        return min(regular, max(round, self.rounds - self.at_end) + 1)


class Evaluation:
    """Tests clients' models on their own samples, and keeps the scores."""

    def __init__(self, federation: Federation, measure: Measures | None = None):
        self.sizes = {p: federation.sizes(p).numpy().astype(np.int32) for p in PARTS}
        self.measure = measure or Measures()
        self.federation = federation
        self.scores = Scores(self.sizes, self.measure, federation.task.metric)
        self._everyone = list(range(federation.n_clients))

    def test_round(
        self,
        shared: Tree | None,
        after: Sequence[Models],
        predictors: Callable[[list[int]], Asking[Tree]],
    ) -> Asking[None]:
        """Test models right after local work, the `shared` model if there is one, and what every
        client would predict with now."""
        for ids, params in after:
            yield from self.test("after", params, ids)
        if shared is not None:
            everyone = self._everyone
            yield from self.test("global", tree.expand(shared, len(everyone)), everyone)
        for at in range(0, len(self._everyone), TESTED_TOGETHER):
            ids = self._everyone[at : at + TESTED_TOGETHER]
            params = yield from predictors(ids)
            if self.measure.fisher:
                trace = yield FisherTrace(ids, None, (params,))
                self.scores.put("fisher_trace", ids, trace["trace"])
            if shared is not None and tree.shows(params, shared):
                self.scores.copy("global", "before", ids)
                yield from self._other_parts("before", params, ids)
                continue
            known = _unchanged(params, ids, after)
            self.scores.copy("after", "before", list(known))
            rest = [k for k, i in enumerate(ids) if i not in known]
            yield from self.test("before", record.select(params, rest), [ids[k] for k in rest])

    def test(self, series: str, params: Tree, ids: list[int]) -> Asking[None]:
        """Test models on their clients' test samples, and validation samples if they have any."""
        if ids:
            yield from self._score(series, params, ids, "test")
            yield from self._other_parts(series, params, ids)

    def _other_parts(self, series: str, params: Tree, ids: list[int]) -> Asking[None]:
        if series not in ("before", "after"):
            return
        if self.sizes["val"][ids].any():
            yield from self._score(series, params, ids, "val")
        if self.measure.train:
            yield from self._score(series, params, ids, "train")

    def _score(self, series: str, params: Tree, ids: list[int], part: Part) -> Asking[None]:
        found = yield Score(ids, part, (params,))
        self.scores.write(series, part, ids, found["correct"], found["loss"])


def _unchanged(params: Tree, ids: list[int], tested: Sequence[Models]) -> set[int]:
    """The clients whose model is, number by number, the one they were last tested with."""
    found: set[int] = set()
    seen: set[int] = set()
    for who, models in reversed(tested):
        place = {i: k for k, i in enumerate(who) if i not in seen}
        both = [(k, i) for k, i in enumerate(ids) if i in place]
        mine, theirs = [k for k, _ in both], [place[i] for _, i in both]
        same = tree.same(record.select(params, mine), record.select(models, theirs)).tolist()
        found |= {i for (_, i), yes in zip(both, same, strict=True) if yes}
        seen |= set(who)
    return found
