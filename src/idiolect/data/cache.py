"""Decoded datasets on disk: the images in one .npy that is memory-mapped, the rest in a .npz."""

import hashlib
import logging
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core.files import replacing
from idiolect.data.places import cache_dir

Columns = dict[str, np.ndarray]
FORMAT = 1
log = logging.getLogger("idiolect")


def cached(name: str, stamps: Iterable[Path], decode: Callable[[], Columns]) -> Columns:
    """What decode() returns, read from disk if it was decoded before from the same files.

    Files are the same if path, size and time of change are. Column "x" is memory-mapped: writing to
    it changes the copy in memory only.
    """
    folder = cache_dir() / "decoded"
    base, version = _key(name, stamps)
    images, columns = folder / f"{base}-{version}.npy", folder / f"{base}-{version}.npz"
    if (found := _read(images, columns)) is not None:
        return found
    decoded = decode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(images, columns, decoded)
        for old in folder.glob(f"{base}-*"):
            if version not in old.name:
                old.unlink(missing_ok=True)
    except OSError as error:
        log.warning(
            "cannot keep a decoded copy of %s in %s (%s); set IDIOLECT_CACHE to a writable folder",
            name,
            folder,
            error.strerror or error,
        )
        return decoded
    return _read(images, columns) or decoded


def _key(name: str, stamps: Iterable[Path]) -> tuple[str, str]:
    """File name of the copy: one part for the paths, one that changes when a file changes."""
    paths, versions = hashlib.sha256(), hashlib.sha256(str(FORMAT).encode())
    for path in stamps:
        stat = path.stat()
        paths.update(f"{path.resolve()}\0".encode())
        versions.update(f"{stat.st_size} {stat.st_mtime_ns}\0".encode())
    return f"{name}-{paths.hexdigest()[:12]}", versions.hexdigest()[:12]


def _read(images: Path, columns: Path) -> Columns | None:
    """The decoded copy; None if there is none, or if it is damaged."""
    try:
        with columns.open("rb") as file, np.load(file, allow_pickle=False) as data:
            found: Columns = dict(data)
        x = np.load(images, mmap_mode="c", allow_pickle=False)
        if int(found.pop("checksum")) != _checksum(x):
            raise ValueError("checksum")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error):
        log.warning("cached copy %s is damaged; decoding again", images)
        return None
    return {"x": x, **found}


def _write(images: Path, columns: Path, decoded: Columns) -> None:
    x = np.ascontiguousarray(decoded["x"])
    rest: dict[str, Any] = {k: v for k, v in decoded.items() if k != "x"}
    rest["checksum"] = np.array(_checksum(x))
    with replacing(images) as draft, draft.open("wb") as file:
        np.save(file, x, allow_pickle=False)
    with replacing(columns) as draft, draft.open("wb") as file:
        np.savez(file, **rest)


def _checksum(x: np.ndarray) -> int:
    return zlib.crc32(x.reshape(-1).data)
