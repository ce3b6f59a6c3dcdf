"""Where datasets are looked for, and the download."""

import sys
import types

import pytest

from idiolect.data import datasets, places
from idiolect.errors import UserError
from tests.data.dataset_files import (
    grey,
    write_parquet,
)


def test_own_folder_comes_before_cache_and_debian(no_data):
    for root, label in ((places.DEBIAN, 1), (places.cache_dir() / "data", 2), (no_data, 3)):
        write_parquet(root / "mnist/train.parquet", grey(1), label=[label])
        write_parquet(root / "mnist/test.parquet", grey(1), label=[label])
        assert datasets.load({"name": "mnist", "rows": [1, 1]}).y.tolist() == [label, label]


def test_cache_dir_order(monkeypatch, tmp_path):
    monkeypatch.delenv("IDIOLECT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert places.cache_dir() == tmp_path / "xdg/idiolect"
    monkeypatch.setenv("IDIOLECT_CACHE", str(tmp_path / "own"))
    assert places.cache_dir() == tmp_path / "own"


def fake_hub(monkeypatch, download):
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr(places, "hub_installed", lambda: True)


def test_hub_download_lands_in_the_user_cache(no_data, monkeypatch):
    def download(repository, repo_type, allow_patterns, local_dir):
        assert repository == "ylecun/mnist" and repo_type == "dataset"
        for part in ("train", "test"):
            file = local_dir / f"mnist/{part}-00000-of-00001.parquet"
            write_parquet(file, grey(1), label=[3])

    fake_hub(monkeypatch, download)
    pool = datasets.load({"name": "mnist", "rows": [1, 1]})
    assert pool.where == str(places.cache_dir() / "data/mnist/mnist")


def test_network_failure_is_one_line(no_data, monkeypatch):
    def download(*args, **options):
        raise ConnectionError("no route\nto host")

    fake_hub(monkeypatch, download)
    with pytest.raises(UserError, match=r"mnist: download of ylecun/mnist failed \(no route to"):
        datasets.load({"name": "mnist"})
    assert not (places.cache_dir() / "data/mnist").exists()


def test_an_offline_machine_downloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "hub_installed", lambda: True)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert places.can_download()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not places.can_download()
