"""Measuring what `measure` asks for of clients' local work: FLOPs and network passes, how alike
their updates are, tests of other models they have."""

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from idiolect.core import record, tree
from idiolect.core.method import Method, Server
from idiolect.core.net import Net
from idiolect.core.tree import Record, Tree
from idiolect.data import Federation
from idiolect.engine.engine import Engine
from idiolect.engine.loop import LoopEngine
from idiolect.errors import UserError
from idiolect.simulation.evaluation import Evaluation
from idiolect.simulation.outcome import Round
from idiolect.simulation.requests import Asking, Fitted


class Measuring:
    """What is measured of the local work of a simulation's rounds."""

    def __init__(
        self, method: Method, engine: Engine, server: Server, evaluation: Evaluation, seed: int
    ):
        self.method, self.engine, self.server, self.seed = method, engine, server, seed
        self.evaluation, self.measure = evaluation, evaluation.measure

    def local_work(
        self, ids: list[int], t: int, given: tuple[Record, Record], fitted: Fitted, result: Round
    ) -> Asking[None]:
        """Of the clients that trained in round t (from 0), `given` what they were sent and had."""
        if self.measure.flops:
            flops, passes = self._counter.count(self.method, ids, t, *given)
            self.evaluation.scores.put("flops", ids, flops, only=True)
            self.evaluation.scores.put("passes", ids, passes, only=True)
        if self.measure.gradients:
            alike = layer_similarity(self.engine.net, self.method.personal(*given), fitted.trained)
            for layer, cosine in alike.items():
                shown = self.server.by_id(cosine, ids, ids)
                result.logs[f"gradient_similarity/{layer}"] = shown
        if self.measure.guidance:
            model = self.method.guidance_model(given[0], fitted.up, fitted.mine)
            if model is None:
                raise UserError(
                    f"measure guidance: {self.method.name} has no guidance model to test with these"
                    " settings; leave it out, or take feddwa with guidance=one_epoch"
                )
            yield from self.evaluation.test("guidance", model, ids)

    @cached_property
    def _counter(self) -> "WorkCounter":
        return WorkCounter(self.evaluation.federation, self.engine, self.seed)


class WorkCounter:
    """Counts what clients compute in a round, by doing their work once more, one client at a time
    in the reference engine: stacked and captured kernels hide from PyTorch's counter."""

    def __init__(self, federation: Federation, engine: Engine, seed: int):
        how = {"seed": seed, "device": engine.device, "dtype": engine.dtype}
        self._engine = LoopEngine(federation, engine.net.module, **how)  # type: ignore[arg-type]
        self._engine.learn_by(engine.own_loss, engine.augment)
        self._seen = 0  # samples that went into the network
        for net in self._engine.nets:
            net.module.register_forward_pre_hook(self._note, prepend=True)  # before inputs part

    def _note(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._seen += len(inputs[0])

    def count(
        self, method: Method, ids: list[int], round: int, down: Record, mine: Record
    ) -> tuple[Tensor, Tensor]:
        """FLOPs of `fit`, and how often the client's samples went through the network, `[K]`."""
        from torch.utils.flop_counter import FlopCounterMode  # it imports Triton, which takes long

        ours = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # engine/layers/linear.py
        known = {} if ours is None else {ours: _flops_of_linear}
        flops, passes = [], []
        for k, i in enumerate(ids):
            local, self._seen = self._engine.local([i], round), 0
            with FlopCounterMode(display=False, custom_mapping=known) as counter:
                method.fit(record.select(down, [k]), record.select(mine, [k]), local)
            flops.append(counter.get_total_flops())
            passes.append(self._seen / float(local.sizes[0]))
        return torch.tensor(flops).double(), torch.tensor(passes).double()


def _flops_of_linear(x: torch.Size, w: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * math.prod(x) * w[0]


def layer_similarity(net: Net, before: Tree, after: Tree) -> dict[str, Tensor]:
    """Cosine of every two clients' updates `[K, K]` for each layer with a weight matrix; biases are
    left out, as in SPFL's program."""
    layers = [n for n in net.weights if n.endswith("weight") and after[n].ndim > 2]
    return {n.removesuffix(".weight"): tree.cosines({n: after[n] - before[n]}) for n in layers}
