"""APFL (Deng et al., 2020): every client predicts with a mixture of a personal and a global model.

    vbar = alpha v + (1 - alpha) w                                         (Eq. 3)
    w <- w - lr grad f(w),    v <- v - lr grad_v f(vbar)                   (Algorithm 1)
    alpha <- alpha - lr <v - w, grad f(vbar)>, cut to [0, 1]               (Eq. 10, if adaptive)

grad_v has the factor alpha: alpha = 1 is Local, alpha = 0 FedAvg. w is averaged, v stays.

Where paper and code disagree: the code moves w first and takes v's gradient with the moved w; both
move from the same point here, as in Algorithm 1. The code adapts alpha once a round, on the round's
first mini-batch, with a gradient mixed from both models' and an extra 0.02 alpha; the derivative of
Eq. 10 is taken here, once a round before the local steps. alpha = 0.5 is the code's default; the
paper's tables have 0.25, 0.5 and 0.75. After delivery w is the new global model.
BatchNorm statistics of the mixture are the client's own.
"""

from dataclasses import dataclass

from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Local, Net, Record, Tree, cross_entropy, hyper
from idiolect.methods.fedavg import FedAvg


def joint(net: Net, params: Tree, x: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
    """f(w) moves w, f(vbar) moves v."""
    both = tree.nest(params)
    w, v = both["w"], both["v"]
    vbar = v | {n: alpha * v[n] + (1 - alpha) * w[n].detach() for n in net.weights}
    return cross_entropy(net, w, x, y) + cross_entropy(net, vbar, x, y)


def of_alpha(net: Net, params: Tree, x: Tensor, y: Tensor, w: Tree, v: Tree, stats: Tree) -> Tensor:
    """f(vbar) as a function of alpha; statistics are looked at, not updated."""
    alpha = params["alpha"]
    vbar = {n: alpha * v[n] + (1 - alpha) * w[n] for n in v}
    return cross_entropy(net, vbar | {n: s.clone() for n, s in stats.items()}, x, y)


@dataclass(frozen=True)
class APFL(FedAvg):
    """A mixture of a personal and the global model, trained as a mixture."""

    alpha: float = hyper(0.5, "share of the personal model (1: Local, 0: FedAvg)", min=0, max=1)
    adaptive: bool = hyper(False, "each client learns its own alpha from there (Eq. 10)")

    name = "apfl"
    paper = "Deng et al., Adaptive Personalized Federated Learning"
    year = 2020
    personal_part = "a second whole model, and alpha"
    trainings = 2

    def client_init(self, start: Tree, local: Local) -> Record:
        alpha = local.each(self.alpha)
        return self._split(start, alpha, local.net)

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        alpha = self._adapted(down["model"], mine, local) if self.adaptive else mine["alpha"]
        both = tree.leaves({"w": down["model"], "v": mine["v"] | mine["stats"]})
        names = [f"{part}/{n}" for part in ("w", "v") for n in local.net.weights]
        done = tree.nest(self.train(local, both, joint, train=names, extra=(alpha,)))
        return {"model": done["w"]}, self._split(done["v"], alpha, local.net)

    @staticmethod
    def _split(v: Tree, alpha: Tensor, net: Net) -> Record:
        weights, stats = tree.pick(v, net.weights), tree.pick(v, net.stats)
        return {"v": weights, "stats": stats, "alpha": alpha}

    def _adapted(self, w: Tree, mine: Record, local: Local) -> Tensor:
        how = self.batches | {"lr": self.lr * self.lr_factor(local.round), "purpose": "alpha"}
        how |= {"extra": (w, mine["v"], mine["stats"]), "steps": 1, "start": local.round}
        how["report"] = False
        moved = local.sgd(of_alpha, {"alpha": mine["alpha"]}, train=("alpha",), **how).params
        alpha = moved["alpha"].clamp(0, 1)
        local.log(alpha=alpha)
        return alpha

    def personal(self, down: Record, mine: Record) -> Tree:
        w = tree.pick(down["model"], mine["v"])
        return tree.lerp(w, mine["v"], mine["alpha"]) | mine["stats"]
