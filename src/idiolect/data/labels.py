"""Labels are whole numbers: what is none is refused, never rounded."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from idiolect.errors import UserError


def whole(values: Any, what: str) -> NDArray[np.int64]:
    """Labels as int64. `what` names the file or client in the message."""
    array = np.asanyarray(values)
    refuse_masked(array, what)
    if array.dtype.kind == "f" and bool((np.isfinite(array) & (array == np.floor(array))).all()):
        array = array.astype(np.int64) if not len(array) or np.abs(array).max() < 2**53 else array
    if array.dtype.kind not in "iub":
        raise UserError(
            f"{what} must be whole numbers, got {told(array)}; number the classes from 0"
        )
    return as_int64(array, what)


def as_int64(array: np.ndarray, what: str) -> NDArray[np.int64]:
    """Whole numbers as int64; NumPy would turn those from 2^63 on into negative ones in silence."""
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise UserError(f"{what} has {int(array.max())}, and numbers must be below 2^63")
    return array.astype(np.int64)


def refuse_masked(array: np.ndarray, what: str) -> None:
    """NumPy forgets a mask in silence."""
    if isinstance(array, np.ma.MaskedArray) and bool(np.ma.getmaskarray(array).any()):
        raise UserError(f"{what} has masked values; fill them or drop those samples")


def told(array: np.ndarray) -> str:
    """The kind of values an array holds, in words."""
    words = {
        "f": "fractions",
        "c": "complex numbers",
        "U": "words",
        "S": "words",
        "b": "true/false",
    }
    words |= {"O": "objects", "M": "dates", "m": "spans of time", "V": "records"}
    return words.get(array.dtype.kind, f"{array.dtype} values")
