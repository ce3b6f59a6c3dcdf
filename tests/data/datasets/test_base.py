"""What all datasets share: found, downloaded, checked, listed."""

import json

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
