"""FedProto (Tan et al., AAAI 2022): federated prototype learning across heterogeneous clients.

Only class prototypes travel: the mean feature of each class. A client trains its own whole model
with cross-entropy plus lambda times the squared distance of a feature to the global prototype of
its class (Algorithm 1), and predicts the class of the nearest global prototype.

|f - c_k|^2 = |f|^2 - (2 c_k . f - |c_k|^2), so the nearest prototype is the largest output of a
linear head with weights 2 c_k and biases -|c_k|^2. That head replaces the client's own in the tree
it predicts with, and the personal model exports as a plain module. A class nobody has sent a
prototype of gets the bias `NEVER`; before the first prototypes arrive the client's own head serves.
So it is right after local work too: those are the prototypes received this round.

Where paper and code disagree: the paper weighs prototypes by sample count (and divides by the
number of clients once more, which would shrink them); the code's mean is uniform: `weighting`. The
penalty is the mean over features as in the code. The code collects prototypes while it trains;
here they are the features of the trained model. A class absent from this round keeps its prototype.
PFLlib tests trained models with the prototypes averaged after that training, as `personal` does.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Record, Server, Tree, Ups, features, hyper
from idiolect.methods.local import LocalOnly
from idiolect.methods.shared.prototypes import aligned, class_average

NEVER = -1e9  # bias of a class without prototype


@dataclass(frozen=True)
class FedProto(LocalOnly):
    """Every client has its own model; features of a class are drawn to its global prototype."""

    momentum: float = hyper(0.5)
    batch_size: int | Literal["full"] = hyper(4)
    lam: float = hyper(1.0, "lambda: pull of features to the global prototypes (0: Local)", min=0)
    weighting: Literal["samples", "uniform"] = hyper("samples", "how clients' prototypes count")
    prediction: Literal["prototype", "classifier"] = hyper(
        "prototype", "predict the class of the nearest prototype, or with the client's own head"
    )

    name = "fedproto"
    needs_classes = True
    fixed_loss = True
    paper = "Tan et al., FedProto: Federated Prototype Learning"
    year = 2022
    personal_part = "the whole model"
    traffic = "2 prototypes"
    rounds_default = 100

    @property
    def revision(self) -> int:
        # It was tested after local work with the client's own prototypes.
        return 2 if self.prediction == "prototype" else 1

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        weight, bias = net.biased_head()
        known = torch.zeros_like(start[bias], dtype=torch.bool)
        # the names of the head's leaves say where the prototypes go
        return {"prototypes": {weight: torch.zeros_like(start[weight])}, "known": {bias: known}}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={"prototypes": server["prototypes"], "known": server["known"]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        [(weight, target)], [(bias, known)] = down["prototypes"].items(), down["known"].items()
        extra = (target, local.each(self.lam)[:, None] * known.to(target.dtype))
        model = self.train(local, mine["model"], aligned, extra=extra)
        means = local.class_mean(local.forward(features, model))
        return {"prototypes": {weight: means}, "counts": {bias: local.counts}}, {"model": model}

    def aggregate(self, server: Server, ups: Ups) -> None:
        [(weight, means)], [(bias, counts)] = ups["prototypes"].items(), ups["counts"].items()
        share = counts if self.weighting == "samples" else counts > 0
        old = server["prototypes"][weight]
        server["prototypes"] = {weight: class_average(means, share, old)}
        server["known"] = {bias: server["known"][bias] | (counts > 0).any(0)}

    def personal(self, down: Record, mine: Record) -> Tree:
        return self._predictor(mine["model"], down["prototypes"], down["known"])

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        # Its own prototypes would be a client's knowledge of its own classes alone: another method.
        return self._predictor(mine["model"], down["prototypes"], down["known"])

    def _predictor(self, model: Tree, prototypes: Tree, known: Tree) -> Tree:
        if self.prediction == "classifier":
            return model
        [(weight, c_KCD)], [(bias, has)] = prototypes.items(), known.items()
        has = has.bool()
        never = torch.full_like(model[bias], NEVER)
        nearest = {weight: 2 * c_KCD, bias: torch.where(has, -c_KCD.square().sum(2), never)}
        return model | tree.where(has.any(1), nearest, tree.pick(model, nearest))
