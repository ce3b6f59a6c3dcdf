"""FedBABU (Oh et al., ICLR 2022): federated averaging with body aggregation and body update.

The head keeps its common random start while the bodies are trained and averaged (Algorithm 1), so
that it need not travel; each client fine-tunes when it is to predict, for tau_f = 5 epochs, and
keeps nothing of that.

Where paper and code disagree: the abstract fine-tunes the head, the tables compare head, body and
full: `fine_tune`. The code averages uniformly (its clients have equal sizes); by sample count here.
Rounds and local epochs trade off at 320 passes (tau 1, 4, 10); the learning rate falls tenfold
after half and three quarters of the rounds, which `lr_decay` only approximates.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from idiolect.core import tree
from idiolect.core.method import Ids, Local, Net, Record, Server, Tree, hyper
from idiolect.errors import UserError
from idiolect.methods.fedper import FedPer


@dataclass(frozen=True)
class FedBABU(FedPer):
    """The body is trained under a frozen head; clients fine-tune before they predict."""

    lr: float = hyper(0.1)
    batch_size: int | Literal["full"] = hyper(50)
    momentum: float = hyper(0.9)
    personal_layers: str = hyper("head", "what stays frozen at its common start")
    head_init: ClassVar[Literal["start"]] = "start"  # type: ignore[misc]  # the same for all
    fine_tune: Literal["head", "body", "all"] = hyper(
        "head", "what a client fine-tunes", needs="fine_tune_epochs!=0"
    )
    fine_tune_epochs: int = hyper(5, "epochs of fine-tuning before prediction (0: none)", min=0)

    name = "fedbabu"
    paper = "Oh et al., FedBABU: Toward Enhanced Representation for FL"
    year = 2022
    personal_part = "the fine-tuned head"
    traffic = "2 base"

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        frozen = tree.pick(start, net.part(self.personal_layers))
        if set(net.weights) <= set(frozen):
            raise UserError("fedbabu would freeze the whole model; choose one with a body to train")
        return super().server_init(net, start, clients) | {"frozen": frozen}

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        base = down["base"]
        model = self.train(local, base | mine["own"], train=base)
        return {"base": tree.pick(model, base)}, mine

    def adapt(self, params: Tree, local: Local) -> Tree:
        if self.fine_tune_epochs == 0:
            return params
        part, epochs = local.net.part(self.fine_tune), self.fine_tune_epochs
        how: dict[str, Any] = {"epochs": epochs, "steps": 0, "purpose": "fine-tuning"}
        return self.train(local, params, train=part, **how)

    def shared(self, server: Server) -> Tree | None:
        return server["base"] | server["frozen"]
