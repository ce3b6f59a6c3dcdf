"""Damaged files are one line that names them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idiolect.data import datasets
from idiolect.errors import UserError
from tests.data.dataset_files import (
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
    with pytest.raises(UserError, match="cannot be read"):
        datasets.load({"name": "omniglot"})
