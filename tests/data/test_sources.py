"""Federations from PyTorch datasets, files and the hub; the split as a picture."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from idiolect.data import Federation, describe, split_picture
from idiolect.errors import UserError
from tests.cli.calls import call
from tests.data.own import files


class Photos(Dataset):
    def __init__(self, n: int):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, k: int):
        return Image.fromarray(np.full((5, 4, 3), k, np.uint8)), k % 2


def tensors(n: int) -> TensorDataset:
    x = torch.arange(n * 3, dtype=torch.float32).reshape(n, 3)
    return TensorDataset(x, torch.arange(n) % 2)


def test_datasets_one_per_client_divided_or_in_parts() -> None:
    given = [tensors(8), (tensors(6), tensors(2)), (tensors(5), tensors(1), tensors(2))]
    fed = Federation.from_datasets(given, names=["a", "b", "c"], test_share=0.25, seed=3)
    assert fed.names == ("a", "b", "c") and fed.shape == (3,)
    assert [fed.sizes(p).tolist() for p in ("train", "val", "test")] == [
        [6, 6, 5],
        [0, 0, 1],
        [2] * 3,
    ]
    rows = torch.cat([fed.x[fed.train[0]], fed.x[fed.test[0]]])
    assert torch.equal(rows.sort(0).values, tensors(8).tensors[0])  # each sample once
    again = Federation.from_datasets(given, names=["a", "b", "c"], test_share=0.25, seed=3)
    assert torch.equal(again.x, fed.x)


def test_datasets_of_images_and_of_inputs_by_name() -> None:
    fed = Federation.from_datasets([Photos(8)])
    assert fed.x.shape == (8, 3, 5, 4) and fed.x.dtype == torch.uint8
    apart = [({"a": torch.ones(2), "b": 3}, 0), ({"a": torch.ones(2), "b": 4}, 1)] * 4
    named = Federation.from_datasets([apart], classes=2)
    assert [one.name for one in named.form.fields] == ["a", "b"] and named.shape == (3,)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([3], "give a dataset with length and items"),
        ([[torch.zeros(3)] * 4], r"give a dataset|must give \(x, y\)"),
        ([([(1.0, 0)], [])], "the test dataset has no items"),
        ([[([1.0], 0), ([1.0, 2.0], 1)] * 4], "items differ in form"),
        ([SimpleNamespace(__len__=lambda: 3)], "give a dataset"),
    ],
)
def test_datasets_that_cannot_be_used(given, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Federation.from_datasets(given)


def test_files(tmp_path: Path) -> None:
    path = files.table(tmp_path / "trees.csv")
    fed = Federation.from_files(path, client="site", label="kind", seed=2)
    assert fed.names[0] == "site 0"
    pooled = Federation.from_files(path, label="kind", split={"name": "iid", "clients": 3})
    assert pooled.n_clients == 3
    with pytest.raises(UserError, match="names no clients; give client=COLUMN"):
        Federation.from_files(path, label="kind")
    with pytest.raises(UserError, match="did you mean 'label'"):
        Federation.from_files(path, lable="kind")


def test_the_hub_is_asked_lazily_and_read_as_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("idiolect.data.places.hub_installed", lambda: False)
    with pytest.raises(UserError, match="needs huggingface_hub"):
        Federation.from_hub("someone/trees")
    snapshot = tmp_path / "hub/datasets--someone--trees/snapshots/0abc"
    (snapshot / "data").mkdir(parents=True)
    files.table(snapshot / "data/train.csv")
    asked = []

    def snapshot_download(repository: str, **how: object) -> str:
        asked.append((repository, how["repo_type"], how["revision"]))
        if repository == "someone/gone":
            raise OSError("offline, and not in the cache")
        return str(snapshot)

    fake = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.setattr("idiolect.data.places.hub_installed", lambda: True)
    fed = Federation.from_hub("someone/trees", revision="0abc", client="site", label="kind")
    assert fed.n_clients == 4 and asked == [("someone/trees", "dataset", "0abc")]
    with pytest.raises(UserError, match=r"someone/gone could not be fetched .offline"):
        Federation.from_hub("someone/gone")


def test_the_split_as_a_picture(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.table(Path("trees.csv"))
    words = (
        "data",
        "inspect",
        "trees.csv",
        "--set",
        "data.client=site",
        "--set",
        "data.label=kind",
    )
    for name in ("s.html", "s.png", "s.csv"):
        done = call(*words, "--out", name)
        assert done.exit_code == 0 and f"split: {name}" in done.stdout, done.output
    table = Path("s.csv").read_text().splitlines()
    assert table[0] == "client,alder,birch,willow" and table[1].startswith("site 0,")
    about = describe(Federation.from_files("trees.csv", client="site", label="kind"))
    heads, rows = split_picture.counts_of(about)
    assert [sum(row) for row in rows] == [client["train"] for client in about["clients"]]
    assert "<th>birch</th>" in Path("s.html").read_text()
    with Image.open("s.png") as image:
        darkest = max(range(3), key=lambda k: rows[0][k])
        assert image.size[1] == 4 * 18 + 24 and len(image.getcolors() or []) > 2
        left = image.size[0] - 8 - 18 * len(heads)
        levels = [image.getpixel((left + 18 * k + 9, 29))[0] for k in range(3)]
        assert levels.index(min(levels)) == darkest
    bad = call(*words, "--out", "s.jpeg")
    assert bad.exit_code == 2 and ".html, .png, .csv" in bad.stderr
    sizes = ("data", "inspect", "trees.csv", "--task", "regression", "--set", "data.label=warmth")
    assert call(*sizes, "--out", "r.csv").exit_code == 0
    assert Path("r.csv").read_text().startswith("client,train,val,test\n")


def test_pixels_of_a_palette_become_colours() -> None:
    """They are numbers of colours, which were taken for greys."""
    image = Image.fromarray(np.full((5, 4, 3), (200, 30, 90), np.uint8))
    items = [(image.quantize(8), k % 2) for k in range(8)]
    assert items[0][0].mode == "P"
    fed = Federation.from_datasets([items])
    assert fed.shape == (3, 5, 4) and fed.x[0, :, 0, 0].tolist() == [200, 30, 90]
