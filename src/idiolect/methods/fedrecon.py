"""FedRecon (Singhal et al., NeurIPS 2021): federated reconstruction, partially local learning.

A client reconstructs its head for the received theta by tau gradient steps on the head alone, then
sends the gradient of theta at that head. Everything but this is PFLEGO's, which compares with it
under this definition: no last head step, so the head lags one joint step behind PFLEGO's.

The defaults are PFLEGO's listing: heads kept between rounds, whole data for both steps, Adam. The
original keeps no state: `heads='reset'` reconstructs from the same start every round, and again
before prediction; `split=true` reconstructs with the even samples and takes theta's gradient on the
odd ones; `update_steps` are its several steps on theta, sent as their sum over `update_lr`, so
that one step is the gradient; `server='sgd'`, `alpha='sampled'`, `scale=false`.

Where PFLEGO's listing and code disagree: the listing multiplies by I/r, the code does not: `scale`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Server, cross_entropy, features, hyper
from idiolect.core.tree import Record, Tree
from idiolect.methods.pflego import PFLEGO, head_loss
from idiolect.methods.shared import holdout


@dataclass(frozen=True)
class FedRecon(PFLEGO):
    """Heads reconstructed on the client, a gradient of the features for the server."""

    tau: int = hyper(50, "gradient steps that reconstruct the head", min=1)
    beta: float = hyper(0.007, "step size of the reconstruction", min=0, needs="")
    rho: float = hyper(0.001, "step size of the server", min=0)
    heads: Literal["keep", "reset"] = hyper("keep", "go on from the last head, or from its start")
    split: bool = hyper(False, "even samples for the head, odd ones for theta; else all for both")
    update_steps: int = hyper(1, "gradient steps on theta per round", min=1)
    update_lr: float = hyper(0.1, "their size, if several", above=0, needs="update_steps!=1")
    scale: bool = hyper(True, "the server multiplies by I/r (PFLEGO's listing)")
    ratio: Literal["expected", "drawn"] = hyper("expected", needs="scale=true")
    head_step: ClassVar[Literal["literal"]] = "literal"  # type: ignore[misc]  # there is none

    name = "fedrecon"
    paper = "Singhal et al., Federated Reconstruction: Partially Local FL"
    year = 2021

    @property
    def revision(self) -> int:
        return 2 if self.split else 1  # the other half had weight zero

    def client_init(self, start: Tree, local: Local) -> Record:
        mine = super().client_init(start, local)
        return mine | {"start": mine["head"]} if self.heads == "reset" else mine

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={"theta": server["theta"]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        theta, rest = down["theta"], down["theta"] | mine["stats"]
        even, odd = holdout.halves(local) if self.split else (local, local)
        head = self._reconstruct(rest, self._begin(mine), even)
        how: dict[str, Any] = {"train": list(theta)}
        if self.update_steps == 1:
            gradient, _, after = odd.grad(cross_entropy, rest | head, training=True, **how)
        else:
            how |= {"batch_size": "full", "epochs": self.update_steps, "lr": self.update_lr}
            after = odd.sgd(cross_entropy, rest | head, purpose="theta", **how).params
            gradient = tree.scale(tree.sub(theta, after), local.each(1 / self.update_lr))
        kept = {"head": head, "stats": tree.pick(after, local.net.stats)}
        return {"gradient": gradient}, mine | kept

    def _begin(self, mine: Record) -> Tree:
        head: Tree = mine["start" if self.heads == "reset" else "head"]
        return head

    def _reconstruct(self, rest: Tree, head: Tree, part: Local) -> Tree:
        """tau steps on the head at fixed features."""
        phi = part.forward(features, rest)
        how: dict[str, Any] = {"batch_size": "full", "epochs": self.tau, "lr": self.beta}
        return part.sgd(head_loss, head, train=part.net.head, x=phi, **how).params

    def _ratio(self, server: Server, who: Ids) -> float:
        return super()._ratio(server, who) if self.scale else 1.0

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["theta"] | self._begin(mine) | mine["stats"]

    def adapt(self, params: Tree, local: Local) -> Tree:
        if self.heads == "keep":
            return params
        rest, head = tree.drop(params, local.net.head), tree.pick(params, local.net.head)
        even, _ = holdout.halves(local) if self.split else (local, local)
        return rest | self._reconstruct(rest, head, even)

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        return down["theta"] | mine["head"] | mine["stats"]
