"""CD2-pFed (Shen, Zhou and Yu, CVPR 2022): cyclic distillation-guided channel decoupling.

A share of every layer's output channels is private, the rest is averaged; nothing of a private
channel travels. Shared and private channels are sub-networks of the client's model. Beside the
cross-entropy of the whole, the two learn from each other: half the sum of both Kullback-Leibler
divergences between their predictions. The private share grows linearly from 0 to `personal_share`;
at 0 this is FedAvg, at 1 Local. The client smooths its private weights over time.

The private channels are the last ones of each layer. The head's outputs are the classes, which both
sub-networks must predict, so its inputs are divided instead; its bias is shared and serves both.
There is no public code, and the paper's weights of distillation and smoothing were not at hand: 1
and none here. The paper smooths after local epochs, here it is after rounds. As `personal_layers`
of FedAS, 'channels:0.5' is the same decoupling without distillation. `align` puts FedAS's parameter
alignment before training (its Figure 6b); the features are then those of the whole model.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Server, Ups, cross_entropy, hyper
from idiolect.core.tree import Record, Tree
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.shared.alignment import Alignment


def cyclic_distillation(
    net: Net, params: Tree, x: Tensor, y: Tensor, shared: Tree, private: Tree, lam: Tensor
) -> Tensor:
    """Cross-entropy plus lambda times the symmetric divergence of the two sub-networks."""
    s, p = (F.log_softmax(net(masked(params, only), x), 1) for only in (shared, private))
    divergence = ((s.exp() - p.exp()) * (s - p)).sum(1) / 2
    return cross_entropy(net, params, x, y) + lam * divergence


def masked(params: Tree, only: Tree) -> Tree:
    """The weights `only` keeps; statistics as copies, which the sub-network may update."""
    return {n: x * only[n] if n in only else x.clone() for n, x in params.items()}


@dataclass(frozen=True)
class CD2pFed(Alignment, FedAvg):
    """Channels divided into shared and private ones that distil into each other."""

    align: bool = hyper(False)
    align_manner: ClassVar[Literal["serial"]] = "serial"  # type: ignore[misc]
    align_weight: ClassVar[float] = 1.0  # type: ignore[misc]
    align_lr: float = hyper(0.01, needs="align=true")
    align_epochs: int = hyper(1, needs="align=true")
    align_batch_size: int | Literal["full", "same"] = hyper("same", needs="align=true")
    personal_share: float = hyper(0.5, "private share of each layer's channels", min=0, max=1)
    growth_rounds: int = hyper(
        50, "rounds until that share is reached (0: at once)", min=0, needs="personal_share!=0"
    )
    distill: float = hyper(1.0, "lambda: distillation's weight", min=0, needs="personal_share!=0")
    average: float = hyper(
        1.0, "share of new private weights (1: all)", above=0, max=1, needs="personal_share!=0"
    )

    name = "cd2_pfed"
    needs_classes = True
    paper = "Shen et al., CD2-pFed: Cyclic Distillation-guided Channel Decoupling"
    year = 2022
    personal_part = "the last channels of every layer"
    traffic = "2 shared channels"
    also_sent = ("model: all", "personal: all")  # shared channels; the rest in its own test

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"model": start}

    def download(self, server: Server, who: Ids) -> Down:
        grown = min(1.0, server.round / self.growth_rounds) if self.growth_rounds else 1.0
        spec = f"channels:{grown * self.personal_share}"
        return Down(shared={"model": server.net.shared(server["model"], spec)})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        part, start = down["model"], tree.overlay(down["model"], mine["model"])
        start = self.aligned(local, start, mine["model"], part)
        shared, private = self._sub_networks(part, tree.pick(start, local.net.weights))
        if self.distill and private:
            extra = (shared, private, local.each(self.distill))
            model = self.train(local, start, cyclic_distillation, extra=extra)
        else:
            model = self.train(local, start)
        up = tree.crop(model, part)
        smooth = model if self.average == 1 else tree.lerp(mine["model"], model, self.average)
        return {"model": up}, {"model": tree.overlay(up, smooth)}

    def _sub_networks(self, part: Tree, whole: Tree) -> tuple[Tree, Tree]:
        """1 where a weight belongs to the sub-network; empty where there are no two of them."""
        if not any(n in part and part[n].shape != x.shape for n, x in whole.items()):
            return {}, {}
        ones = tree.apply(torch.ones_like, tree.pick(part, whole))
        shared = tree.overlay(ones, tree.zeros_like(whole))
        undivided = {n for n in whole if part[n].shape == whole[n].shape}
        return shared, {n: x if n in undivided else 1 - x for n, x in shared.items()}

    def aggregate(self, server: Server, ups: Ups) -> None:
        server["model"] = tree.overlay(tree.mix(self.weights(ups), ups["model"]), server["model"])

    def personal(self, down: Record, mine: Record) -> Tree:
        return tree.overlay(down["model"], mine["model"])

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        return mine["model"]

    def shared(self, server: Server) -> Tree | None:
        return None
