"""Models by name and by module:Class: options, seed, checks, lists."""

import numpy as np
import pytest
import torch

from idiolect import models
from idiolect.core.form import Field, Form
from idiolect.errors import UserError

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


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
        ({"name": "collections:Counter"}, COLOUR, "subclass of torch's Module"),
        ({"name": "torch.nn:Linear"}, (8,), "could not be built"),
        ({"name": "torch.nn:Linear", "in_features": 8, "out_features": 3}, (8,), "4 classes"),
        ({"name": "torch.nn:Linear", "in_features": 9, "out_features": 4}, (8,), "cannot take"),
    ],
)
def test_mistakes_are_one_line(section, shape, words):
    with pytest.raises(UserError, match=words) as caught:
        models.build(section, shape, 4, allow_code=[section.get("name", "")])
    assert "\n" not in str(caught.value)


def test_own_class_gets_classes_and_shape_when_it_asks(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes, shape, width=4):\n"
        "        super().__init__(nn.Linear(shape[0], width), nn.Linear(width, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="--allow-code my_nets:Net"):
        models.build({"name": "my_nets:Net", "width": 6}, (8,), 4)
    allow = {"allow_code": ["my_nets:Net"]}
    model = models.build({"name": "my_nets:Net", "width": 6}, (8,), 4, **allow)
    assert model[0].out_features == 6 and model[1].out_features == 4
    with pytest.raises(UserError, match="widht"):
        models.build({"name": "my_nets:Net", "widht": 6}, (8,), 4, **allow)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8), GREY, COLOUR, (3, 64, 64)])
def test_default_model_fits(shape):
    models.build({"name": models.default_model(shape)}, shape, 5)


def test_categories_of_a_table_are_embedded_by_default():
    assert models.default_model((3,), Form(codes=(0, 4, 0))) == "tabular"
    assert models.default_model((3,)) == "mlp"
    assert models.default_model((3,), Form(codes=(9,), padded=True)) == "gru"
    apart = (Field("ward", (), True), Field("age", (), False))
    assert models.default_model((2,), Form(codes=(4, 0), fields=apart)) == "mlp"


def test_options_are_checked_like_all_others():
    assert models.build({"name": "mlp", "hidden": np.int64(5)}, (8,), 4).head.in_features == 5
    assert models.resolved({}, (1, 8, 8)) == {"name": "cnn_small", "hidden": 64}
    assert models.resolved({"name": "feddwa_cnn", "dropout": 0}, COLOUR)["dropout"] == 0.0
    own = {"name": "my_nets:Net", "anything": 3}
    assert models.resolved(own, COLOUR) == own


def test_list_models_names_options():
    listed = {m["name"]: m for m in models.list_models()}
    assert [(o["name"], o["default"]) for o in listed["spfl_cnn"]["options"]] == [("hidden", 500)]
    assert all(m["what"] for m in listed.values())
    assert all(option["doc"] for m in listed.values() for option in m["options"])
