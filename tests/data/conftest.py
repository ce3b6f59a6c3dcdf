"""A machine without datasets."""

import pytest

from idiolect.data import places


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """No dataset anywhere, an empty cache; gives the folder IDIOLECT_DATA points to."""
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("IDIOLECT_DATA", str(data))
    monkeypatch.setenv("IDIOLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(places, "hub_installed", lambda: False)
    return data
