"""Inputs other than one tensor of quantities: by name, in order, categories, padded sequences."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from idiolect import simulate
from idiolect.core.form import Form
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.models import build

SIZES = (9, 14, 5)


class Both(nn.Module):
    """Takes words (padded with 0), an age and a colour, by name or in order."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.colour = nn.Embedding(30, 3), nn.Embedding(400, 2)
        self.head = nn.Linear(6, 3)

    def forward(self, words: Tensor | dict[str, Tensor], age=None, colour=None) -> Tensor:
        if isinstance(words, dict):
            words, age, colour = words["words"], words["age"], words["colour"]
        assert words.dtype == colour.dtype == torch.int64
        real = (words != 0).unsqueeze(-1).to(age.dtype)
        mean = (self.words(words) * real).sum(1) / real.sum(1).clamp_min(1)
        out: Tensor = self.head(torch.cat([mean, age.unsqueeze(-1), self.colour(colour)], -1))
        return out


def federation(as_dict: bool) -> Federation:
    draw = np.random.default_rng(0)

    def part(n: int):
        words = draw.integers(1, 30, (n, 5))
        words[::2, 3:] = 0
        apart = {"words": words, "age": draw.normal(size=n), "colour": draw.integers(0, 400, n)}
        return apart if as_dict else tuple(apart.values()), draw.integers(0, 3, n)

    clients = []
    for n in SIZES:
        (a, b), (c, d) = part(n), part(n + 2)
        clients.append({"x_train": a, "y_train": b, "x_test": c, "y_test": d})
    return Federation.from_arrays(clients, classes=3)


def table() -> Federation:
    draw = np.random.default_rng(1)

    def part(n: int):
        columns = [draw.normal(size=n), draw.integers(0, 300, n), draw.integers(0, 3, n)]
        return np.stack(columns, 1).astype(np.float32), draw.integers(0, 3, n)

    clients = []
    for n in SIZES:
        (a, b), (c, d) = part(n), part(n)
        clients.append({"x_train": a, "y_train": b, "x_test": c, "y_test": d})
    return Federation.from_arrays(clients, classes=3, form=Form(codes=(0, 300, 3)))


def texts() -> Federation:
    draw = np.random.default_rng(2)

    def part(n: int):
        words = draw.integers(1, 9, (n, 6))
        words[::3, 2:] = 0
        return words, draw.integers(0, 3, n)

    clients = []
    for n in SIZES:
        (a, b), (c, d) = part(n), part(n)
        clients.append({"x_train": a, "y_train": b, "x_test": c, "y_test": d})
    return Federation.from_arrays(clients, classes=3, form=Form(codes=(9,), padded=True))


def cases() -> dict[str, tuple[Federation, nn.Module]]:
    made = {"dict": (federation(True), Both()), "tuple": (federation(False), Both())}
    for name, fed, model in (("tabular", table(), "tabular"), ("padded", texts(), "gru")):
        section = {"name": model, "hidden": 5}
        made[name] = (fed, build(section, fed.shape, fed.classes, form=fed.form))
    return made


@pytest.mark.parametrize("name", ["dict", "tuple", "tabular", "padded"])
@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_loop_equals_stacked(name: str, method: str) -> None:
    fed, model = cases()[name]
    how = {"rounds": 2, "dtype": "float64", "device": "cpu"}
    section = {"name": method, "lr": 0.3, "batch_size": 4}
    loop, stacked = (simulate(section, fed, model, engine=e, **how) for e in ("loop", "stacked"))
    assert np.allclose(loop.accuracy(), stacked.accuracy(), atol=1e-9)
    start = model.state_dict()
    for a, b in zip(loop.last.clients, stacked.last.clients, strict=True):
        assert all(torch.allclose(a[n], b[n], atol=1e-9) for n in a)
        assert set(a) == set(start)  # it loads into the plain module
        assert not torch.equal(a["head.weight"], start["head.weight"].double())


def test_a_network_can_know_how_many_values_each_input_has() -> None:
    fed = federation(True)
    colours = fed.x[:, -1]
    assert fed.form.codes == (30, 0, int(colours.max()) + 1)
    passes = simulate("fedavg", fed, Both(), rounds=1, measure="flops").rounds[1].clients["passes"]
    assert np.allclose(passes, 1.0)  # samples are counted, not inputs


def test_padding_has_no_say() -> None:
    """The same words, filled up further, give the same answer."""
    fed, model = cases()["padded"]
    model.eval()
    x = fed.x[fed.test[0]]
    longer = torch.cat([x, torch.zeros_like(x)], 1)
    assert torch.allclose(model(x), model(longer), atol=1e-6)


def test_codes_are_not_rounded_where_products_are() -> None:
    """bfloat16 has 8 bits: code 259 would become 260."""
    fed, model = cases()["tabular"]
    with torch.no_grad():
        model.body[0].embedding.weight.copy_(torch.arange(303.0)[:, None].expand(-1, 4))
    for engine in ("loop", "stacked"):
        done = simulate("local", fed, model, rounds=1, engine=engine, dtype="bf16", device="cpu")
        moved = done.last.clients[0]["body.0.embedding.weight"][:, 0] - torch.arange(303.0)
        codes = {int(c) for c in fed.x[fed.train[0], 1]} | {
            300 + int(c) for c in fed.x[fed.train[0], 2]
        }
        assert set(torch.nonzero(moved)[:, 0].tolist()) <= codes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"words": np.zeros((4, 2), int)}, "differ in name, shape or type"),
        ({"words": np.zeros((4, 5), int), "age": np.zeros(3), "colour": np.zeros(4, int)}, "3 sam"),
        (
            {"words": np.full((4, 5), 1 << 25), "age": np.zeros(4), "colour": np.zeros(4)},
            "16777216",
        ),
        ({}, "no inputs"),
        ({"words": np.array(["a"] * 4)}, "must be numbers"),
    ],
)
def test_mistakes_are_told_in_one_line(change, words: str) -> None:
    good = {"words": np.ones((4, 5), int), "age": np.zeros(4), "colour": np.zeros(4, int)}
    y = np.arange(4) % 2
    clients = [{"x_train": good, "y_train": y, "x_test": good, "y_test": y}]
    clients.append({"x_train": change, "y_train": y, "x_test": good, "y_test": y})
    with pytest.raises(UserError, match=words):
        Federation.from_arrays(clients)


def test_a_network_that_does_not_fit_the_form_is_refused() -> None:
    fed = federation(True)
    with pytest.raises(UserError, match="takes one input and the data has 3"):
        build({"name": "mlp"}, fed.shape, fed.classes, form=fed.form)
    with pytest.raises(UserError, match=r"codes outside 0\.\.2"):
        x = np.array([[0.0, 3.0]] * 4, np.float32)
        one = {"x_train": x, "y_train": [0, 1, 0, 1], "x_test": x, "y_test": [0, 1, 0, 1]}
        Federation.from_arrays([one], form=Form(codes=(0, 3)))
