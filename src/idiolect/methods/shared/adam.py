"""Adam's step, for what methods optimise beside local SGD (the server of PFLEGO, L2C's alpha)."""

from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Tree


def adam(g: Tree, m: Tree, v: Tree, t: float) -> tuple[Tree, Tree, Tree]:
    """The direction to step against after gradient number t = 1, 2, ..., and the new moments."""
    m, v = tree.lerp(g, m, 0.9), tree.lerp(tree.mul(g, g), v, 0.999)

    def direction(m: Tensor, v: Tensor) -> Tensor:
        return m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)

    return tree.apply(direction, m, v), m, v
