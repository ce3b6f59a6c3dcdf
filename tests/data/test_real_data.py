"""The real datasets, where IDIOLECT_DATA has them."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from idiolect.data import build, datasets, places


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """One decoded copy for all tests on real data."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def real(shared_cache, monkeypatch):
    """real("mnist/train.parquet"): skips unless IDIOLECT_DATA has that file."""
    monkeypatch.setenv("IDIOLECT_CACHE", str(shared_cache))

    def need(file: str) -> None:
        folder = os.environ.get("IDIOLECT_DATA")
        if not folder or not (Path(folder) / file).is_file():
            pytest.skip(f"needs {file} in the folder IDIOLECT_DATA names")

    return need


def test_real_mnist_is_the_original(real):
    real("mnist/train.parquet")
    pool = datasets.load({"name": "mnist"})
    assert pool.x.shape == (70_000, 1, 28, 28)


def test_real_cifar10_second_load_is_quick(real):
    real("cifar10/train.parquet")
    datasets.load({"name": "cifar10"})
    start = time.perf_counter()
    pool = datasets.load({"name": "cifar10"})
    assert time.perf_counter() - start < 2
    assert pool.x.shape == (60_000, 3, 32, 32)
    assert np.bincount(pool.y).tolist() == [6000] * 10


def test_spfl_sizes_on_mnist(real):
    real("mnist/train.parquet")
    for shared in (True, False):
        section = {"name": "classes", "clients": 10, "k": 6, "shared_classes": shared}
        fed = build({"name": "mnist"}, section, 0)
        assert float(fed.sizes("train").double().mean()) == pytest.approx(2880, rel=0.03)
        assert float(fed.sizes("test").double().mean()) == pytest.approx(720, rel=0.03)


def test_dirichlet_on_mnist_as_fedas(real):
    real("mnist/train.parquet")
    section = {"name": "dirichlet", "clients": 20, "alpha": 0.1, "min_size": 40}
    fed = build({"name": "mnist"}, section, 0)
    assert int(fed.sizes("train").sum() + fed.sizes("test").sum()) == 70_000
    assert int(fed.sizes("train").sum()) == pytest.approx(52_500, abs=20)


def test_femnist_writers(real):
    real("femnist/train.parquet")
    fed = build({"name": "femnist"}, {"name": "natural"}, 0)
    assert fed.n_clients == 105 and int(fed.sizes("train").sum()) == 14_708


def test_omniglot_alphabets(real):
    real("omniglot.npz")
    fed = build({"name": "omniglot"}, {"name": "natural"}, 0)
    assert fed.n_clients == 50 and fed.classes == 1623
    assert int(fed.sizes("train").sum()) == 1623 * 60
    assert fed.names[0] == "Alphabet_of_the_Magi"


def test_real_fashion_mnist_of_debian_is_the_original(shared_cache, monkeypatch):
    monkeypatch.setenv("IDIOLECT_CACHE", str(shared_cache))
    if not (places.DEBIAN / "fashion-mnist").is_dir():
        pytest.skip("needs Debian's package dataset-fashion-mnist")
    pool = datasets.load({"name": "fashion_mnist"})  # checked by its SHA-256
    assert pool.x.shape == (70_000, 1, 28, 28)
    assert np.bincount(pool.y).tolist() == [7000] * 10
