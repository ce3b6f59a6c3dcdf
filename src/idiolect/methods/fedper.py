"""FedPer (Arivazhagan et al., 2019): shared base layers, personal last layers.

A client trains base and personal layers together by SGD (its Algorithm 1); the server averages the
bases by sample count, the personal layers stay. `personal_layers` says which they are: by default
the head, the last linear layer.

PFLEGO compares with a FedPer of 50 joint full-batch steps per round: batch_size='full', epochs=50,
whose heads tell the client's own classes apart and start uniform in [0, 1): head_init='uniform'.
"""

from dataclasses import dataclass
from typing import Literal

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Record, Server, SgdMethod, Tree, Ups, hyper
from idiolect.methods.shared.own_classes import own_class_head


@dataclass(frozen=True)
class FedPer(SgdMethod):
    """Base and personal layers train together; the base is averaged by sample count."""

    personal_layers: str = hyper("head", "what stays: head, norm, or name patterns")
    head_init: Literal["start", "uniform"] = hyper(
        "start", "heads as in the model, or of own classes and uniform in [0, 1) as PFLEGO's FedPer"
    )

    name = "fedper"
    paper = "Arivazhagan et al., Federated Learning with Personalization Layers"
    year = 2019
    personal_part = "the head"
    traffic = "2 base"

    @property
    def uses_classes(self) -> bool:
        return self.head_init == "uniform"

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"base": tree.drop(start, net.part(self.personal_layers))}

    def client_init(self, start: Tree, local: Local) -> Record:
        own = tree.pick(start, local.net.part(self.personal_layers))
        if self.head_init == "uniform":
            own |= tree.pick(own_class_head(start, local, uniform=True), own)
        return {"own": own}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={"base": server["base"]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        model = self.train(local, down["base"] | mine["own"])
        own = local.net.part(self.personal_layers)
        return {"base": tree.drop(model, own)}, {"own": tree.pick(model, own)}

    def aggregate(self, server: Server, ups: Ups) -> None:
        server["base"] = tree.mix(ups.share, ups["base"])

    def shared(self, server: Server) -> Tree | None:
        return server["base"]

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["base"] | mine["own"]
