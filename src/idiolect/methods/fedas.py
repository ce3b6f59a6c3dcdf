"""FedAS (Yang et al., CVPR 2024): bridging inconsistency in personalized federated learning.

Parameter alignment: before training, the received base learns the features of the client's own
previous base (Eq. 2-4). Client synchronization: the server weighs bases by the trace of the
empirical Fisher information, the summed squared gradient after training (Eq. 5-8). Defaults are the
paper's (lr 0.005, 5 epochs, batches of 16) and the code's (alignment of one epoch, lr 0.01).

Where paper and code disagree: the paper's alignment target is per sample, the code's is the mean
feature of the sample's class (default). Eq. 8 divides by m although its weights are normalised;
the code does not (default). The code takes samples in stored order and drops the last partial batch
in training, alignment, class means and trace: order='fixed', drop_last=true. The code aligns the
server's own object, so client k inherits the alignment of clients 1..k-1 and identical clients end
up different; here every client aligns a copy.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Local
from idiolect.core.method import Down, Ids, Server, SgdMethod, Ups, cross_entropy, features, hyper
from idiolect.core.net import Net
from idiolect.core.tree import Record, Tree


def match_sample(net: Net, params: Tree, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Squared distance to the features the client's previous base gave the same sample (Eq. 2)."""
    return (net.features(params, x) - target).square().sum(1)


def match_class_mean(net: Net, params: Tree, x: Tensor, y: Tensor, means: Tensor) -> Tensor:
    """Sum over the classes in the batch of the mean squared error to the class's mean feature."""
    error = (net.features(params, x) - means[y]).square().mean(1)
    same = (y[:, None] == y[None, :]).sum(1)
    return (error / same * (y >= 0)).sum()


@dataclass(frozen=True)
class FedAS(SgdMethod):
    """Personal head, aligned base, bases weighted by the trace of the Fisher information."""

    lr: float = hyper(0.005)
    epochs: int = hyper(5)
    batch_size: int | Literal["full"] = hyper(16)
    drop_last: bool = hyper(False, "leave out last partial batches, in all three phases", needs="")
    align: bool = hyper(True, "parameter alignment (Eq. 2-4)")
    align_lr: float = hyper(0.01, "step size of the alignment", min=0, needs="align=true")
    align_epochs: int = hyper(1, "epochs of the alignment", min=1, needs="align=true")
    align_batch_size: int | Literal["full", "same"] = hyper(
        "same", "its mini-batch size", min=1, needs="align=true"
    )
    target: Literal["class_mean", "sample"] = hyper("class_mean", "its target", needs="align=true")
    synchronize: bool = hyper(True, "weigh bases by Fisher trace (Eq. 5-8), else by samples")
    trace: Literal["batches", "mean_over_batches", "per_sample"] = hyper(
        "batches", "squared gradients: sum, mean, or per sample", needs="synchronize=true"
    )
    normalize: Literal["proportional", "softmax", "minmax"] = hyper(
        "proportional", "from traces to weights", needs="synchronize=true"
    )
    literal_mean: bool = hyper(False, "divide the update by m as Eq. 8 is printed")
    personal_layers: str = hyper("head", "head, norm, channels:0.5 (CD2-pFed), or name patterns")

    name = "fedas"
    paper = "Yang et al., FedAS: Bridging Inconsistency in Personalized FL"
    year = 2024
    personal_part = "the head, and the client's own last base"
    traffic = "2 base"
    rounds_default = 40

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"base": net.shared(start, self.personal_layers)}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"model": start}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={"base": server["base"]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        base = down["base"]
        model = tree.overlay(base, mine["model"])
        if self.align:
            moved = self._align(local, model, mine["model"], train=base)
            model = tree.overlay(tree.crop(moved, base), model)  # personal channels as they were
        model = self.train(local, model)  # Algorithm 1: base and head jointly
        up: Record = {"base": tree.crop(model, base)}
        if self.synchronize:
            up["trace"] = self._trace(local, model)
        return up, {"model": model}

    def _align(self, local: Local, model: Tree, previous: Tree, train: Tree) -> Tree:
        batches = self.batches
        if self.align_batch_size != "same":
            batches["batch_size"] = self.align_batch_size
        how = batches | {"lr": self.align_lr, "epochs": self.align_epochs, "train": train}
        target = local.forward(features, previous)
        if self.target == "sample":
            return local.sgd(match_sample, model, extra=(target,), purpose="align", **how).params
        # As published: a sample that no batch ever holds does not count for the mean either.
        never_held = self.drop_last and self.order != "shuffled"
        means = local.class_mean(target, **(batches if never_held else {}))
        how |= {"extra": (means,), "coupled": "filled"}
        return local.sgd(match_class_mean, model, purpose="align", **how).params

    def _trace(self, local: Local, model: Tree) -> Tensor:
        how = self.batches | {"per_sample": self.trace == "per_sample"}
        total, count = local.squared_grad(cross_entropy, model, **how)
        return total / count if self.trace == "mean_over_batches" else total

    def aggregate(self, server: Server, ups: Ups) -> None:
        weight = trace_weights(ups["trace"], self.normalize) if self.synchronize else ups.share
        server.log(aggregation_weight=weight)
        base = tree.mix(weight, ups["base"])  # Eq. 7
        if self.literal_mean:  # Eq. 8
            base = tree.lerp(server["base"], base, 1 / len(ups))
        server["base"] = base

    def shared(self, server: Server) -> Tree | None:
        divided = self.personal_layers.startswith("channels:")  # all names, but not whole
        return None if divided else server["base"]

    def personal(self, down: Record, mine: Record) -> Tree:
        return mine["model"]


def trace_weights(trace: Tensor, normalize: str) -> Tensor:
    """Aggregation weights from Fisher traces; uniform where the traces say nothing."""
    if normalize == "softmax":
        return torch.softmax(trace, 0)
    if normalize == "minmax":
        trace = trace - trace.min()
    total = trace.sum()
    return torch.where(total > 0, trace / total, torch.full_like(trace, 1 / len(trace)))
