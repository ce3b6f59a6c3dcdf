"""How large data from a file may become: a small file can claim, or unpack to, any size."""

import os
from pathlib import Path

from idiolect.core.text import shortened
from idiolect.errors import UserError

VARIABLE = "IDIOLECT_LARGEST_DATA"  # in GB
DEFAULT = 2.0  # GB; the largest dataset with a name, Tiny-ImageNet, takes 1.4
LARGEST_IMAGE = 1 << 24  # pixels, before it is made smaller
LARGEST_CLASSES = 1_000_000


def largest() -> int:
    """Bytes that the data of one dataset, or of one client, may take once it is read."""
    text = os.environ.get(VARIABLE) or str(DEFAULT)
    try:
        return int(float(text) * 1e9)
    except (ValueError, OverflowError):
        told = shortened(repr(text), 40)
        raise UserError(f"{VARIABLE} must be a number of GB such as 4, got {told}") from None


def check_size(size: int, what: str | Path) -> None:
    """An error where data would take more than is allowed, before it is read."""
    if size > (most := largest()):
        raise UserError(
            f"{what} would take {_gigabytes(size)} GB, and {_gigabytes(most)} GB are allowed; if "
            f"the data is right, set the variable {VARIABLE} to more GB"
        )


def inside(folder: Path, name: str, what: str | Path) -> Path:
    """The file that other data names, which must lie in the dataset's own folder."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        told = shortened(repr(name), 80)
        raise UserError(f"{what} names {told}, which is not a file in {folder}; put it there")
    return path


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g}"
