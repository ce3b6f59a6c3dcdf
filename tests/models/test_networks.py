"""Every network has the parameter count of its paper and can be stacked over clients."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from idiolect import models
from idiolect.errors import UserError
from idiolect.models.blocks import SamePool
from idiolect.models.model import Model

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


@pytest.mark.parametrize("name", Model.registry)
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


def test_same_pool_pads_like_tensorflow():
    pool = SamePool()
    for n in range(1, 12):
        assert pool(torch.zeros(1, 1, n, n)).shape[-1] == -(-n // 2)
    even = torch.arange(6.0).view(1, 1, 1, 6).expand(1, 1, 6, 6)
    assert pool(even)[0, 0, 0].tolist() == [2, 4, 5]  # windows 0-2, 2-4, 4-(6)
    odd = torch.arange(5.0).view(1, 1, 1, 5).expand(1, 1, 5, 5)
    assert pool(odd)[0, 0, 0].tolist() == [1, 3, 4]  # windows (-1)-1, 1-3, 3-(5)
    assert pool(-1 - even).max() < 0  # the padding never wins


def test_seed_decides_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    a = models.build({"name": "mlp"}, (64,), 10, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(10)
    b = models.build({"name": "mlp"}, (64,), 10, seed=5)
    c = models.build({"name": "mlp"}, (64,), 10, seed=6)
    assert torch.equal(a.head.weight, b.head.weight)
    assert not torch.equal(a.head.weight, c.head.weight)


def test_pflego_starts_glorot_normal():
    model = models.build({"name": "pflego_mlp"}, GREY, 10)
    layer = model.body[1]
    assert float(layer.weight.detach().std()) == pytest.approx((2 / (784 + 200)) ** 0.5, rel=0.02)
    assert float(layer.bias.detach().std()) == pytest.approx(0.01, rel=0.2)


def test_one_by_one_feature_map_and_batch_norm():
    model = models.build({"name": "feddwa_cnn"}, (1, 10, 10), 3)
    assert model.body[9].in_features == 64
    assert models.build({"name": "resnet8"}, (1, 8, 8), 3).head.out_features == 3


@pytest.mark.parametrize(
    ("section", "shape", "words"),
    [
        ({"name": "lenett"}, COLOUR, "did you mean 'lenet'"),
        ({"name": "mlp", "hiden": 3}, COLOUR, "did you mean 'hidden'"),
        ({"name": "mlp", "hidden": 0}, COLOUR, "at least 1"),
        ({"name": "mlp", "hidden": "many"}, COLOUR, "whole number"),
        ({"name": "feddwa_cnn", "dropout": 1.5}, COLOUR, "at least 0 and below 1"),
        ({"name": "lenet"}, (1, 8, 8), "too small"),
        ({"name": "lenet"}, (64,), "needs images"),
        ({}, COLOUR, "needs a name"),
        ({"name": "no_such_module:Net"}, COLOUR, "cannot import"),
        ({"name": "torch.nn:Nothing"}, COLOUR, "cannot import"),
        ({"name": "collections:Counter"}, COLOUR, "not a torch nn.Module"),
        ({"name": "torch.nn:Linear"}, (8,), "could not be built"),
        ({"name": "torch.nn:Linear", "in_features": 8, "out_features": 3}, (8,), "4 classes"),
        ({"name": "torch.nn:Linear", "in_features": 9, "out_features": 4}, (8,), "does not take"),
    ],
)
def test_mistakes_are_one_line(section, shape, words):
    with pytest.raises(UserError, match=words) as caught:
        models.build(section, shape, 4)
    assert "\n" not in str(caught.value)


def test_own_class_gets_classes_and_shape_when_it_asks(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes, shape, width=4):\n"
        "        super().__init__(nn.Linear(shape[0], width), nn.Linear(width, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = models.build({"name": "my_nets:Net", "width": 6}, (8,), 4)
    assert model[0].out_features == 6 and model[1].out_features == 4
    with pytest.raises(UserError, match="widht"):
        models.build({"name": "my_nets:Net", "widht": 6}, (8,), 4)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8), GREY, COLOUR, (3, 64, 64)])
def test_default_model_fits(shape):
    models.build({"name": models.default_model(shape)}, shape, 5)


def test_list_models_names_options():
    listed = {m["name"]: m for m in models.list_models()}
    assert listed["spfl_cnn"]["options"] == {"hidden": 500}
    assert all(m["doc"] for m in listed.values())
