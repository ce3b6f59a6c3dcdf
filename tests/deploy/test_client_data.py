"""A client's data from a file, a folder or a function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect.deploy.client_data import labels_digest, load_data, read_classes
from idiolect.errors import UserError
from tests.deploy.local_federation import arrays


def test_data_from_file_folder_and_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = arrays(2)
    np.savez(tmp_path / "data.npz", **made)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, array in made.items():
        np.save(folder / f"{name}.npy", array)
    (tmp_path / "ward_data.py").write_text(
        "from tests.deploy.local_federation import arrays\n"
        "def load(client):\n    return arrays(client)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for where in ("data.npz", "folder", "ward_data:load", "ward_data.py:load"):
        data = load_data(where, 3, client=2)
        assert len(data.train[0]) == 34 and data.classes == 3
        assert torch.equal(data.x[data.train[0]], torch.from_numpy(made["x_train"]))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nowhere.npz", "is no file or folder"),
        ("no_such_module:f", "cannot import"),
        ("no_such_file.py:f", "no_such_file.py"),
        ("os:getcwd", "returned str; return a dict"),
    ],
)
def test_data_that_is_not_there_names_the_fix(where: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_data(where, None)


def test_class_names_are_numbered_by_the_federations_list(tmp_path: Path) -> None:
    made = arrays(0)
    names = np.array(["wild type", "benign", "malignant"])
    data = {n: names[a] if n[0] == "y" else a for n, a in made.items()}
    np.savez(tmp_path / "data.npz", **data)
    (tmp_path / "classes.txt").write_text("malignant\nbenign\nwild type\n")
    for text in ("malignant,benign,wild type", str(tmp_path / "classes.txt")):
        classes = read_classes(text)
        found = load_data(str(tmp_path / "data.npz"), classes)
        assert found.classes == 3
        assert torch.equal(found.y[found.train[0]], 2 - torch.from_numpy(made["y_train"]))
        assert labels_digest(classes) == labels_digest(["malignant", "benign", "wild type"])
    assert labels_digest(["benign", "malignant"]) != labels_digest(["malignant", "benign"])
    assert (read_classes("10"), labels_digest(10)) == (10, "")
    with pytest.raises(UserError, match="did you mean 'bening'"):
        load_data(str(tmp_path / "data.npz"), ["malignant", "bening"])


def _whole(folder: Path) -> bytes:
    np.savez(folder / "data.npz", **arrays(0))
    return (folder / "data.npz").read_bytes()


@pytest.mark.parametrize("damage", ["half", "middle", "empty", "text", "huge"])
def test_damaged_data_is_said(damage: str, tmp_path: Path) -> None:
    whole = _whole(tmp_path)
    middle = len(whole) // 2
    made = {
        "half": whole[:middle],
        "middle": whole[:middle] + bytes(1000) + whole[middle + 1000 :],
        "empty": b"",
        "text": b"ward,age\n1,70\n",
        "huge": whole.replace(b"(20, 1, 8, 8)", b"(2**40,1,8,8)"),
    }
    assert made[damage] != whole
    (tmp_path / "data.npz").write_bytes(made[damage])
    with pytest.raises(UserError, match=r"cannot read .*data\.npz"):
        load_data(str(tmp_path / "data.npz"), 3)


def test_failing_function_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_ward.py").write_text("def load():\n    return {}['x_train']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="failing_ward:load failed: KeyError: 'x_train'"):
        load_data("failing_ward:load", None)


def test_pickled_data_is_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x_train=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="cannot read"):
        load_data(str(tmp_path / "data.npz"), None)


def test_a_function_with_a_variable_called_client_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bed_data.py").write_text(
        "from tests.deploy.local_federation import arrays\n"
        "def load():\n    client = 2\n    return arrays(client)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert len(load_data("bed_data.py:load", 3, client=0).train[0]) == 34
