"""Every network has the parameter count of its paper and can be stacked over clients."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from idiolect import models
from idiolect.models.networks import Model

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "total", "body"),
    [
        ("spfl_cnn", GREY, 10, 431_080, None),
        ("spfl_cnn", GREY, 47, 449_617, None),
        ("spfl_cnn", COLOUR, 10, 657_080, None),
        ("spfl_cnn", COLOUR, 100, 702_170, None),
        ("lenet", COLOUR, 10, 62_006, None),
        ("feddwa_cnn", COLOUR, 10, 1_204_874, None),
        ("feddwa_cnn", COLOUR, 100, 1_251_044, None),
        ("feddwa_emnist", GREY, 62, 2_278_334, None),
        ("resnet8", (3, 64, 64), 200, 90_392, None),
        ("pflego_mlp", GREY, 10, None, 157_000),
        ("pflego_cifar", COLOUR, 10, None, 1_754_496),
        ("pflego_omniglot", GREY, 55, None, 111_424),
        ("fedas_cnn", COLOUR, 10, 878_538, 873_408),
        ("fedas_cnn", GREY, 10, 582_026, None),
        ("simple_cnn", COLOUR, 10, 1_626_442, None),
    ],
)
def test_parameter_counts(name, shape, classes, total, body):
    model = models.build({"name": name}, shape, classes)
    if total is not None:
        assert count(model) == total
    if body is not None:
        assert count(model.body) == body


def test_feddwa_cnn_has_194_buffer_values():
    model = models.build({"name": "feddwa_cnn"}, COLOUR, 10)
    assert sum(b.numel() for b in model.buffers()) == 194


def test_spfl_hidden_512_as_in_the_table():
    model = models.build({"name": "spfl_cnn", "hidden": 512}, GREY, 10)
    assert model.head.in_features == 512


def shape_for(name: str) -> tuple[int, ...]:
    if name in ("gru", "tabular"):
        return (6,)
    if name in ("cnn_small", "mlp", "linear"):
        return (1, 8, 8)
    return (3, 32, 32) if name != "pflego_omniglot" else GREY


@pytest.mark.parametrize("name", Model.registry)
def test_forward_is_head_of_flat_body(name):
    shape = shape_for(name)
    model = models.build({"name": name}, shape, 7).eval()
    x = torch.randn(3, *shape)
    features = model.body(x)
    assert features.ndim == 2
    assert isinstance(model.head, nn.Linear)
    assert torch.equal(model(x), model.head(features))


# PyTorch's own GRU has no vmap; tests/engine/test_tasks.py shows that the engine stacks it.
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # the engine has its own way
@pytest.mark.parametrize("name", [name for name in Model.registry if name != "gru"])
def test_stacks_over_clients_with_its_gradient(name):
    """One vmapped pass over two clients' parameters = each client alone, in training mode.

    In float64: in float32 rounding can decide which pixel a pool takes or which side of a ReLU a
    value falls, and the gradient then jumps.
    """
    shape = shape_for(name)
    pair = [models.build({"name": name}, shape, 4, seed=s).double() for s in (1, 2)]
    for model in pair:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    params, buffers = stack_module_state(pair)
    x, y = torch.randn(2, 3, *shape).double(), torch.randint(0, 4, (2, 3))

    def loss(p, b, x, y):
        out = functional_call(pair[0], (p, b), (x,))
        return nn.functional.cross_entropy(out, y), b

    grad = torch.func.grad(loss, has_aux=True)
    start = {k: v.clone() for k, v in buffers.items()}
    got, moved = torch.vmap(grad, randomness="different")(params, buffers, x, y)
    for k in range(2):
        b = {name: start[name][k].clone() for name in start}
        want, b = grad({n: p[k] for n, p in params.items()}, b, x[k], y[k])
        for n in want:
            torch.testing.assert_close(got[n][k], want[n], rtol=1e-9, atol=1e-9)
        for n in b:
            torch.testing.assert_close(moved[n][k], b[n])


def test_pflego_starts_glorot_normal():
    model = models.build({"name": "pflego_mlp"}, GREY, 10)
    layer = model.body[1]
    assert float(layer.weight.detach().std()) == pytest.approx((2 / (784 + 200)) ** 0.5, rel=0.02)
    assert float(layer.bias.detach().std()) == pytest.approx(0.01, rel=0.2)


def test_one_by_one_feature_map_and_batch_norm():
    model = models.build({"name": "feddwa_cnn"}, (1, 10, 10), 3)
    assert model.body[9].in_features == 64
    assert models.build({"name": "resnet8"}, (1, 8, 8), 3).head.out_features == 3


def test_resnet8_starts_by_fan_in_as_feddwa():
    """Kaiming: variance 2 / inputs, of the linear layer too; by outputs convolutions only."""
    wide = {"name": "resnet8", "width": 64}
    model = models.build(wide, (3, 32, 32), 200)
    first, last = model.body[6].residual[0].weight, model.head.weight
    assert first.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.03)
    assert last.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.03)
    other = models.build(wide | {"init": "fan_out"}, (3, 32, 32), 200)
    assert other.body[6].residual[0].weight.std().item() == pytest.approx(
        (2 / (256 * 9)) ** 0.5, rel=0.03
    )
    assert other.head.weight.std().item() < 0.5 * last.std().item()
