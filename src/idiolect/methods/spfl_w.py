"""SPFL-w: SPFL that mixes the trained models instead of the updates.

    w_i <- sum_j St_ij w_j',   w_j' what client j trained

Where paper and code disagree: the paper divides by the number of clients once more, which would
shrink the weights every round; neither default nor code does. `variant='code'` is the published
program's. One matrix serves the body, from the layers' cosines, weighted 0.4, 0.2, 0.2, 0.2, as a
moving average over the refreshes, from 0; heads have a uniform mean. The server mixes copies l_i of
its own, which a refresh reads and never sets:

    l_i <- sum_j St_ij (l_j - g_j),   w_i <- w_i + (the change of l_i)
    at a refresh   w_i <- sum_j St_ij l_j   with the St known until then

So w_i is l_i until the first refresh; after one it is what that gave plus how far l_i has moved
since. Updates of a refresh are compared as seen from client 0's model. Other defaults are SPFL's.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Ids, Net, Record, Server, Table, Tree, Ups, hyper
from idiolect.methods.shared import sngs
from idiolect.methods.spfl import SOFT, SPFL


@dataclass(frozen=True)
class SPFLW(SPFL):
    """One model per client, replaced by the mean of similar clients' models."""

    variant: Literal["paper", "code"] = hyper("paper", "row-stochastic St on all stages, or code's")
    layer_weights: str = hyper("0.5,0.3,0.2", needs="similarity=layers, variant=paper")
    head: Literal["softmax", "own"] = hyper(
        "softmax", "last stage mixed, or own model", needs="similarity!=identity, variant=paper"
    )
    head_temperature: float = hyper(1.0, needs=f"{SOFT}, head=softmax, variant=paper")
    eta = 1.0  # type: ignore[misc]  # models are replaced, there is no step

    name = "spfl_w"

    @property
    def revision(self) -> int:
        return 2 if self.variant == "code" else 1  # a refresh set the server's copies, too

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        state = super().server_init(net, start, clients)
        if self.variant == "code":
            state["copies"] = Table(tree.pick(start, net.weights))
        return state

    def prepare(self, server: Server, who: Ids) -> None:
        if self.variant == "paper":
            super().prepare(server, who)
        elif server.round % self.gamma == 0 and self.refresh_average and server["cosine"]:
            self._refresh(server)

    def _refresh(self, server: Server) -> None:
        everyone = list(server.sizes)
        copies: Tree = server["copies"][everyone]
        sizes = tree.any_leaf(copies).new_tensor([server.sizes[i] for i in everyone])
        ups = Ups({}, everyone, sizes, [server.round] * len(everyone), server.round)
        stages = server.net.stages(self.stages)
        mixed: Tree = {}
        for s, names in enumerate(stages):
            c = self._mixing(server, ups, s, last=names == stages[-1])
            mixed |= tree.mix(c, tree.pick(copies, names))
        server["models"][everyone] = {n: mixed[n] for n in copies}

    def aggregate(self, server: Server, ups: Ups) -> None:
        if self.variant == "paper":
            super().aggregate(server, ups)
            return
        if "probe" in ups:
            self._measure(server, ups)
        before: Tree = server["copies"][ups.ids]
        after = self._moved(server, ups, before)
        change = tree.sub(after, before)
        server["copies"][ups.ids] = after
        server["models"][ups.ids] = tree.add(server["models"][ups.ids], change)

    def _move(self, c: Tensor, w: Tree, update: Tree) -> Tree:
        return tree.mix(c, tree.sub(w, update))

    def _measure(self, server: Server, ups: Ups) -> None:
        if self.variant == "paper":
            super()._measure(server, ups)
            return
        own: Tree = server["models"][ups.ids]
        first = tree.expand(tree.client(server["models"][[min(server.sizes)]], 0), len(ups))
        layers = sngs.layers_of(tree.add(ups["probe"], tree.sub(first, own)))
        rest = len(layers) - 1  # 0.4, 0.2, 0.2, 0.2 for the paper's four layers
        measured = sngs.by_layers(layers, [0.4] + [0.6 / max(1, rest)] * rest)
        sngs.learn(server, ups, 0, measured, new=0.4)

    def _mixing(self, server: Server, ups: Ups, stage: int, last: bool) -> Tensor:
        if self.variant == "code" and last:
            return ups.sizes.new_full((len(ups), len(ups)), 1 / len(ups))
        return super()._mixing(server, ups, 0 if self.variant == "code" else stage, last)
