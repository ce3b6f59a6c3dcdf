"""Arrays from .npz and .npy files: headers are compared with the file before memory is taken."""

import math
import os
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from idiolect.core.text import reason
from idiolect.data.limits import check_size
from idiolect.errors import UserError

Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], Header]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


def read_npz(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that the file holds."""

    def read() -> dict[str, np.ndarray]:
        with zipfile.ZipFile(path) as archive:
            kept = [one for one in archive.infolist() if one.filename.removesuffix(".npy") in names]
            total = 0
            for member in kept:
                with archive.open(member) as file:
                    total += _size(file, member.file_size)
                    check_size(total, path)
            found = {}
            for member in kept:
                with archive.open(member) as file:
                    array = npy.read_array(file, allow_pickle=False)
                    found[member.filename.removesuffix(".npy")] = array
            return found

    return _readable(path, read)


def read_npy(path: Path) -> np.ndarray:
    """The array of the file."""

    def read() -> np.ndarray:
        with path.open("rb") as file:
            check_size(_size(file, os.fstat(file.fileno()).st_size), path)
            file.seek(0)
            return npy.read_array(file, allow_pickle=False)

    return _readable(path, read)


def _size(file: IO[bytes], available: int) -> int:
    """Bytes of an array; ValueError where its header and the file do not agree."""
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError("a version of the format for arrays with named fields")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject or dtype.names or min(shape, default=0) < 0:
        raise ValueError("it holds objects, not numbers or words")
    size = math.prod(shape) * dtype.itemsize
    if size != available - file.tell():
        raise ValueError(f"its header claims {size} bytes, it has {available - file.tell()}")
    return size


def _readable(path: Path, read: Callable[[], Any]) -> Any:
    if path.exists() and not path.is_file():
        raise UserError(f"cannot read {path}: it is no file")
    try:
        return read()
    except (UserError, MemoryError):
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or reason(error)}") from None
    except Exception as error:  # zipfile, zlib and NumPy have many kinds for a damaged file
        raise UserError(f"cannot read {path}: {reason(error)}") from None
