"""Damaged files are one line that names them."""

import gzip
import io
import struct
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idiolect.data import datasets
from idiolect.data.arrays import read_npy, read_npz
from idiolect.errors import UserError
from tests.data.dataset_files import (
    encode,
    grey,
    write_idx,
    write_parquet,
)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: f.write_bytes(f.read_bytes()[:100]), "cannot be read"),
        (lambda f: write_parquet(f, grey(3), label=[0, 1, 10]), "labels run from 0 to 10"),
        (lambda f: write_parquet(f, grey(3, 20), label=[0, 1, 2]), "is 20x20, expected 28x28"),
        (lambda f: write_parquet(f, grey(3), lable=[0, 1, 2]), "no column label"),
        (
            lambda f: pq.write_table(
                pa.table({"image": [{"bytes": b"no", "path": None}] * 3, "label": [0] * 3}), f
            ),
            "image 0 cannot be decoded",
        ),
    ],
)
def test_damaged_files_are_one_line(no_data, spoil, words):
    file = no_data / "mnist/train.parquet"
    write_parquet(file, grey(3), label=[0, 1, 2])
    write_parquet(no_data / "mnist/test.parquet", grey(1), label=[0])
    spoil(file)
    with pytest.raises(UserError, match=words) as caught:
        datasets.load({"name": "mnist", "rows": [3, 1]})
    assert "\n" not in str(caught.value)


def test_damaged_idx_and_npz(no_data):
    folder = no_data / "fashion_mnist"
    for prefix in ("train", "t10k"):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", grey(2))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(2))
    file = folder / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(UserError, match="cannot be read"):
        datasets.load({"name": "fashion_mnist"})
    (no_data / "omniglot.npz").write_bytes(b"PK nothing")
    with pytest.raises(UserError, match=r"cannot read .*omniglot\.npz"):
        datasets.load({"name": "omniglot"})


def spoiled_mnist(folder, **table):
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), folder / "train.parquet")
    write_parquet(folder / "test.parquet", grey(1), label=[0])


def test_rows_that_a_small_file_claims_are_not_decoded(no_data):
    many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(4_000_000, np.int8)), [b"x"])
    label = pa.array(np.zeros(4_000_000, np.int8))
    spoiled_mnist(no_data / "mnist", image=many, label=label)
    assert (no_data / "mnist/train.parquet").stat().st_size < 100_000
    with pytest.raises(UserError, match=r"would take 3.14 GB, and 2 GB are allowed.*LARGEST_DATA"):
        datasets.load({"name": "mnist", "rows": [4_000_000, 1]})


def test_one_large_value_in_every_row_is_noticed_in_time(no_data, monkeypatch):
    monkeypatch.setenv("IDIOLECT_LARGEST_DATA", "0.01")
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100, np.int8)), [b"x" * 1_000_000])
    spoiled_mnist(no_data / "mnist", image=same, label=[0] * 100)
    with pytest.raises(UserError, match="GB are allowed"):
        datasets.load({"name": "mnist", "rows": [100, 1]})
    monkeypatch.setenv("IDIOLECT_LARGEST_DATA", "much")
    with pytest.raises(UserError, match="IDIOLECT_LARGEST_DATA must be a number of GB"):
        datasets.load({"name": "mnist", "rows": [100, 1]})


@pytest.mark.parametrize("side", [5_000, 20_000])
def test_an_image_that_claims_many_pixels_is_not_decoded(no_data, side):
    def chunk(kind, body):
        text = kind + body
        return struct.pack(">I", len(body)) + text + struct.pack(">I", zlib.crc32(text))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    spoiled_mnist(no_data / "mnist", image=[{"bytes": png}] * 3, label=[0] * 3)
    with pytest.raises(
        UserError, match=r"expected 28x28|more than 16777216 pixels|cannot be decoded"
    ):
        datasets.load({"name": "mnist", "rows": [3, 1]})
    folder = no_data / "omniglot/images_background/A/character01"
    folder.mkdir(parents=True)
    (no_data / "omniglot/images_evaluation").mkdir()
    (folder / "0001_01.png").write_bytes(png)
    with pytest.raises(UserError, match=r"more than 16777216 pixels|cannot be decoded"):
        datasets.load({"name": "omniglot", "rows": [1, 0]})


def test_paths_in_a_table_stay_inside_the_datasets_folder(no_data):
    folder = no_data / "mnist"
    folder.mkdir(parents=True)
    outside = no_data / "secret.png"
    outside.write_bytes(encode(grey(1)[0]))
    (folder / "own.png").write_bytes(outside.read_bytes())
    (folder / "link.png").symlink_to(outside)
    for name in (str(outside), "../secret.png", "link.png"):
        spoiled_mnist(folder, image=[name], label=[0])
        with pytest.raises(UserError, match="which is not a file in"):
            datasets.load({"name": "mnist", "rows": [1, 1]})
    spoiled_mnist(folder, image=["own.png"], label=[0])
    assert len(datasets.load({"name": "mnist", "rows": [1, 1]})) == 2


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ([0.5, 1, 2], "labels must be whole numbers, got fractions"),
        ([0, None, 2], "column label has empty cells"),
        (["a", "b", "c"], "labels must be whole numbers"),
        ([[0], [1], [2]], "column label must hold numbers or words"),
        ([float("nan")] * 3, "labels must be whole numbers"),
    ],
)
def test_labels_are_never_rounded(no_data, label, words):
    spoiled_mnist(no_data / "mnist", image=[{"bytes": encode(p)} for p in grey(3)], label=label)
    with pytest.raises(UserError, match=words) as caught:
        datasets.load({"name": "mnist", "rows": [3, 1]})
    assert str(no_data / "mnist") in str(caught.value)


def test_packed_files_that_are_longer_than_they_say(no_data):
    folder = no_data / "fashion_mnist"
    for prefix in ("train", "t10k"):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", grey(2))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(2))
    (folder / "train-images-idx3-ubyte").unlink()
    packed = folder / "train-images-idx3-ubyte.gz"
    for rows, words in ((2, "longer than it says"), (10**7, "GB are allowed")):
        with gzip.open(packed, "wb", 1) as file:
            file.write(struct.pack(">HBB3I", 0, 8, 3, rows, 28, 28) + bytes(50_000_000))
        with pytest.raises(UserError, match=words):
            datasets.load({"name": "fashion_mnist"})


def test_headers_that_claim_more_than_the_file_has(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(2))
    lie = buffer.getvalue().replace(b"(2,), ", b"(39223372036,), ".ljust(6))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x_train.npy", lie)
    (tmp_path / "a.npy").write_bytes(lie)
    with pytest.raises(UserError, match=r"header claims|cannot read"):
        read_npz(tmp_path / "a.npz", ["x_train"])
    with pytest.raises(UserError, match=r"header claims|cannot read"):
        read_npy(tmp_path / "a.npy")
    np.savez_compressed(tmp_path / "b.npz", x_train=np.zeros(20_000_000, np.uint8))
    assert len(read_npz(tmp_path / "b.npz", ["x_train"])["x_train"]) == 20_000_000
    monkeypatch.setenv("IDIOLECT_LARGEST_DATA", "0.01")
    assert (tmp_path / "b.npz").stat().st_size < 50_000
    with pytest.raises(UserError, match="GB are allowed"):
        read_npz(tmp_path / "b.npz", ["x_train"])


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00" + b"x" * 99]
)
def test_damaged_arrays_are_named(tmp_path, content):
    for name in ("a.npz", "a.npy"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*a.npz"):
        read_npz(tmp_path / "a.npz", ["x"])
    with pytest.raises(UserError, match=r"cannot read .*a.npy"):
        read_npy(tmp_path / "a.npy")
    with pytest.raises(UserError, match=r"cannot read .*: No such file"):
        read_npy(tmp_path / "none.npy")
