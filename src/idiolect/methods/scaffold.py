"""SCAFFOLD (Karimireddy et al., 2020): control variates against client drift.

A control variate estimates where a client pulls (c_i) and where all pull together (c). A client
corrects every step by the difference (Algorithm 1, Eq. 3-5):

    y <- y - lr (g_i(y) + c - c_i)
    c_i+ = g_i(x), the gradient at the received model over all data     (option I)
    c_i+ = c_i - c + (x - y) / (S lr), S the client's local steps       (option II)
    x <- x + eta 1/|A| sum_A (y_i - x),    c <- c + 1/N sum_A (c_i+ - c_i)

The mean over the arrivals A is plain, as in the paper; weighting='samples' is the other. Option II
(default) is what the paper and the libraries run; it divides by each client's own number of steps,
so clients of unequal size are right. With momentum or weight decay it measures the step as these
change it. Only weights have control variates; BatchNorm statistics are averaged as in FedAvg.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Server, Ups, cross_entropy, hyper
from idiolect.core.tree import Record, Tree
from idiolect.methods.fedavg import FedAvg


def corrected(net: Net, params: Tree, x: Tensor, y: Tensor, correction: Tree) -> Tensor:
    """Cross-entropy plus a linear term whose gradient is the correction c - c_i."""
    return cross_entropy(net, params, x, y) + tree.inner(correction, params)


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """One global model, local steps corrected for the client's own drift."""

    weighting: Literal["samples", "uniform"] = hyper("uniform")
    momentum: float = hyper(0.0, needs="")
    optimizer: ClassVar[Literal["sgd"]] = "sgd"  # type: ignore[misc]  # c_i+ divides by its steps
    option: Literal[2, 1] = hyper(2, "c_i+ from the steps taken (2) or a gradient at x (1)")
    server_lr: float = hyper(1.0, "server step eta", above=0)

    name = "scaffold"
    paper = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for FL"
    year = 2020
    traffic = "4"
    also_sent = ("control: weights",)  # sends its change

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"model": start, "control": tree.zeros_like(tree.pick(start, net.weights))}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"control": tree.zeros_like(tree.pick(start, local.net.weights))}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={"model": server["model"], "control": server["control"]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        x, c, own = down["model"], down["control"], mine["control"]
        done = self.sgd(local, x, corrected, extra=(tree.sub(c, own),))
        y = done.params
        if self.option == 1:
            fresh, _, _ = local.grad(cross_entropy, x)
        else:
            lr = local.each(self.lr * self.lr_factor(local.round))
            moved = tree.sub(tree.pick(x, c), tree.pick(y, c))
            fresh = tree.add(tree.sub(own, c), tree.scale(moved, 1 / (done.steps * lr)))
        return {"model": y, "control": tree.sub(fresh, own)}, {"control": fresh}

    def aggregate(self, server: Server, ups: Ups) -> None:
        mean = tree.mix(self.weights(ups), ups["model"])
        server["model"] = tree.lerp(server["model"], mean, self.server_lr)
        each = torch.full_like(ups.sizes, 1 / len(server.sizes))
        server["control"] = tree.add(server["control"], tree.mix(each, ups["control"]))
