"""Decoded copies: used again, renewed, rebuilt when damaged."""

import logging
import types

import numpy as np
import pytest

from idiolect.data import datasets, decode, places
from tests.data.dataset_files import (
    grey,
    write_parquet,
)


class TestCache:
    @pytest.fixture
    def mnist(self, no_data, monkeypatch):
        write_parquet(no_data / "mnist/train.parquet", grey(9), label=[1] * 9)
        write_parquet(no_data / "mnist/test.parquet", grey(4), label=[2] * 4)
        decoded = []
        real = decode.parquet

        def counted(*args, **options):
            decoded.append(1)
            return real(*args, **options)

        monkeypatch.setattr(decode, "parquet", counted)
        return types.SimpleNamespace(
            load=lambda: datasets.load({"name": "mnist", "rows": [9, 4]}),
            decoded=decoded,
            folder=no_data,
            cache=places.cache_dir() / "decoded",
        )

    def test_second_load_is_mapped_not_decoded(self, mnist):
        first, second = mnist.load(), mnist.load()
        assert len(mnist.decoded) == 2  # train and test, once
        assert isinstance(second.x, np.memmap)
        assert np.array_equal(first.x, second.x) and np.array_equal(first.y, second.y)
        assert sorted(p.suffix for p in mnist.cache.iterdir()) == [".npy", ".npz"]

    def test_changed_file_is_decoded_again_and_the_old_copy_goes(self, mnist):
        mnist.load()
        write_parquet(mnist.folder / "mnist/train.parquet", grey(9), label=[3] * 9)
        assert mnist.load().y[0] == 3
        assert len(list(mnist.cache.iterdir())) == 2

    @pytest.mark.parametrize("suffix", [".npy", ".npz"])
    @pytest.mark.parametrize("how", ["cut", "flipped", "empty", "gone"])
    def test_damaged_copy_is_rebuilt(self, mnist, caplog, suffix, how):
        good = mnist.load()
        want = np.array(good.x)
        file = next(mnist.cache.glob(f"*{suffix}"))
        raw = bytearray(file.read_bytes())
        file.unlink()
        if how == "cut":
            file.write_bytes(raw[: len(raw) // 2])
        elif how == "flipped":
            raw[len(raw) // 2] ^= 1
            file.write_bytes(raw)
        elif how == "empty":
            file.touch()
        with caplog.at_level(logging.WARNING):
            pool = mnist.load()
        assert np.array_equal(pool.x, want) and len(mnist.decoded) == 4
        assert len(caplog.records) == (0 if how == "gone" else 1)
        mnist.load()
        assert len(mnist.decoded) == 4

    def test_unwritable_cache_is_one_warning(self, mnist, caplog):
        places.cache_dir().parent.mkdir(exist_ok=True)
        places.cache_dir().write_text("a file where the folder should be")
        with caplog.at_level(logging.WARNING):
            pool = mnist.load()
        assert len(pool) == 13
        assert len(caplog.records) == 1 and "IDIOLECT_CACHE" in caplog.text

    def test_full_disk_is_one_warning_and_leaves_nothing(self, mnist, caplog, monkeypatch):
        def full(*args, **options):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "savez", full)
        with caplog.at_level(logging.WARNING):
            pool = mnist.load()
        assert len(pool) == 13 and "No space left" in caplog.text
        assert not list(mnist.cache.glob(".*tmp~"))
