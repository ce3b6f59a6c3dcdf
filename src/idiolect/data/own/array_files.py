"""Arrays of the user's own in one .npz: x, y and, if there are, client and part; or x_train,
y_train, x_test, y_test and client_train, client_test."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from idiolect.data.arrays import read_npz
from idiolect.data.cache import Columns
from idiolect.data.labels import as_int64, told
from idiolect.data.own.columns import Read, numbers
from idiolect.data.packed import pack
from idiolect.errors import UserError

if TYPE_CHECKING:
    from idiolect.data.own.own_files import OwnFiles


def read(path: Path, own: "OwnFiles") -> Read:
    """x, y and, if there are, client and part; several inputs if `data.form` says so."""
    what, inputs = f"data '{path}'", own.columns or ("x",)
    if len(inputs) != 1 and own.form == "plain":
        raise UserError(
            f"{what}: data.input names one array of an .npz, not {len(inputs)}; for a network of"
            " your own that takes several, set data.form=dict or tuple"
        )
    if len(own.labels) > 1:
        raise UserError(f"{what}: data.label names one array of an .npz; stack the columns")
    names = {f"input {k}": name for k, name in enumerate(inputs)}
    names |= {"y": (*own.labels, "y")[0], "client": own.client or "client"}
    names["part"] = own.part or "part"
    if len(set(names.values())) != len(names):
        raise UserError(f"{what}: one array cannot be input, label, client and part at once")
    found = _found(path, own, names)
    given = {name: found.pop(f"input {k}") for k, name in enumerate(inputs)}
    first = next(iter(given.values()))
    for key, array in {**given, **found}.items():
        if array.ndim < 1 or len(array) != len(first):
            told_rows = len(array) if array.ndim else "no"
            raise UserError(f"{what}: {key} has {told_rows} rows, {inputs[0]} {len(first)}")
    if own.form != "plain":
        packed, form = pack(given, own.form == "dict", what)
        return Read({"x": packed.numpy(), **found}, form)
    x = _inputs(first, f"{what}: {inputs[0]}")
    if "y" not in found:
        x, found["y"] = _next(x, what)
    return Read({"x": x, **found})


def _found(path: Path, own: "OwnFiles", names: dict[str, str]) -> Columns:
    """The arrays by what they are for."""
    wanted = {one for name in names.values() for one in (name, f"{name}_train", f"{name}_test")}
    held = read_npz(path, wanted)
    parts = ("_train", "_test") if f"{names['input 0']}_train" in held else ("",)
    found: Columns = {}
    for key, name in names.items():
        pieces = [held[f"{name}{part}"] for part in parts if f"{name}{part}" in held]
        if len(pieces) == len(parts):
            _check_alike(pieces, f"data '{path}': {name}")
            found[key] = np.concatenate(pieces)
        elif key == "y" and not pieces and own.task == "next-token" and not own.labels:
            continue
        elif key not in ("client", "part") or pieces or getattr(own, key, None):
            has = ", ".join(sorted(held)) or "none of these arrays"
            lacks = ", ".join(f"{name}{part}" for part in parts)
            raise UserError(f"data '{path}' needs the arrays {lacks}; it has {has}")
    if len(parts) == 2:
        sizes = [len(held[f"{names['input 0']}{part}"]) for part in parts]
        found["part"] = np.repeat(["train", "test"], sizes)
    return found


def _next(x: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and, as the target of each, the next one."""
    if x.ndim != 2 or x.dtype.kind not in "iu" or x.shape[1] < 2:
        raise UserError(f"{what}: next-token needs x [M, T] of whole numbers, T at least 2, or y")
    x = as_int64(x, what)
    return x[:, :-1], x[:, 1:]


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
    return as_int64(x, what) if x.dtype.kind in "iub" else numbers(x, what)
