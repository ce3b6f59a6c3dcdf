"""Arrays of the user's own in one .npz: x, y and, if there are, client and part; or x_train,
y_train, x_test, y_test and client_train, client_test."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from idiolect.data.arrays import read_npz
from idiolect.data.cache import Columns
from idiolect.data.labels import told
from idiolect.data.own.columns import numbers
from idiolect.errors import UserError

if TYPE_CHECKING:
    from idiolect.data.own.own_files import OwnFiles


def read(path: Path, own: "OwnFiles") -> Columns:
    """x, y and, if there are, client and part."""
    inputs = own.columns or ("x",)
    if len(inputs) != 1:
        raise UserError(f"data '{path}': data.input names one array of an .npz, not {len(inputs)}")
    if len(own.labels) > 1:
        raise UserError(f"data '{path}': data.label names one array of an .npz; stack the columns")
    names = {"x": inputs[0], "y": (*own.labels, "y")[0], "client": own.client or "client"}
    names["part"] = own.part or "part"
    wanted = {one for name in names.values() for one in (name, f"{name}_train", f"{name}_test")}
    held = read_npz(path, wanted)
    parts = ("_train", "_test") if f"{names['x']}_train" in held else ("",)
    found: Columns = {}
    for key, name in names.items():
        pieces = [held[f"{name}{part}"] for part in parts if f"{name}{part}" in held]
        if len(pieces) == len(parts):
            _check_alike(pieces, f"data '{path}': {name}")
            found[key] = np.concatenate(pieces)
        elif key in ("x", "y") or pieces or getattr(own, key, None):
            has = ", ".join(sorted(held)) or "none of these arrays"
            lacks = ", ".join(f"{name}{part}" for part in parts)
            raise UserError(f"data '{path}' needs the arrays {lacks}; it has {has}")
    if len(parts) == 2:
        sizes = [len(held[f"{names['x']}{part}"]) for part in parts]
        found["part"] = np.repeat(["train", "test"], sizes)
    found["x"] = _inputs(found["x"], f"data '{path}': {names['x']}")
    for key, array in found.items():
        if array.ndim < 1 or len(array) != len(found["x"]):
            raise UserError(f"data '{path}': {key} has {len(array)} rows, x {len(found['x'])}")
    return found


def _check_alike(pieces: list[np.ndarray], what: str) -> None:
    if any(one.ndim < 1 or one.shape[1:] != pieces[0].shape[1:] for one in pieces):
        raise UserError(f"{what}: the parts differ in shape")


def _inputs(x: np.ndarray, what: str) -> np.ndarray:
    """uint8 images as they are, other whole numbers (tokens) as int64, quantities as float32."""
    if x.ndim < 1 or x.dtype.kind not in "iufb":
        raise UserError(f"{what} must be numbers, one row per sample, got {told(x)}")
    if x.ndim == 1:
        x = x[:, None]
    if x.dtype == np.uint8:
        return x
    return x.astype(np.int64) if x.dtype.kind in "iub" else numbers(x, what)
