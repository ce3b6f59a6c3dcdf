"""Columns of the user's own as numbers: categories become codes in the order of their names."""

import re
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from idiolect.core.form import PLAIN, Form
from idiolect.core.task import IGNORED
from idiolect.core.text import shortened
from idiolect.data.cache import Columns
from idiolect.data.labels import as_int64, refuse_masked, told
from idiolect.errors import UserError

Known = Mapping[str, tuple[str, ...]]
Coded = tuple[NDArray[np.int64], tuple[str, ...]]
FEW_NUMBERS = 10
NUMBER = re.compile(r"\s*[-+]?(\d{1,3}([,' ]\d{3})+|\d+)?([.,]\d*)?([eE][-+]?\d+)?\s*%?\s*")


class Read(NamedTuple):
    """What a file of the user's own holds."""

    columns: Columns  # x and y and, if there are, client and part
    form: Form = PLAIN  # what the numbers of x mean
    tokens: tuple[str, ...] = ()  # the names of tokens that are to be predicted
    inputs: tuple[str, ...] = ()  # of a table: its input columns
    known: Known = MappingProxyType({})  # of a table: the names behind codes, by column


def codes(values: Any, what: str, known: tuple[str, ...] = ()) -> Coded:
    """Every value as the position of its name among the sorted names, and the names. Whole numbers
    are sorted as numbers, so that labels 0..C-1 stay what they are. With `known` the names, and so
    the positions, are these."""
    array = flat(values, what)
    if array.dtype.kind == "f":
        if not bool((array == np.floor(array)).all()):
            raise UserError(
                f"{what} holds fractions, not classes; if it is a quantity, add --task regression"
            )
        array = _exact(array, what)
    if array.dtype.kind not in "iubU":
        raise UserError(f"{what} must hold numbers or words, got {told(array)}")
    names, number = np.unique(array, return_inverse=True)
    if len(names) and str(names[0]) == "":
        raise UserError(f"{what} has empty cells; fill them or drop those rows")
    if known:
        return _placed(names, known, what)[number].reshape(-1), known
    return number.astype(np.int64).reshape(-1), tuple(str(name) for name in names)


def _placed(names: NDArray[Any], known: tuple[str, ...], what: str) -> NDArray[np.int64]:
    """The positions of names among those known."""
    place = {name: k for k, name in enumerate(known)}
    for name in map(str, names):
        if name not in place:
            raise UserError(
                f"{what} has '{shortened(name, 40)}', which the run's data does not have; known: "
                f"{shortened(', '.join(known), 100)}"
            )
    return np.array([place[str(name)] for name in names], np.int64)


def step_codes(values: Any, what: str, known: tuple[str, ...] = ()) -> Coded:
    """A class for every step, [M, T]; words become codes, and a step that does not count is -100
    (words: empty)."""
    array = np.asanyarray(values)
    refuse_masked(array, what)
    array = _as_words(array, what)
    if array.ndim != 2 or not array.shape[1]:
        raise UserError(f"{what} must be [M, steps], a class for every step of a sample")
    if array.dtype.kind == "U":
        names, number = np.unique(array, return_inverse=True)
        number = number.reshape(array.shape).astype(np.int64)
        if known:
            place = _placed(names[names != ""], known, what)
            return np.concatenate([[IGNORED] * int("" in names), place])[number], known
        if names[0] == "":
            return np.where(number == 0, IGNORED, number - 1), tuple(map(str, names[1:]))
        return number, tuple(map(str, names))
    if array.dtype.kind not in "iub":
        raise UserError(f"{what} must hold whole numbers or words, got {told(array)}")
    found = as_int64(array, what)
    if bool(((found < 0) & (found != IGNORED)).any()):
        raise UserError(f"{what} has negative classes; a step that does not count is {IGNORED}")
    return found, ()


def names_of(values: Any, what: str) -> NDArray[Any]:
    """Names of clients, as words."""
    array = flat(values, what)
    if array.dtype.kind == "f" and bool((array == np.floor(array)).all()):
        array = _exact(array, what)
    if array.dtype.kind not in "iuU":
        raise UserError(f"{what} must hold names or whole numbers, got {told(array)}")
    names = array.astype(str)
    if bool((names == "").any()):
        raise UserError(f"{what} has empty names; fill them or drop those rows")
    return names


def refuse_quantities(values: Any, what: str) -> None:
    """Words of which most look like numbers, such as 1.5 and ? or 1,5: a quantity that would be
    read as a category. Where all are plain numbers, their file calls them words on purpose, and
    few different ones may well be categories."""
    cells = Counter(flat(values, what).tolist())
    odd = sorted(word for word in cells if not _is_number(word))
    alike = {word: count for word, count in cells.items() if word and NUMBER.fullmatch(word)}
    if odd and len(alike) > FEW_NUMBERS and 2 * sum(alike.values()) >= cells.total():
        raise UserError(
            f"{what} looks like numbers, but '{shortened(odd[0], 40)}' is none; write it as one or"
            " drop those rows; if these are categories, name the column in data.categories"
        )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def numbers(values: Any, what: str) -> NDArray[np.float32]:
    """A column of quantities."""
    array = np.asanyarray(values)
    refuse_masked(array, what)
    if array.dtype.kind not in "iufb":
        words = array.dtype.kind == "O" and any(isinstance(one, str) for one in array.flat)
        raise UserError(f"{what} must hold numbers, got {'words' if words else told(array)}")
    with np.errstate(over="ignore"):
        found = array.astype(np.float32)
    if not bool(np.isfinite(found).all()):
        raise UserError(f"{what} has empty, NaN, infinite or too large values; drop those rows")
    return found


def targets(values: Any, what: str) -> NDArray[np.float32]:
    """Quantities to learn, [M, targets]."""
    found = numbers(values, what)
    if found.ndim not in (1, 2):
        raise UserError(f"{what} must be [M] or [M, targets], got shape {list(found.shape)}")
    return found.reshape(len(found), -1)


def flat(values: Any, what: str) -> NDArray[Any]:
    """A column without empty cells; objects of a table are words."""
    array = np.asanyarray(values)
    refuse_masked(array, what)
    if array.dtype.kind == "O":
        if any(not isinstance(one, str) for one in array.reshape(-1)):
            raise UserError(f"{what} must hold numbers or words, without empty cells")
        array = array.astype(str)
    array = _as_words(array, what)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(f"{what} must be one value per sample, got shape {list(array.shape)}")
    if array.dtype.kind == "f" and not bool(np.isfinite(array).all()):
        raise UserError(f"{what} has empty, NaN or infinite values; fill them or drop those rows")
    return array


def _exact(array: NDArray[Any], what: str) -> NDArray[np.int64]:
    """Whole numbers that a file holds as fractions."""
    if array.size and float(np.abs(array).max()) >= 2**53:
        raise UserError(
            f"{what} has fractions of 2^53 or more, which run together; write them as words"
        )
    return array.astype(np.int64)


def _as_words(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Bytes as the words that they spell; the rest as it is."""
    if array.dtype.kind != "S":
        return array
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{what} has bytes that are no UTF-8 text; decode them first") from None


def pick(wanted: str | None, usual: tuple[str, ...], known: list[str], what: str) -> str | None:
    """The column that is wanted, else the first usual one that there is."""
    if wanted is None:
        return next((name for name in usual if name in known), None)
    if wanted not in known:
        listed = shortened(", ".join(known), 200)
        several = "; several are written [a,b]" if "," in wanted else ""
        raise UserError(
            f"{what} has no column '{shortened(wanted, 40)}'{several}; its columns: {listed}"
        )
    return wanted
