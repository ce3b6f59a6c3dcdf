"""What users give by mistake is refused in words that name it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect.data import Federation
from idiolect.data.given_samples import to_predict, with_newcomer
from idiolect.data.own.function import OwnFunction
from idiolect.data.own.own_files import is_path
from idiolect.errors import UserError


def run_data(folder: Path, labels: list[Any]) -> Federation:
    y = np.array(labels)
    x = np.arange(2 * len(y), dtype=np.float32).reshape(-1, 2)
    np.savez(folder / "run.npz", x=x, y=y, client=np.arange(len(y)) % 2)
    return Federation.from_files(folder / "run.npz")


@pytest.mark.parametrize("names", [["cat", "dog", "owl"], [3, 5, 9]])
@pytest.mark.parametrize("end", ["", "_test"])
def test_labels_of_arrays_are_numbered_as_in_training(
    tmp_path: Path, names: list[Any], end: str
) -> None:
    fed = run_data(tmp_path, names * 8)
    x, y = np.ones((2, 2), np.float32), np.array([names[2], names[1]])
    arrays: dict[str, Any] = {f"x{end}": x, f"y{end}": y}
    np.savez(tmp_path / "new.npz", **arrays)
    given, labelled = to_predict(fed, tmp_path / "new.npz")
    assert labelled and given.y.tolist() == [2, 1]
    np.savez(tmp_path / "client.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    joined = with_newcomer(fed, tmp_path / "client.npz", "new")
    assert joined.y[joined.train[-1]].tolist() == [2, 1]


def test_arrays_are_called_as_in_their_file(tmp_path: Path) -> None:
    fed = run_data(tmp_path, ["cat", "dog"] * 8)
    new = tmp_path / "new.npz"
    np.savez(new, x=np.ones((1, 2), np.float32), y=np.array(["cow"]))
    with pytest.raises(UserError, match=r"new.npz: y has 'cow', which the run's data"):
        to_predict(fed, new)
    np.savez(new, x=np.ones((1, 2), np.float32), y=np.array([0, 1]))
    with pytest.raises(UserError, match=r"new.npz: x has 1 samples, y 2 labels"):
        to_predict(fed, new)


def test_a_file_that_is_there_is_no_unknown_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_path("d1.txt")
    Path("d1.txt").write_text("a,label\n1,0\n")
    Path("digits").write_text("")
    assert is_path("d1.txt") and not is_path("digits") and not is_path("x" * 5000 + ".y")
    with pytest.raises(UserError, match=r"d1.txt': files are .csv"):
        Federation.from_files("d1.txt")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,kind\n1,low\n2,high\n", "column 'kind', must hold numbers, got words"),
        ("a,kind\n", "has no samples"),
    ],
)
def test_a_quantity_is_numbers(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=told):
        Federation.from_files(tmp_path / "t.csv", label="kind", task="regression")


def test_a_function_that_fails_is_left_to_the_command_line(tmp_path: Path) -> None:
    """It says where the user's code failed, and keeps the traceback."""
    file = tmp_path / "my.py"
    file.write_text("def broken():\n    return nothing\n\n\ndef gone():\n    open('no/such')\n")
    name = f"{file}:broken"
    with pytest.raises(NameError):
        OwnFunction({"name": name}).federation(0, {name})
    name = f"{file}:gone"
    with pytest.raises(UserError, match=r"failed at .*my.py:6: FileNotFoundError"):
        OwnFunction({"name": name}).federation(0, {name})
