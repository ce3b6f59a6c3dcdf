"""The head is the layer that makes the logits, in whatever order layers are registered."""

import torch
from torch import Tensor, nn

from idiolect.core.net import Net
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


def test_no_mark_is_left_in_what_is_saved() -> None:
    model = HeadFirst()
    before = set(model.state_dict())
    check_fits(model, (4,), 3)
    assert set(model.state_dict()) == before and not model.out._forward_hooks
