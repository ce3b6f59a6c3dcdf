"""The folders in which datasets are looked for, and the download of one into the cache folder."""

import importlib.util
import os
import shutil
from pathlib import Path

from idiolect.errors import UserError

DEBIAN = Path("/usr/share/datasets")


def cache_dir() -> Path:
    """IDIOLECT_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("IDIOLECT_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "idiolect"


def roots() -> list[Path]:
    """Folders that hold one folder per dataset, in the order they are searched."""
    chosen = os.environ.get("IDIOLECT_DATA")
    # Whole paths: Arrow reads `data:1` as the address of a server.
    first = [Path(chosen).expanduser().absolute()] if chosen else []
    return [*first, cache_dir().absolute() / "data", DEBIAN]


def hub_installed() -> bool:
    return importlib.util.find_spec("huggingface_hub") is not None


def can_download() -> bool:
    """Whether the hub may be asked; HF_HUB_OFFLINE forbids it, as for the hub's own library."""
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return hub_installed() and not offline


def fetched(repository: str, revision: str | None = None) -> Path:
    """The folder of a dataset of the Hugging Face hub: from its own cache, or fetched."""
    if not hub_installed():
        raise UserError(f"from_hub needs huggingface_hub to fetch {repository}: idiolect[hub]")
    from huggingface_hub import snapshot_download

    wanted = ["*.parquet", "*.csv", "*.tsv"]
    try:
        return Path(
            snapshot_download(
                repository, repo_type="dataset", revision=revision, allow_patterns=wanted
            )
        )
    except Exception as error:  # the hub raises many kinds, all of them end the same way
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UserError(f"from_hub: {repository} could not be fetched ({reason})") from error


def download(name: str, repository: str) -> Path:
    """Download a dataset's parquet files from the Hugging Face hub; all of them or none."""
    from huggingface_hub import snapshot_download

    target = cache_dir() / "data" / name
    unfinished = target.with_name(f".{name}.unfinished")
    try:
        snapshot_download(
            repository, repo_type="dataset", allow_patterns=["*.parquet"], local_dir=unfinished
        )
        if target.exists():  # an older, unusable copy; a usable one would have been found
            shutil.rmtree(target)
        os.replace(unfinished, target)
    except Exception as error:  # the hub raises many kinds, all of them end the same way
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UserError(f"{name}: download of {repository} failed ({reason})") from error
    return target
