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

Eq. 5 takes one gradient of the whole data's log-likelihood, the code the sum over mini-batches of
squared gradients of their means (default): trace='whole_data' (Eq. 5; it grows with the square of
the data), 'whole_data_mean' (of the mean loss). The min-max weights of Figure 6a are printed
without the sum to 1 that mixing needs: 'minmax' is scaled to it, 'minmax_printed' moves the base
by the sum of weighted updates as they are. The paper quotes a learning rate decay of 1e-3 and the
code has none on: lr_decay=0.999 is that. Figure 4b's other ways to align: `align_manner`,
`align_to`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Local
from idiolect.core.method import Down, Ids, Server, Ups, cross_entropy, hyper
from idiolect.core.net import Net
from idiolect.core.tree import Record, Tree
from idiolect.methods.shared.alignment import Alignment


@dataclass(frozen=True)
class FedAS(Alignment):
    """Personal head, aligned base, bases weighted by the trace of the Fisher information."""

    lr: float = hyper(0.005)
    epochs: int = hyper(5)
    batch_size: int | Literal["full"] = hyper(16)
    drop_last: bool = hyper(False, "leave out last partial batches, in all three phases", needs="")
    synchronize: bool = hyper(True, "weigh bases by Fisher trace (Eq. 5-8), else by samples")
    trace: Literal[
        "batches", "mean_over_batches", "per_sample", "whole_data", "whole_data_mean"
    ] = hyper("batches", "squared gradients of what (whole_data: Eq. 5)", needs="synchronize=true")
    normalize: Literal["proportional", "softmax", "minmax", "minmax_printed"] = hyper(
        "proportional", "from traces to weights", needs="synchronize=true"
    )
    literal_mean: bool = hyper(False, "divide the update by m as Eq. 8 is printed")
    personal_layers: str = hyper("head", "head, norm, channels:0.5 (CD2-pFed), or name patterns")

    name = "fedas"
    needs_classes = True
    paper = "Yang et al., FedAS: Bridging Inconsistency in Personalized FL"
    year = 2024
    personal_part = "the head, and the client's own last base"
    traffic = "2 base"
    also_sent = ("model: base", "personal: base")  # alignment learns from the last base
    rounds_default = 40

    @property
    def revision(self) -> int:
        # All clients in one stack left samples of a last partial batch out of such a trace.
        return 2 if self.trace == "per_sample" and self.drop_last else 1

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"base": net.shared(start, self.personal_layers)}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"model": start}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={"base": server["base"]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        base = down["base"]
        model = tree.overlay(base, mine["model"])
        model = self.aligned(local, model, mine["model"], part=base)
        model = self.train_aligned(
            local, model, mine["model"]
        )  # Algorithm 1: base and head jointly
        up: Record = {"base": tree.crop(model, base)}
        if self.synchronize:
            up["trace"] = self._trace(local, model)
        return up, {"model": model}

    def _trace(self, local: Local, model: Tree) -> Tensor:
        if self.trace.startswith("whole_data"):
            gradient, _, _ = local.grad(cross_entropy, model)
            square = tree.dot(gradient, gradient)
            return square if self.trace == "whole_data_mean" else square * local.sizes.square()
        how = self.batches | {"per_sample": self.trace == "per_sample"}
        total, count = local.squared_grad(cross_entropy, model, **how)
        return total / count if self.trace == "mean_over_batches" else total

    def aggregate(self, server: Server, ups: Ups) -> None:
        weight = trace_weights(ups["trace"], self.normalize) if self.synchronize else ups.share
        server.log_clients(ups.ids, aggregation_weight=weight)
        if self.synchronize:
            server.log_clients(ups.ids, fisher_trace=ups["trace"])
        base = tree.mix(weight, ups["base"])  # Eq. 7
        if self.synchronize and self.normalize == "minmax_printed":  # the rest stays where it is
            base = tree.add(base, tree.scale(server["base"], 1 - weight.sum()))
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
    total = trace.sum()
    if normalize.startswith("minmax"):
        trace = trace - trace.min()
        total = trace.max() if normalize == "minmax_printed" else trace.sum()
    return torch.where(total > 0, trace / total, torch.full_like(trace, 1 / len(trace)))
