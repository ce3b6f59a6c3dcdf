"""The input columns of a table: images, lists, texts, categories and quantities."""

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from idiolect.core.form import PLAIN, Form
from idiolect.core.text import shortened
from idiolect.data import decode
from idiolect.data.labels import as_int64
from idiolect.data.limits import check_size
from idiolect.data.own import texts
from idiolect.data.own.columns import Known, codes, numbers, refuse_quantities
from idiolect.data.own.image_folders import as_array
from idiolect.data.packed import pack
from idiolect.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from idiolect.data.own.own_files import OwnFiles

IMAGES = ("image", "img")


class TableInputs:
    """These columns of a table as the inputs of a network; `form` says what their numbers mean,
    `tokens` names those of a text, `known` the words behind all codes. `like`: those of the table
    that was read first."""

    def __init__(
        self,
        table: "pa.Table",
        names: tuple[str, ...],
        own: "OwnFiles",
        what: str,
        like: Known = MappingProxyType({}),
    ):
        self.table, self.names, self.own, self.what = table, names, own, what
        self.known = dict(like)
        self.form = PLAIN
        self.tokens: tuple[str, ...] = ()
        given = own.categories or ()
        self.categories = (given,) if isinstance(given, str) else given
        for name in self.categories:
            if name not in names:
                raise UserError(f"{what}: data.categories names '{name}', which is no input")
        self.words = [name for name in names if is_words(table[name].type)]
        if own.tokens and not self.words:
            raise UserError(f"{what}: data.tokens needs an input column of texts")

    def array(self) -> np.ndarray:
        """One column of images, lists or text as it is; plain columns side by side, or apart."""
        if self.own.form != "plain":
            apart = {name: self._apart(name) for name in self.names}
            x, self.form = pack(apart, self.own.form == "dict", self.what)
            return x.numpy()
        if len(self.names) == 1:
            return self._only(self.names[0])
        if self.own.tokens:
            raise UserError(
                f"{self.what}: a text beside other inputs needs a network of your own that takes"
                " them apart; set data.form=dict, or name one column with data.input"
            )
        check_size(4 * len(self.table) * len(self.names), self.what)
        found = [self._plain(name) for name in self.names]
        counts = tuple(count for _, count in found)
        whole = all(one.dtype == np.int64 for one, _ in found) and not self.own.standardize
        if any(counts):
            self.form = Form(codes=counts)
        return np.stack([one if whole else one.astype(np.float32) for one, _ in found], axis=1)

    def next_tokens(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, targets and rows for the task next-token."""
        if len(self.names) != 1 or self.own.form != "plain":
            raise UserError(f"{self.what}: next-token reads one column; name it with data.input")
        name = self.names[0]
        if name in self.words:
            rows, self.tokens = self._tokens(name, self.own.tokens or "chars")
        else:
            rows = _rows(self.table[name], self._column(name))
            if any(row.dtype != np.int64 or (row < 0).any() for row in rows):
                raise UserError(f"{self._column(name)} must hold texts, or lists of tokens from 0")
        x, y, at = texts.windows(rows, self.own.length, self.what)
        self.form = Form(
            codes=(max(len(self.tokens), int(max(x.max(), y.max())) + 1),), padded=True
        )
        return x, y, at

    def _only(self, name: str) -> np.ndarray:
        import pyarrow as pa

        kind = self.table[name].type
        if name in IMAGES or pa.types.is_struct(kind) or pa.types.is_binary(kind):
            return self._images(name)
        if _is_list(kind):
            found = lists(self.table[name], self.own.length, 0, self._column(name))
            if self.own.length and found.dtype == np.int64 and found.min() >= 0:
                self.form = Form(codes=(int(found.max()) + 1,), padded=True)
            return found
        if self.own.tokens:
            found, count = self._text(name)
            self.form = Form(codes=(count,), padded=True)
            return found
        cells, count = self._plain(name)
        self.form = Form(codes=(count,)) if count else PLAIN
        cells = cells.astype(np.float32) if self.own.standardize else cells
        return cells[:, None]

    def _apart(self, name: str) -> np.ndarray:
        """One input of several: a text or list [M, T], else one value per sample."""
        kind = self.table[name].type
        if _is_list(kind):
            return lists(self.table[name], self.own.length, 0, self._column(name))
        if name in IMAGES:
            return self._images(name)
        if self.own.tokens and name in self.words:
            return self._text(name)[0]
        return self._plain(name)[0]

    def _text(self, name: str) -> tuple[np.ndarray, int]:
        """Token numbers and how many there are."""
        assert self.own.tokens is not None
        rows, known = self._tokens(name, self.own.tokens)
        return texts.filled(rows, self.own.length, 0, self.what), len(known)

    def _tokens(self, name: str, by: texts.By) -> tuple[list[texts.Tokens], tuple[str, ...]]:
        written, most = self._cells(name).tolist(), self.own.vocabulary
        rows, self.known[name] = texts.tokens_of(written, by, most, self.known.get(name, ()))
        return rows, self.known[name]

    def _plain(self, name: str) -> tuple[np.ndarray, int]:
        """Whole numbers and codes of categories as int64, quantities as float32; and how many
        values a category has, 0 for others."""
        cells = self._cells(name)
        category = name in self.categories or name in self.known
        if cells.dtype.kind == "O" and not category:
            refuse_quantities(cells, self._column(name))
        if category or cells.dtype.kind in "Ob":
            found, names = codes(cells, self._column(name), self.known.get(name, ()))
            self.known[name] = names
            return found, len(names)
        if cells.dtype.kind in "iu":
            return as_int64(cells, self._column(name)), 0
        return numbers(cells, self._column(name)), 0

    def _images(self, name: str) -> np.ndarray:
        folder = Path(self.own.name) if Path(self.own.name).is_dir() else Path(self.own.name).parent
        return as_array(
            decode.encoded(self.table[name], folder, self.what), self.own.size, self.what
        )

    def _cells(self, name: str) -> np.ndarray:
        return cells_of(self.table, name, self.what)

    def _column(self, name: str) -> str:
        return f"{self.what}: column {shortened(name, 40)}"


def is_words(kind: Any) -> bool:
    """Whether this is Arrow's type of words."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def cells_of(table: "pa.Table", name: str, what: str) -> np.ndarray:
    """A column of plain values."""
    return decode.values(table[name], f"{what}: column {shortened(name, 40)}")


def lists(column: "pa.ChunkedArray", length: int | None, fill: int, what: str) -> np.ndarray:
    """A list in every cell: tokens, a signal, or a class for every step. All have one length, or
    are brought to `length`."""
    rows = _rows(column, what)
    if length is None and len({len(row) for row in rows}) != 1:
        raise UserError(
            f"{what} holds lists of different lengths; set data.length to cut and fill them up"
        )
    if length is None and not len(rows[0]):
        raise UserError(f"{what} holds empty lists")
    words = rows[0].dtype.kind in "US"
    found: np.ndarray = texts.filled(rows, length, "" if words else fill, what)  # type: ignore[arg-type]
    return found


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    sized = pa.types.is_fixed_size_list(kind)
    return bool(sized or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _rows(column: "pa.ChunkedArray", what: str) -> list[np.ndarray]:
    """The lists as arrays of one type: whole numbers, quantities or words."""
    import pyarrow as pa

    if not _is_list(column.type):
        raise UserError(f"{what} must hold lists, got {column.type}")
    values: Any = column.combine_chunks()
    if values.null_count:
        raise UserError(f"{what} has empty cells; fill them or drop those rows")
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks)
    ends = np.cumsum([len(one) for one in values])
    inner = values.flatten()
    if inner.null_count or pa.types.is_nested(inner.type):
        raise UserError(f"{what} must hold lists of numbers or words, without empty ones")
    flat = inner.to_numpy(zero_copy_only=False)
    if flat.dtype.kind == "O":
        if any(not isinstance(one, str) for one in flat):
            raise UserError(f"{what} must hold lists of numbers or words")
        flat = flat.astype(str)
    elif flat.dtype.kind in "iub":
        flat = as_int64(flat, what)
    else:
        flat = numbers(flat, what)
    return np.split(flat, ends[:-1])
