"""What all datasets share: found, downloaded, checked, listed."""

import json

import numpy as np
import pytest

from idiolect.data import datasets, list_datasets, places
from idiolect.data.datasets.mnist import Mnist
from idiolect.errors import UserError
from tests.data.dataset_files import (
    grey,
    write_omniglot,
    write_parquet,
)


def test_official_row_count_is_checked_by_default(no_data):
    write_parquet(no_data / "mnist/train.parquet", grey(3), label=[0, 1, 2])
    write_parquet(no_data / "mnist/test.parquet", grey(1), label=[0])
    with pytest.raises(UserError, match="3 train and 1 test samples, expected 60000 and 10000"):
        datasets.load({"name": "mnist"})


def test_row_count_is_checked_on_a_cached_copy_too(no_data):
    write_parquet(no_data / "mnist/train.parquet", grey(3), label=[0, 1, 2])
    write_parquet(no_data / "mnist/test.parquet", grey(1), label=[0])
    datasets.load({"name": "mnist", "rows": [3, 1]})
    with pytest.raises(UserError, match="expected 60000"):
        datasets.load({"name": "mnist"})


def test_checksum_of_lossless_data(no_data, monkeypatch):
    monkeypatch.setattr(Mnist, "official", (3, 1))
    write_parquet(no_data / "mnist/train.parquet", grey(3), label=[0, 1, 2])
    write_parquet(no_data / "mnist/test.parquet", grey(1), label=[0])
    with pytest.raises(UserError, match="not the original data"):
        datasets.load({"name": "mnist"})


def test_missing_dataset_says_where_and_how(no_data):
    with pytest.raises(UserError) as caught:
        datasets.load({"name": "cifar10"})
    text = str(caught.value)
    assert str(no_data / "cifar10") in text and str(places.DEBIAN) in text
    assert "IDIOLECT_DATA" in text and "idiolect[hub]" in text and "\n" not in text


def test_list_datasets_says_where(no_data):
    write_omniglot(no_data / "omniglot.npz")
    listed = {d["name"]: d for d in json.loads(json.dumps(list_datasets()))}
    assert listed["digits"]["found"] == "scikit-learn"
    assert listed["omniglot"]["found"] == str(no_data / "omniglot.npz")
    assert listed["cifar10"]["found"] is None
    assert listed["tiny_imagenet"]["shape"] == [3, 64, 64]
    assert datasets.get({"name": "digits"}) == "scikit-learn"


def test_a_share_of_every_class_and_part_is_used(no_data):
    labels = [0] * 8 + [1] * 3
    write_parquet(no_data / "mnist/train.parquet", grey(11), label=labels)
    write_parquet(no_data / "mnist/test.parquet", grey(4), label=[0, 0, 0, 1])
    section = {"name": "mnist", "rows": [11, 4]}
    whole, part = datasets.load(section), datasets.load({**section, "share": 0.5})
    assert part.y.tolist() == [0] * 4 + [1] * 2 + [0, 0, 1]
    assert part.part.tolist() == [0] * 6 + [1] * 3
    assert np.array_equal(part.x, whole.x[[0, 1, 2, 3, 8, 9, 11, 12, 14]])
    assert len(datasets.load({"name": "digits", "share": 0.01})) == 20  # never a class without any
