"""Samples that come after a run, in the form of its federation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idiolect.data import Federation
from idiolect.data.given_samples import to_predict, with_newcomer
from idiolect.errors import UserError

RNG = np.random.default_rng(0)


def arrays(n: int, **changes: Any) -> dict[str, Any]:
    x = RNG.integers(0, 255, (n, 1, 2, 2), dtype=np.uint8)
    whole = {"x_train": x, "y_train": np.arange(n) % 3, "x_test": x, "y_test": np.arange(n) % 3}
    return whole | changes


def federation() -> Federation:
    clients = [arrays(4), arrays(5)]
    return Federation.from_arrays(clients, classes=3, mean=0.5, std=0.25, names=["a", "b"])


def saved(path: Path, **given: Any) -> Path:
    np.savez(path / "f.npz", **given)
    return path / "f.npz"


@pytest.mark.parametrize("end", ["", "_test"])
def test_samples_are_normalised_as_the_federation(tmp_path: Path, end: str) -> None:
    fed = federation()
    x = fed.x[:3].numpy()
    given, labelled = to_predict(fed, saved(tmp_path, **{f"x{end}": x}))
    assert not labelled and given.classes == 3
    torch.testing.assert_close(given.inputs(given.test[0]), fed.inputs(torch.arange(3)))
    with_labels = saved(tmp_path, **{f"x{end}": x, f"y{end}": np.array([0, 1, 2])})
    given, labelled = to_predict(fed, with_labels)
    assert labelled and given.y.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"z": np.zeros(3)}, "no array x"),
        ({"x": np.zeros((2, 1, 2, 2))}, "float64 samples of shape"),
        ({"x": np.zeros((2, 1, 3, 2), np.uint8)}, r"of shape \[1, 3, 2\]"),
        ({"x": np.zeros((0, 1, 2, 2), np.uint8)}, "no samples"),
        ({"x": np.zeros((2, 1, 2, 2), np.uint8), "y": np.array([0, 3])}, "label 3"),
    ],
)
def test_samples_of_another_form_are_refused(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said) as error:
        to_predict(federation(), saved(tmp_path, **given))
    assert "f.npz" in str(error.value)


def test_a_newcomer_is_the_last_client_and_never_takes_part(tmp_path: Path) -> None:
    fed = federation()
    new = arrays(6)
    joined = with_newcomer(fed, saved(tmp_path, **new), "c")
    assert joined.names == ("a", "b", "c") and joined.unseen == (2,) and joined.seen == (0, 1)
    np.testing.assert_array_equal(joined.x[joined.train[2]].numpy(), new["x_train"])
    np.testing.assert_array_equal(joined.y[joined.test[2]].numpy(), new["y_test"])
    for i in (0, 1):
        assert torch.equal(joined.x[joined.train[i]], fed.x[fed.train[i]])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x_train": np.zeros((2, 1, 2, 2), np.uint8)}, "'y_train' is missing"),
        (arrays(3, y_train=np.array([0, 1, 7])), "label 7"),
        (arrays(3, x_test=np.zeros((3, 4), np.uint8)), "x_test holds"),
        (arrays(0), "none left|no samples"),
    ],
)
def test_a_newcomer_of_another_form_is_refused(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        with_newcomer(federation(), saved(tmp_path, **given), "c")


def test_a_newcomer_has_a_name_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="took part"):
        with_newcomer(federation(), saved(tmp_path, **arrays(3)), "b")
