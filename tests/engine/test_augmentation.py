"""Augmentation and own losses: loop = stacked, keyed randomness, what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect import simulate
from idiolect.core import augmentation, rng
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.models import build

WORDS = "flip,crop:1,noise:0.2"


def images(sizes: tuple[int, ...] = (9, 14, 5)) -> Federation:
    draw = np.random.default_rng(3)

    def part(n: int) -> dict[str, np.ndarray]:
        return {"x": draw.integers(0, 255, (n, 1, 8, 8)).astype(np.uint8), "y": np.arange(n) % 3}

    clients = []
    for n in sizes:
        train, test = part(n), part(4)
        both = {f"{k}_train": v for k, v in train.items()}
        clients.append(both | {f"{k}_test": v for k, v in test.items()})
    return Federation.from_arrays(clients, mean=0.5, std=0.5)


def smoothed(net, params, x, y):
    p = torch.log_softmax(net(params, x), 1)
    return -0.8 * p.gather(1, y[:, None]).squeeze(1) - 0.2 * p.mean(1)


def weights(fed: Federation, engine: str, method="fedavg", **options) -> torch.Tensor:
    model = build({"name": "linear"}, fed.shape, fed.classes)
    section = {"name": method, "lr": 0.05, "batch_size": 4}
    how = {"rounds": 2, "dtype": "float64", "device": "cpu", "engine": engine}
    done = simulate(section, fed, model, **how, **options)
    return torch.cat([v.flatten() for one in done.last.clients for v in one.values()])


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrep"])
@pytest.mark.parametrize("options", [{"augment": WORDS}, {"loss": smoothed}])
def test_loop_equals_stacked_and_something_changed(method: str, options) -> None:
    fed = images()
    loop, stacked = (weights(fed, e, method, **options) for e in ("loop", "stacked"))
    assert torch.allclose(loop, stacked, atol=1e-9)
    assert not torch.allclose(loop, weights(fed, "stacked", method), atol=1e-4)


def test_a_batch_is_changed_alike_whoever_else_takes_part() -> None:
    """Keyed by client, round and step, never by call order."""
    seen: dict[str, list[float]] = {"loop": [], "stacked": []}
    for engine, batches in seen.items():

        def change(x, draw, kept=batches):
            kept.append(float(draw.random()))
            return x

        weights(images(), engine, augment=change)
    assert len(seen["loop"]) > 10 and len(set(seen["loop"])) == len(seen["loop"])
    assert set(seen["loop"]) < set(seen["stacked"])  # which tries a step before the first round


def test_each_change_does_what_it_says() -> None:
    x = torch.arange(2 * 1 * 4 * 4, dtype=torch.float64).reshape(2, 1, 4, 4)
    flipped = augmentation.loaded("flip:1")(x, rng.keyed(0))
    assert torch.equal(flipped, x.flip(-1))
    moved = augmentation.loaded("crop:1")(x, rng.keyed(0))
    down, right = rng.keyed(0).integers(0, 3, (2, 2))
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    for k in range(2):
        wanted = padded[k, :, down[k] : down[k] + 4, right[k] : right[k] + 4]
        assert torch.equal(moved[k], wanted)
    noisy = augmentation.loaded("noise:0.5")(torch.zeros(40, 50), rng.keyed(0))
    assert float(noisy.std()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"augment": "flop"}, "did you mean 'flip'"),
        ({"augment": "crop:0.5"}, "whole number of pixels"),
        ({"loss": lambda net, params, x, y: net(params, x).mean()}, "one value per sample"),
        ({"loss": lambda net, params, x, y: {}["a"]}, "failed: KeyError"),
        ({"loss": "nothing"}, "file.py:function"),
    ],
)
def test_mistakes_are_told_in_one_line(options, words: str) -> None:
    with pytest.raises(UserError, match=words):
        weights(images((5, 5)), "stacked", **options)


@pytest.mark.parametrize("name", ["fedproto", "fedpac", "fedrod", "pflego", "fedrecon"])
def test_methods_with_a_loss_of_their_paper_refuse_another(name: str) -> None:
    fed = images((5, 5))
    model = build({"name": "linear"}, fed.shape, fed.classes)
    with pytest.raises(UserError, match=f"{name} trains by the loss of its paper"):
        simulate(name, fed, model, rounds=1, loss=smoothed)


def test_flip_needs_images() -> None:
    x = np.ones((4, 3), np.float32)
    one = {"x_train": x, "y_train": [0, 1, 0, 1], "x_test": x, "y_test": [0, 1, 0, 1]}
    with pytest.raises(UserError, match=r"augment flip needs images .* use noise"):
        weights(Federation.from_arrays([one]), "loop", augment="flip")


CODE = """
def darker(x, draw):
    return x * draw.uniform(0.5, 1)

def smaller(x, draw):
    return x[:1]

def broken(x, draw):
    return x * nothing

def huber(net, params, x, y):
    import torch.nn.functional as F
    return F.cross_entropy(net(params, x), y, reduction="none").clamp(max=2)
"""


def test_own_code_by_name_under_the_rules_of_own_code(tmp_path: Path, monkeypatch) -> None:
    from tests.cli.calls import call

    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)
    few = ("run", "fedavg", "--rounds", "2", "--clients", "3", "--model", "linear")
    few += ("--set", "checkpoint_every=1")
    own = ("--loss", "mine.py:huber", "--augment", "noise:0.1,mine.py:darker")
    assert call(*few, *own, "--out", "a").exit_code == 0
    Path("a/summary.json").unlink()
    assert call("resume", "a").exit_code == 0  # sealed: this user allowed it
    Path("c.yaml").write_text("rounds: 1\nloss: mine.py:huber\naugment: mine.py:darker\n")
    refused = call(*few, "--config", "c.yaml", "--out", "b")
    assert refused.exit_code == 2 and "--allow-code" in refused.stderr and not Path("b").exists()
    failed = call(*few, "--augment", "mine.py:smaller", "--out", "b")
    assert failed.exit_code == 2 and "must return a tensor like its batch" in failed.stderr
    broken = call(*few, "--augment", "mine.py:broken", "--out", "b2")
    assert broken.exit_code == 2 and "the traceback is in" in broken.stderr
    assert f"failed at {Path('mine.py').resolve()}:9: NameError" in broken.stderr
    Path("a/summary.json").unlink()
    Path("mine.py").write_text(CODE.replace("max=2", "max=3"))
    changed = call("resume", "a")
    assert changed.exit_code == 2 and "code of loss" in changed.stderr
