"""Cross-entropy by our kernels against PyTorch's: values and derivatives of every order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from idiolect.core.task import CLASSIFICATION
from idiolect.engine.layers import loss
from tests.engine.layers.test_layers import needs_triton

pytestmark = needs_triton


def drawn(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return 3 * torch.randn(*shape), torch.randint(0, shape[-1], shape[:-1])


@pytest.mark.parametrize("shape", [(3, 5, 10), (2, 7, 100), (1, 3, 1000), (2, 40, 2)])
def test_values_and_gradients_of_clients(shape: tuple[int, ...]) -> None:
    x, y = drawn(*shape)
    x[0, 0, 0] = 200.0  # far from the others: no overflow
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    true = F.cross_entropy(theirs.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    ours = vmap(loss.of_samples)(mine, y)
    torch.testing.assert_close(ours, true)
    g = torch.randn_like(true)
    (a,), (b,) = torch.autograd.grad(ours, mine, g), torch.autograd.grad(true, theirs, g)
    torch.testing.assert_close(a, b)


def test_second_derivatives() -> None:
    x, y = drawn(2, 4, 6)

    def bent(x: Tensor, y: Tensor) -> Tensor:
        return grad(lambda x: loss.of_samples(x, y).mean())(x).square().sum()

    def true(x: Tensor, y: Tensor) -> Tensor:
        return grad(lambda x: CLASSIFICATION.loss(x, y).mean())(x).square().sum()

    torch.testing.assert_close(vmap(grad(bent))(x, y), vmap(grad(true))(x, y))


@pytest.mark.parametrize("shape", [(4, 2000), (4, 6)])
def test_what_our_kernels_cannot_do_is_pytorchs(shape: tuple[int, int]) -> None:
    x, y = drawn(*shape)
    x = x if shape[1] > 1000 else x.double()
    torch.testing.assert_close(loss.of_samples(x, y), F.cross_entropy(x, y, reduction="none"))
