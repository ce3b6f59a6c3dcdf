"""Files of a user's own: what they become, and what is refused in one line."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from idiolect.data import build
from idiolect.errors import UserError
from tests.data.own import files

NATURAL = {"name": "natural"}
COLUMNS = {"client": "site", "label": "kind"}


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_a_table_becomes_clients_with_their_names(tmp_path: Path, suffix, delimiter):
    path = files.table(tmp_path / f"trees.{suffix}", delimiter=delimiter)
    fed = build({"name": str(path), **COLUMNS}, NATURAL)
    assert fed.names == ("site 0", "site 1", "site 2", "site 3") and fed.shape == (3,)
    assert fed.info["class_names"] == ["alder", "birch", "willow"] and fed.classes == 3
    assert fed.x.dtype == torch.float32 and fed.x[:3, 2].tolist() == [0, 2, 1]  # clay, sand, peat
    assert [int(n) for n in fed.sizes("test")] == [8, 8, 8, 8]
    again = build({"name": str(path), **COLUMNS}, NATURAL)
    assert all(torch.equal(a, b) for a, b in zip(fed.test, again.test, strict=True))


def test_any_split_divides_pooled_own_data(tmp_path: Path):
    path = files.table(tmp_path / "trees.csv", rows=300)
    section = {"name": str(path), "label": "kind", "input": ["warmth", "wet"]}
    for split in ("dirichlet", "shards", "iid"):
        fed = build(section, {"name": split, "clients": 3})
        assert fed.n_clients == 3 and fed.shape == (2,)
        assert sum(int(fed.sizes(p).sum()) for p in ("train", "test")) == 300
    with pytest.raises(UserError, match=r"data\.client=COLUMN"):
        build(section, NATURAL)


def test_standardised_by_the_training_rows_only(tmp_path: Path):
    path = files.table(tmp_path / "trees.csv")
    data = {"name": str(path), **COLUMNS, "input": ["warmth", "wet"], "standardize": True}
    fed = build(data, {**NATURAL, "unseen": 1})
    rows = torch.cat([fed.train[i] for i in fed.seen])
    seen = fed.inputs(rows)
    assert torch.allclose(seen.mean(0), torch.zeros(2), atol=1e-4)
    assert torch.allclose(seen.std(0, correction=0), torch.ones(2), atol=1e-3)
    assert fed.inputs(torch.cat(fed.test)).mean(0).abs().max() > 1e-3  # not by the test rows


def test_whole_numbers_and_lists_stay_whole(tmp_path: Path):
    tokens = [[i, i + 1, 7] for i in range(20)]
    columns = {"text": tokens, "label": [i % 2 for i in range(20)], "client": list("ab") * 10}
    pq.write_table(pa.table(columns), tmp_path / "words.parquet")
    fed = build({"name": str(tmp_path / "words.parquet")}, NATURAL)
    assert fed.x.dtype == torch.int64 and fed.x[3].tolist() == [3, 4, 7] and fed.names == ("a", "b")


def test_hub_parquet_with_images_and_a_test_part(tmp_path: Path):
    import io

    def encoded(level: int) -> dict[str, bytes | None]:
        file = io.BytesIO()
        Image.fromarray(np.full((6, 5, 3), level, np.uint8)).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": None}

    (tmp_path / "data").mkdir()
    for part, n in (("train", 12), ("test", 6)):
        rows = {"image": [encoded(i) for i in range(n)], "label": [i % 2 for i in range(n)]}
        pq.write_table(pa.table(rows), tmp_path / "data" / f"{part}-00000-of-00001.parquet")
    fed = build({"name": str(tmp_path)}, {"name": "iid", "clients": 2})
    assert fed.x.shape == (18, 3, 6, 5) and fed.x.dtype == torch.uint8
    assert fed.sizes("train").tolist() == [6, 6] and fed.sizes("test").tolist() == [3, 3]


def test_images_in_folders(tmp_path: Path):
    fed = build({"name": str(files.images(tmp_path / "a"))}, NATURAL)
    assert fed.names == ("north", "south") and fed.x.shape == (32, 1, 12, 12)
    assert fed.info["class_names"] == ["dark", "light"]
    assert float(fed.inputs(fed.train[0][fed.y[fed.train[0]] == 1]).mean()) > 0.6
    pooled = build({"name": str(files.images(tmp_path / "b", ()))}, {"name": "iid", "clients": 2})
    assert pooled.n_clients == 2 and len(pooled.x) == 16
    for part in ("train", "test"):
        files.images(tmp_path / "c" / part, ())
    parted = build({"name": str(tmp_path / "c")}, {"name": "iid", "clients": 2})
    assert int(parted.sizes("test").sum()) == 16
    small = build({"name": str(tmp_path / "a"), "size": [6, 4]}, NATURAL)
    assert small.shape == (1, 6, 4)
    files.images(tmp_path / "a/1/2/3/4/5/6")  # however far below, none is passed over in silence
    with pytest.raises(UserError, match="all images must lie"):
        build({"name": str(tmp_path / "a")}, NATURAL)


def test_arrays(tmp_path: Path):
    fed = build({"name": str(files.signals(tmp_path / "s.npz"))}, NATURAL)
    assert fed.names == ("machine 0", "machine 1", "machine 2") and fed.shape == (32,)
    x, y = np.zeros((6, 2), np.uint8), np.arange(6) % 2
    np.savez(tmp_path / "t.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    parted = build({"name": str(tmp_path / "t.npz")}, {"name": "iid", "clients": 2})
    assert parted.x.dtype == torch.uint8 and int(parted.sizes("test").sum()) == 4


MISTAKES = {
    "there is no such file": {"name": "missing.csv"},
    "no column 'sight'; its columns: site": {"name": "t.csv", "label": "kind", "client": "sight"},
    "no column label or y": {"name": "t.csv"},
    "cannot be an input too": {"name": "t.csv", **COLUMNS, "input": ["warmth", "kind"]},
    "fractions, not classes": {"name": "t.csv", "label": "warmth"},
    "did you mean 'label'": {"name": "t.csv", "labels": "kind"},
    "standardize is for quantities": {"name": "tok.npz", "standardize": True},
    "needs the arrays x": {"name": "bad.npz"},
    "empty cells": {"name": "holes.csv", "label": "y"},
    "cannot be read": {"name": "broken.parquet"},
    "files are .csv": {"name": "./notes.txt"},
    "bring all to one size": {"name": "./mixed"},
    "neither images": {"name": "./empty"},
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_told_in_one_line(tmp_path: Path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    files.table(Path("t.csv"))
    np.savez("tok.npz", x=np.zeros((4, 2), int), y=[0, 1, 0, 1])
    np.savez("bad.npz", inputs=np.zeros((4, 2)), y=[0, 1, 0, 1])
    Path("holes.csv").write_text("a,y\n1,0\n,1\n3,1\n")
    Path("broken.parquet").write_bytes(b"PAR1nonsensePAR1")
    Path("notes.txt").write_text("hello")
    files.images(Path("mixed"), ())
    Image.fromarray(np.zeros((5, 5), np.uint8)).save("mixed/dark/odd.png")
    Path("empty").mkdir()
    with pytest.raises(UserError) as caught:
        build(MISTAKES[words], {"name": "iid", "clients": 2})
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_all_empty_cells_are_told_at_once(tmp_path: Path, ending):
    """Words too: an empty label of a CSV file was a class of its own without a name."""
    rows = "a,word,site,y,unused\n1,b,n,u,\n,c,n,v,\n2,,s,u,\n3,b,s,,\n4,,n,v,x\n"
    path = tmp_path / f"holes.{ending}"
    path.write_text(rows)
    if ending == "parquet":
        nulls = pa.csv.ConvertOptions(strings_can_be_null=True)
        pq.write_table(pa.csv.read_csv(path, convert_options=nulls), path)
    inputs = ["a", "word"]
    with pytest.raises(UserError) as caught:
        build({"name": str(path), "label": "y", "client": "site", "input": inputs}, NATURAL)
    assert str(caught.value).endswith(
        "empty cells, by column: a (1), word (2), y (1); fill them, or drop the 4 of 5 rows that"
        " have some"
    )
