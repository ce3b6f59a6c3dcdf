"""SPFL and SPFL-w: synchronous personalized FL with stage-wise normalized gradient similarity.

The server keeps one model per client. Every Gamma rounds it averages them, lets all clients train
from the mean only to measure how similar their updates are (SNGS), and from then on moves each
client's model along the similarity-weighted sum of everybody's updates (SPFL), or replaces it by
the similarity-weighted mean of the trained models (SPFL-w).

Where paper and code disagree: the paper's step alpha * n_j/n * softmax cannot learn in 100 rounds;
the code moves by the softmax weights alone (default); `weights` has the others. The code's SPFL
keeps each client's own head update (`head='own'`); the paper mixes every stage (default).
"Two-step" means two consecutive SGD steps on each mini-batch, not one of twice the size.
The refresh sends the mean once: both trainings of that round start from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from idiolect import tree
from idiolect.errors import UserError
from idiolect.method import Down, Record, Server, SgdMethod, Table, Tree, Ups, hyper

if TYPE_CHECKING:
    from idiolect.local import Local
    from idiolect.net import Net


@dataclass(frozen=True)
class SPFL(SgdMethod):
    """One model per client, moved along similar clients' updates."""

    batch_size: int | Literal["full"] = hyper(128, "mini-batch size, or 'full'")
    weight_decay: float = hyper(1e-4, "L2 penalty of local SGD")
    two_step: bool = hyper(True, "two consecutive SGD steps on every mini-batch")
    gamma: int = hyper(10, "rounds between refreshes of the similarity")
    stages: Literal[1, 2, "tensor"] = hyper(2, "1 whole model, 2 body and head, or per tensor")
    similarity: Literal["cosine", "layers", "uniform", "identity"] = hyper(
        "cosine", "of whole stages, of layers with fixed weights, or an ablation"
    )
    layer_weights: str = hyper("0.5,0.3,0.2", "weights of the body's layers, similarity='layers'")
    temperature: float = hyper(1.0, "softmax temperature of all stages but the last")
    head_temperature: float = hyper(1.0, "softmax temperature of the last stage")
    head: Literal["softmax", "own"] = hyper("softmax", "last stage mixed, or each its own update")
    weights: Literal["softmax", "data_weighted", "literal"] = hyper(
        "softmax", "St; n_j St renormalised; or the paper's alpha n_j/n St"
    )
    alpha: float = hyper(0.01, "the paper's server step, weights='literal'")
    eta: float = hyper(1.0, "server step")
    refresh_average: bool = hyper(True, "erase personalization at a refresh (the mean to all)")

    name: ClassVar[str] = "spfl"
    paper: ClassVar[str] = "Personalized Heterogeneous FL with Gradient Similarity"
    year: ClassVar[int] = 2022
    personal_part: ClassVar[str] = "the whole model (kept by the server), BatchNorm statistics"
    traffic: ClassVar[str] = "2 (3 at a refresh)"
    rounds_default: ClassVar[int] = 100

    def server_init(self, net: Net, start: Tree) -> Record:
        return {"models": Table(tree.pick(start, net.weights)), "cosine": {}}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"stats": tree.pick(start, local.net.stats)}

    def prepare(self, server: Server, who: Sequence[int]) -> Server:
        if server.round % self.gamma == 0 and self.refresh_average:
            everyone = list(server.sizes)
            total = server["models"].mix(torch.ones(len(everyone)), everyone)
            mean = tree.apply(lambda w: w / len(everyone), total)
            server["models"][everyone] = tree.expand(mean, len(everyone))
        return server

    def download(
        self, server: Server, who: Sequence[int], since: Sequence[int] | None = None
    ) -> Down:
        return Down(each={"model": server["models"][who]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        start = down["model"] | mine["stats"]
        repeat = 2 if self.two_step else 1
        up = {}
        if local.round % self.gamma == 0:  # this training only measures similarity
            probe = self.train(local, start, repeat=repeat, purpose="similarity")
            up["probe"] = tree.sub(down["model"], probe)
        model = self.train(local, start, repeat=repeat)
        up["update"] = tree.sub(down["model"], model)
        return up, {"stats": tree.pick(model, local.net.stats)}

    def aggregate(self, server: Server, ups: Ups) -> Server:
        if "probe" in ups:
            self._measure(server, ups)
        before = server["models"][ups.ids]
        after: Tree = {}
        stages = server.net.stages(self.stages)
        for s, names in enumerate(stages):
            c = self._mixing(server, ups, s, last=names == stages[-1])
            server.log(**{f"mixing_{s}": c})
            update, w = tree.pick(ups["update"], names), tree.pick(before, names)
            after |= self._move(c, w, update)
        server["models"][ups.ids] = {n: after[n] for n in before}
        return server

    def _move(self, c: Tensor, w: Tree, update: Tree) -> Tree:
        return tree.sub(w, tree.scale(tree.mix(c, update), self.eta))

    def _measure(self, server: Server, ups: Ups) -> None:
        stages = server.net.stages(self.stages)
        for s, names in enumerate(stages):
            probe = tree.pick(ups["probe"], names)
            layers = self.similarity == "layers" and self.stages == 2 and names != stages[-1]
            self._know(server, ups, s, self._by_layers(probe) if layers else tree.cosines(probe))

    def _know(self, server: Server, ups: Ups, s: int, measured: Tensor, new: float = 1.0) -> None:
        """Keep what was measured of every pair that took part; `new` < 1 is a moving average."""
        n, at = max(server.sizes) + 1, torch.tensor(ups.ids)
        unknown = torch.eye(n) if new == 1 else torch.zeros(n, n)
        known = server["cosine"].get(str(s), unknown.to(measured.dtype)).cpu().clone()
        known[at[:, None], at] = (1 - new) * known[at[:, None], at] + new * measured.cpu()
        server["cosine"][str(s)] = known
        server.log(**{f"similarity_{s}": known[at[:, None], at]})

    def _by_layers(self, update: Tree) -> Tensor:
        """Weighted mean of the layers' cosines; biases are not measured."""
        layers = [n for n in update if n.endswith("weight")]
        shares = [float(w) for w in self.layer_weights.split(",")]
        if len(shares) != len(layers):
            raise UserError(
                f"method.layer_weights has {len(shares)} values but the body has {len(layers)} "
                f"layers ({', '.join(layers)}); give one weight per layer"
            )
        each = [w * tree.cosines({n: update[n]}) for w, n in zip(shares, layers, strict=True)]
        return torch.stack(each).sum(0)

    def _mixing(self, server: Server, ups: Ups, stage: int, last: bool) -> Tensor:
        """Row i: how much client i takes of each arrival (c_ij)."""
        k = len(ups)
        eye = torch.eye(k, dtype=ups.sizes.dtype, device=ups.sizes.device)
        if self.similarity == "identity" or (last and self.head == "own"):
            return eye
        if self.similarity == "uniform":
            return torch.full_like(eye, 1 / k)
        at = torch.tensor(ups.ids)
        cosine = server["cosine"][str(stage)].cpu()[at[:, None], at].to(eye)
        soft = torch.softmax(cosine / (self.head_temperature if last else self.temperature), 1)
        if self.weights == "softmax":
            return soft
        weighted = ups.share * soft
        if self.weights == "literal":
            return self.alpha * weighted
        return weighted / weighted.sum(1, keepdim=True)

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["model"] | mine["stats"]

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        return tree.sub(down["model"], up["update"]) | mine["stats"]


@dataclass(frozen=True)
class SPFLW(SPFL):
    """SPFL-w: mixes the trained models instead of the updates. `variant='code'` is the published
    program's: one matrix from four layer weights, its moving average from 0 over the refreshes,
    uniform head."""

    variant: Literal["paper", "code"] = hyper("paper", "row-stochastic St on all stages, or code's")

    name: ClassVar[str] = "spfl_w"

    def _move(self, c: Tensor, w: Tree, update: Tree) -> Tree:
        return tree.mix(c, tree.sub(w, update))

    def _measure(self, server: Server, ups: Ups) -> None:
        if self.variant == "paper":
            super()._measure(server, ups)
            return
        layers = [n for n in ups["probe"] if n.endswith("weight")]
        rest = 0.6 / max(1, len(layers) - 1)  # 0.4, 0.2, 0.2, 0.2 for the paper's four layers
        each = [
            (rest if k else 0.4) * tree.cosines({n: ups["probe"][n]}) for k, n in enumerate(layers)
        ]
        self._know(server, ups, 0, torch.stack(each).sum(0), new=0.4)

    def _mixing(self, server: Server, ups: Ups, stage: int, last: bool) -> Tensor:
        if self.variant == "code" and last:
            return ups.sizes.new_full((len(ups), len(ups)), 1 / len(ups))
        return super()._mixing(server, ups, 0 if self.variant == "code" else stage, last)
