"""A stack of clients: what a method sees of K of them at once.

A last partial batch is filled up with weight-zero samples, except where samples of a batch depend
on one another and do not know filling (coupled losses, batch norms that are not our own): there
clients are grouped by exact size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from idiolect.core import record, tree
from idiolect.core.batches import BatchPlan, SgdSettings
from idiolect.core.local import Coupled, Loss, Objective, Trained
from idiolect.core.net import Net
from idiolect.core.record import Rows
from idiolect.core.tree import Tree
from idiolect.engine import cuda_graphs, layers
from idiolect.engine.cuda_graphs import CapturedStep, CapturedSteps
from idiolect.engine.descent import Descent
from idiolect.engine.samples_local import EVAL_BATCH, SamplesLocal, dropout_seed
from idiolect.engine.steps import Step, Steps
from idiolect.engine.train import (
    SampleSquaredNormStep,
    SgdStep,
    SquaredNormStep,
    StackedLoss,
    StepKind,
    StepState,
)

SAMPLES_DIFFERENTIATED_AT_ONCE = 16  # of each client, where every sample has its own gradient


class StackedLocal(SamplesLocal):
    """K clients at once."""

    captured_steps: CapturedSteps | None = None  # replayed on a GPU

    def _sgd(
        self, goal: Objective, params: Tree, how: SgdSettings, start: Tensor, memory: Tree
    ) -> Trained:
        exact = goal.coupled is True or _cannot_fill(self.train_net)
        steps = self._steps(how, exact, start.tolist(), goal.coupled)
        wide = self._wide(goal, self.train_net)
        descent = Descent(how.optimizer, how.weight_decay, how.momentum, how.clip)
        kind = SgdStep(wide, how.repeat, descent, how.after, bool(goal.pull))
        state = self._state(params, goal, steps)
        state.memory = record.copied(memory, steps.order)
        state.lr = record.select(how.lr, steps.order) if isinstance(how.lr, Tensor) else how.lr
        with dropout_seed(how.purpose, self):
            if captured := self._captured(kind, steps, state, how):
                state.params = record.select(params, steps.order)
                state = captured.run(steps, state)
                trained = record.copied(state.params, steps.back)
            else:
                state.params = record.copied(params, steps.order)
                state.memory = kind.memory(state.params) | state.memory
                for step in self._as_seen(steps, goal, how.purpose):
                    kind.step(step, state)
                trained = record.select(state.params, steps.back)
        seen = how.repeat * steps.size.sum(0)
        self.samples_seen += how.repeat * steps.samples
        self.steps_taken += how.repeat * steps.taken
        mean = record.select(state.total / seen.clamp_min(1), steps.back)
        taken = how.repeat * (steps.size > 0).sum(0)
        kept = record.copied(state.memory, steps.back) if how.keep else {}
        return Trained(trained, mean, record.select(taken.to(self.dtype), steps.back), kept)

    def _grad(self, goal: Objective, params: Tree, training: bool) -> tuple[Tree, Tensor, Tree]:
        net = self.train_net if training else self.net
        plan = BatchPlan("full" if training else EVAL_BATCH, order="fixed")
        steps = self._steps(plan, _cannot_fill(net))
        wide = self._wide(goal, net)
        state = self._state(record.copied(params, steps.order), goal, steps)
        share_of = record.select(self.sizes, steps.order)
        grad = {n: torch.zeros_like(state.params[n]) for n in goal.moving}
        with dropout_seed("grad", self):
            for step in steps:
                models = state.models(step.who, goal.moving)
                value, grads = wide.value_and_grad(models, step, state.extra)
                share = step.size / share_of[step.who]
                for n, g in models.with_clients(grads).items():
                    grad[n][step.who] += g * tree.column(share, g)
                state.total[step.who] += value * share
                record.put(state.params, step.who, models.rows)
        self.samples_seen += steps.samples
        self.steps_taken += 1  # however many pieces the samples came in
        back = steps.back
        total, params = record.select(state.total, back), record.select(state.params, back)
        return record.select(grad, back), total, params

    def _squared_grad(
        self, goal: Objective, params: Tree, plan: BatchPlan, per_sample: bool
    ) -> tuple[Tensor, Tensor]:
        if per_sample:  # batches are only a way to go through all samples
            plan = replace(plan, batch_size=SAMPLES_DIFFERENTIATED_AT_ONCE, drop_last=False)
        steps, wide = self._steps(plan), self._wide(goal, self.net)
        state = self._state(record.select(params, steps.order), goal, steps)
        kind = SquaredNormStep(wide)
        captured = None if per_sample else self._captured(kind, steps, state, plan)
        if captured:
            state = captured.run(steps, state)
        for step in () if captured else steps:
            (SampleSquaredNormStep(wide) if per_sample else kind).step(step, state)
        count = steps.size.sum(0) if per_sample else (steps.size > 0).to(self.dtype).sum(0)
        return record.select(state.total, steps.back), record.select(count, steps.back)

    @torch.no_grad()
    def forward(self, fn: Loss, params: Tree, *, extra: Sequence[Any] = ()) -> Rows:
        goal = Objective(fn, [], tuple(extra))
        steps, wide = self._steps(BatchPlan(EVAL_BATCH, order="fixed")), self._wide(goal, self.net)
        state = self._state(record.select(params, steps.order), goal, steps)
        values: Tensor | None = None
        for step in steps:
            out = wide.values(record.select(state.params, step.who), step, state.extra)
            if values is None:
                values = out.new_zeros(self.offsets[-1], *out.shape[2:])
            real = slice(None) if step.weight is None else step.weight > 0
            values[step.at[real]] = out[real]
        assert values is not None
        return Rows(values)

    def _steps(
        self,
        plan: BatchPlan,
        exact: bool = False,
        start: Sequence[int] | None = None,
        coupled: Coupled = False,
    ) -> Steps:
        """The batches of all clients; `start` is given for training."""
        begin = start or [0] * len(self.ids)
        merge = start is not None and self.train_net.couples
        tables = [
            plan.table(y, *key, self.round, s, merge)
            for y, key, s in zip(self.y_host, self.keys, begin, strict=True)
        ]
        index = self.index  # before the labels: it may bring others to the device
        given = (tables, self.offsets, index, self.samples.y, self.dtype)
        return Steps(*given, exact=exact, mark_filling=coupled == "filled")

    def _as_seen(self, steps: Steps, goal: Objective, purpose: str) -> Iterator[Step]:
        """The steps of training, on batches that are changed if there is an augmentation."""
        if goal.x is None and self.augment is None and steps.same and steps.clients == 1:
            inputs, version = torch.empty(0), -1  # the same batch in every step is gathered once
            for step in steps:
                if inputs._version != version:  # not yet, or a network wrote into it
                    inputs = self.samples.inputs(step.sample)
                    version = inputs._version
                yield replace(step, inputs=inputs)
            return
        if goal.x is not None or self.augment is None:
            yield from steps
            return
        clients = list(range(steps.clients)) if steps.order is None else steps.order.tolist()
        for number in range(steps.count):
            for step in steps.at_step(number):
                inputs = self.samples.inputs(step.sample)
                rows = (
                    clients[step.who]
                    if isinstance(step.who, slice)
                    else [clients[row] for row in step.who.tolist()]
                )
                for row, (k, size) in enumerate(zip(rows, step.size.tolist(), strict=True)):
                    real = slice(0, int(size))
                    draw = self._draw(purpose, k, number)
                    inputs[row, real] = self.augment(inputs[row, real], draw)
                yield replace(step, inputs=inputs)

    def _wide(self, goal: Objective, net: Net) -> StackedLoss:
        return StackedLoss(goal.loss, net, self.samples, tuple(goal.moving), goal.coupled)

    def _state(self, params: Tree, goal: Objective, steps: Steps) -> StepState:
        """`params` as they are, the extra arguments of the loss in the order of the stack; then
        what the models are pulled to."""
        sorted_extra = tuple(record.select(e, steps.order) for e in (*goal.extra, *goal.pull))
        return StepState(params, torch.zeros_like(self.sizes), sorted_extra, goal.x)

    def _captured(
        self, kind: StepKind, steps: Steps, state: StepState, plan: BatchPlan
    ) -> CapturedStep | None:
        """The captured step to replay, where capturing pays."""
        # A captured step keeps labels: one whole number per sample.
        if self.samples.y.dtype != torch.int64 or self.samples.y.ndim > 1:
            return None
        if self.augment is not None and state.x is None:
            return None
        if self.captured_steps is None or steps.count < cuda_graphs.MIN_STEPS_TO_CAPTURE:
            return None
        largest = max(len(rows) for rows in self.samples.parts["train"])
        return self.captured_steps.find(kind, steps, state, plan.count(largest))


def _cannot_fill(net: Net) -> bool:
    """Whether samples that fill up a batch would change what the network makes of the others. A
    user's own loss may show it other samples as well, of which nothing is known."""
    known = net.own_loss is None and layers.can_leave_out_filling(net.module)
    return net.couples and not known
