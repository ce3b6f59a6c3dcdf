"""`--dtype bf16`: networks compute in bfloat16, parameters and everything else are float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.errors import UserError
from tests.conftest import SmallNet, run, simulation
from tests.engine.engines import LOCAL, RAGGED
from tests.engine.test_networks import PLACES, SEQUENCES, TEXTS, sentences
from tests.methods.plain import seeded

NETS: dict[str, Callable[[], nn.Module]] = {
    "cnn": SmallNet,
    "cnn, batch norm": lambda: SmallNet(norm=True),
    **{
        n: SEQUENCES[n] for n in ("gru", "lstm", "attention", "encoder layer", "low rank", "conv1d")
    },
    **{n: PLACES[n] for n in ("group norm", "batch norm, not affine", "depthwise")},
    **{n: TEXTS[n] for n in ("embedding with padding", "text transformer")},
}


@pytest.mark.parametrize("name", NETS)
def test_close_to_float32_with_float32_parameters(name: str) -> None:
    federation = sentences() if name in TEXTS else RAGGED
    net = seeded(NETS[name]).float()  # type: ignore[arg-type]
    method = methods.build({**LOCAL, "name": "fedavg", "lr": 0.05})
    exact = run(method, federation, net, 3, dtype="float32").server["model"]
    for engine in ("loop", "stacked"):
        sim = run(method, federation, net, 3, dtype="bf16", engine=engine)
        assert sim.engine.name == engine
        start = net.state_dict()
        for leaf, value in sim.server["model"].items():
            assert value.dtype == torch.float32
            moved, gap = (exact[leaf] - start[leaf]).norm(), (value - exact[leaf]).norm()
            assert gap < 0.1 * moved + 0.02, (
                f"{engine} {leaf}: {float(gap):.3f} of {float(moved):.3f}"
            )
            rounded = value.bfloat16().float()
            assert value.numel() < 8 or not torch.equal(value, rounded), f"{leaf} lost its digits"


class Watching(nn.Module):
    """Notes the type it computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.seen = nn.Linear(144, 8), nn.Linear(8, 5), []

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x.flatten(1))
        self.seen += [x.dtype, h.dtype]  # type: ignore[operator]
        out: Tensor = self.head(torch.relu(h))
        return out


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_the_network_sees_bfloat16_and_its_logits_are_float32(engine: str) -> None:
    sim = simulation(methods.build(LOCAL), RAGGED, Watching(), 1, dtype="bf16", engine=engine)
    for net in sim.engine.nets:
        net.module.seen.clear()  # type: ignore[operator, union-attr]
    sim.step()
    for net in sim.engine.nets:
        assert set(net.module.seen) == {torch.bfloat16}  # type: ignore[arg-type, union-attr]
    net, params = sim.engine.net, sim.start_tree
    x = torch.randn(2, 1, 12, 12)
    h = net.features(params, x)
    assert net(params, x).dtype == h.dtype == net.classify(params, h).dtype == torch.float32


class OwnType(Watching):
    """Makes a tensor of its own in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.cat([x, torch.zeros(len(x), 0, 12, 12)], 1))


def test_a_network_that_insists_on_float32_is_told() -> None:
    with pytest.raises(UserError, match=r"cannot compute in torch.bfloat16.*x\.dtype"):
        simulation(methods.build(LOCAL), RAGGED, OwnType(), 1, dtype="bf16")
