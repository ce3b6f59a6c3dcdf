"""MNIST, Fashion-MNIST, EMNIST and FEMNIST from small files in their official layouts."""

import numpy as np
import pytest

from idiolect.data import datasets, places
from idiolect.data.datasets.mnist import Emnist
from idiolect.errors import UserError
from tests.data.dataset_files import (
    grey,
    write_idx,
    write_parquet,
)


def test_mnist_parquet_keeps_pixels_and_parts(no_data):
    train, test = grey(12), grey(5)
    write_parquet(no_data / "mnist/train.parquet", train, label=[i % 10 for i in range(12)])
    write_parquet(no_data / "mnist/test.parquet", test, label=[0, 1, 2, 3, 4])
    pool = datasets.load({"name": "mnist", "rows": [12, 5]})
    assert np.array_equal(pool.x[:, 0], np.concatenate([train, test]))
    assert pool.part.tolist() == [0] * 12 + [1] * 5
    assert pool.y.tolist() == [i % 10 for i in range(12)] + [0, 1, 2, 3, 4]
    assert pool.mean == (0.1307,)


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_from_the_debian_folder(no_data, packed):
    folder = places.DEBIAN / "fashion-mnist"
    end = ".gz" if packed else ""
    train, test = grey(6), grey(2)
    write_idx(folder / f"train-images-idx3-ubyte{end}", train, packed)
    write_idx(folder / f"train-labels-idx1-ubyte{end}", np.arange(6), packed)
    write_idx(folder / f"t10k-images-idx3-ubyte{end}", test, packed)
    write_idx(folder / f"t10k-labels-idx1-ubyte{end}", np.array([9, 8]), packed)
    pool = datasets.load({"name": "fashion_mnist", "rows": [6, 2]})
    assert np.array_equal(pool.x[:6, 0], train) and pool.y.tolist() == [*range(6), 9, 8]
    assert pool.where == str(folder)


def test_emnist_idx_is_set_upright(no_data):
    train, test = grey(4), grey(2)
    for part, x in (("train", train), ("test", test)):
        prefix = no_data / "emnist/gzip" / f"emnist-letters-{part}"
        write_idx(prefix.with_name(prefix.name + "-images-idx3-ubyte.gz"), x, packed=True)
        labels = np.arange(1, len(x) + 1)
        write_idx(prefix.with_name(prefix.name + "-labels-idx1-ubyte.gz"), labels, packed=True)
    section = {"name": "emnist", "variant": "letters", "rows": [4, 2]}
    pool = datasets.load(section)
    assert np.array_equal(pool.x[:4, 0], train.swapaxes(1, 2))
    assert pool.y.tolist() == [0, 1, 2, 3, 0, 1] and pool.classes == 26
    turned = datasets.load({**section, "upright": False})
    assert np.array_equal(turned.x[:4, 0], train)


def test_emnist_parquet_and_variants(no_data):
    for part in ("train", "test"):
        path = no_data / f"emnist/balanced/{part}-00000-of-00001.parquet"
        write_parquet(path, grey(2), label=[46, 0])
    assert datasets.load({"name": "emnist", "rows": [2, 2]}).classes == 47
    with pytest.raises(UserError, match="did you mean 'byclass'"):
        datasets.load({"name": "emnist", "variant": "byclas"})
    assert Emnist(variant="byclass").expected == (697_932, 116_323)


def test_femnist_without_test_part_and_with_named_writers(no_data):
    columns = {"character": [0, 61, 5], "writer_id": ["f2", "f1", "f2"]}
    write_parquet(no_data / "femnist/data/train-00000-of-00001.parquet", grey(3), **columns)
    pool = datasets.load({"name": "femnist"})
    assert pool.group_names == ("f1", "f2") and pool.group.tolist() == [1, 0, 1]
    assert not pool.has_test
