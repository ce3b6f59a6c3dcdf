"""Per-FedAvg (Fallah et al., 2020): a global model that is good after one step of every client.

Minimizes sum_i f_i(w - alpha grad f_i(w)) (Eq. 3). A client's step uses independent mini-batches
D, D', D'' (Algorithm 1):

    moved = w - alpha grad f(w; D)
    w <- w - beta (I - alpha H(w; D'')) grad f(moved; D')

`form`: exact computes the product with the Hessian H; hessian_free (HF) takes it from gradients,
(grad f(w + delta u; D'') - grad f(w - delta u; D'')) / 2 delta; first_order (FO) leaves it out.
A client too small to be cut into two or three mini-batches uses all it has for each. At test time a
client takes `adapt_steps` steps of size alpha from the delivered model.

alpha = beta = 0.01 are SPFL's, beta is `lr`. SPFL's Per-FedAvg is something else: two consecutive
SGD steps on every mini-batch, tested without adaptation: form='two_step' (both of size `lr`) and
adapt_steps=0. PLGA's Table 2 has its asynchronous variant, `per_fedavg_async`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Local, Net, Record, Tree, cross_entropy, hyper
from idiolect.methods.fedavg import FedAvg

Batch = tuple[Tensor, Tensor]


def cut(x: Tensor, y: Tensor, parts: int) -> list[Batch]:
    """The batch in parts, or the whole of it for each where a part would have under two samples."""
    if len(y) < 2 * parts:
        return [(x, y)] * parts
    return list(zip(x.tensor_split(parts), y.tensor_split(parts), strict=True))


def gradient(net: Net, w: Tree, stats: Tree, batch: Batch) -> Tree:
    """Of the mean loss on one batch; statistics are looked at, not updated."""

    def value(w: Tree) -> Tensor:
        return cross_entropy(net, w | {n: v.clone() for n, v in stats.items()}, *batch).mean()

    return torch.func.grad(value)(w)


@cache
def meta(form: str) -> Callable[..., Tensor]:
    """The loss whose gradient is the step of Algorithm 1."""

    def loss(net: Net, params: Tree, x: Tensor, y: Tensor, alpha: Tensor, delta: Tensor) -> Tensor:
        first, second, *third = cut(x, y, 2 if form == "first_order" else 3)
        here = {n: v.detach() for n, v in params.items()}
        w, stats = tree.pick(here, net.weights), tree.pick(here, net.stats)
        inner = gradient(net, w, stats, first)
        ahead = {n: params[n] - alpha * inner[n] for n in w}
        value = cross_entropy(net, params | ahead, *second).mean()
        if form == "first_order":
            return value
        u = gradient(net, {n: v.detach() for n, v in ahead.items()}, stats, second)
        if form == "exact":
            bent = torch.func.grad(lambda w: tree.inner(gradient(net, w, stats, third[0]), u))(w)
        else:
            up = gradient(net, {n: w[n] + delta * u[n] for n in w}, stats, third[0])
            down = gradient(net, {n: w[n] - delta * u[n] for n in w}, stats, third[0])
            bent = {n: (up[n] - down[n]) / (2 * delta) for n in w}
        return value - alpha * tree.inner({n: params[n] - w[n] for n in w}, bent)

    return loss


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """One global model, a step away from everybody's own."""

    momentum: float = hyper(0.0, needs="")
    optimizer: ClassVar[Literal["sgd"]] = "sgd"  # type: ignore[misc]  # Algorithm 1
    lr: float = hyper(0.01, "beta: learning rate of the meta step", above=0)
    alpha: float = hyper(0.01, "step a client takes to make the model its own", min=0)
    form: Literal["first_order", "hessian_free", "exact", "two_step"] = hyper(
        "first_order", "FO, HF, exact Hessian-vector products, or SPFL's two plain steps"
    )
    delta: float = hyper(1e-3, "distance of HF's two gradients", above=0, needs="form=hessian_free")
    adapt_steps: int = hyper(1, "steps of size alpha before predicting", min=0)

    name = "per_fedavg"
    paper = "Fallah et al., Personalized Federated Learning with Theoretical Guarantees"
    year = 2020
    personal_part = "the whole model, one step from the global one"

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        if self.form == "two_step":
            return {"model": self.train(local, down["model"], repeat=2)}, mine
        parts = 2 if self.form == "first_order" else 3
        how: dict[str, Any] = {"coupled": True}
        if self.batch_size != "full":
            how["batch_size"] = parts * self.batch_size
        how["extra"] = (local.each(self.alpha), local.each(self.delta))
        return {"model": self.train(local, down["model"], meta(self.form), **how)}, mine

    def adapt(self, params: Tree, local: Local) -> Tree:
        if not self.adapt_steps:
            return params
        how: dict[str, Any] = {"lr": self.alpha, "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}
        how |= {"steps": self.adapt_steps, "start": local.round * self.adapt_steps}
        return self.train(local, params, purpose="adapt", **how)
