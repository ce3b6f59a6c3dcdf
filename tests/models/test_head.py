"""The head is the layer that makes the logits, in whatever order layers are registered."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from idiolect import simulate
from idiolect.core.net import Net
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.models import check_fits


class HeadFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)
        self.inner = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x).relu())


class Scaled(HeadFirst):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_head_that_is_registered_first_is_found() -> None:
    for kind in (HeadFirst, Scaled):
        model = kind()
        assert Net(model).head == ("inner.weight", "inner.bias")  # nothing was seen yet
        check_fits(model, (4,), 3)
        net = Net(model)
        assert net.head == ("out.weight", "out.bias") and "inner.bias" in net.body
        params = {n: v.detach() for n, v in model.state_dict().items()}
        x = torch.randn(2, 4)
        assert net.features(params, x).shape == (2, 5)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_methods_that_need_no_head_take_a_network_without_one(engine: str) -> None:
    draw = np.random.default_rng(0)
    one = {f"x_{p}": draw.normal(size=(6, 1, 4, 4)).astype(np.float32) for p in ("train", "test")}
    fed = Federation.from_arrays([{**one, "y_train": [0, 1] * 3, "y_test": [1, 0] * 3}] * 2)
    model = nn.Sequential(nn.Conv2d(1, 2, 4), nn.Flatten())
    how = {"rounds": 1, "engine": engine, "device": "cpu"}
    assert simulate("fedavg", fed, model, **how).accuracy().shape == (2, 2)
    with pytest.raises(UserError, match="name its last layer 'head'"):
        simulate("fedper", fed, model, **how)


def test_no_mark_is_left_in_what_is_saved() -> None:
    model = HeadFirst()
    before = set(model.state_dict())
    check_fits(model, (4,), 3)
    assert set(model.state_dict()) == before and not model.out._forward_hooks
