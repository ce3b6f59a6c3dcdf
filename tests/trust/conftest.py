from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def someone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a home of their own, in an empty folder."""
    home = tmp_path / "home"
    place = tmp_path / "here"
    home.mkdir()
    place.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(place)
    return home
