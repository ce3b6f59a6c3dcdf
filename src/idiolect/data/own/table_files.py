"""A table of the user's own: CSV, TSV, or Parquet with plain columns or with encoded images."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idiolect.core.text import reason, shortened
from idiolect.data import decode
from idiolect.data.cache import Columns
from idiolect.data.limits import check_size
from idiolect.data.own.columns import codes, numbers, pick
from idiolect.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from idiolect.data.own.own_files import OwnFiles

LABELS = ("label", "y", "target", "class")
IMAGES = ("image", "img")


def files_of(path: Path) -> dict[str, list[Path]]:
    """The files of a table by part: one file, or those of a folder as on the Hugging Face hub
    (train.parquet, test-00000-of-00001.parquet, also in a folder `data`)."""
    if path.is_file():
        return {"": [path]}
    for folder in (path, path / "data"):
        found: dict[str, list[Path]] = {}
        for file in sorted(folder.glob("*.parquet")) or sorted(folder.glob("*.[ct]sv")):
            found.setdefault(file.name.split(".")[0].split("-")[0], []).append(file)
        if not found:
            continue
        if set(found) <= {"train", "test"} and "train" in found:
            return found
        if len(found) == 1:
            return {"": next(iter(found.values()))}
        listed = shortened(", ".join(sorted(found)), 100)
        raise UserError(f"data '{path}' must hold train and test, or one table; got {listed}")
    raise UserError(f"data '{path}' holds neither images in folders nor parquet or csv files")


def read(files: dict[str, list[Path]], own: "OwnFiles") -> Columns:
    """x, y and, if there are, client and part."""
    import pyarrow as pa

    named = {part: _table(group, own) for part, group in files.items()}
    what = f"data '{own.name}'"
    first = next(iter(named.values()))
    for of, table in named.items():
        if table.schema.names != first.schema.names:
            raise UserError(f"{what}: the columns of {of} differ from the others'")
    try:
        table = pa.concat_tables(named.values(), promote_options="permissive")
    except pa.ArrowException as error:
        raise UserError(f"{what}: its files do not fit together ({reason(error)})") from None
    known = table.column_names
    if len(set(known)) != len(known):
        raise UserError(f"{what} has two columns of one name; rename one")
    labels = [pick(name, LABELS, known, what) for name in own.labels or (None,)]
    if labels[0] is None:
        raise UserError(
            f"{what} has no column {' or '.join(LABELS)}; name it with --set data.label=COLUMN; its"
            f" columns: {shortened(', '.join(known), 200)}"
        )
    client, part = (
        pick(own.client, ("client",), known, what),
        pick(own.part, ("part",), known, what),
    )
    cells = [_cells(table, str(name), what) for name in labels]
    found: Columns = {"y": cells[0] if len(cells) == 1 else np.stack(cells, 1)}
    if client is not None:
        found["client"] = _cells(table, client, what)
    if part is not None and not set(files) & {"train", "test"}:
        found["part"] = _cells(table, part, what)
    elif set(files) & {"train", "test"}:
        found["part"] = np.repeat(list(named), [len(one) for one in named.values()])
    taken = {*labels, client, part}
    inputs = own.columns or tuple(name for name in known if name not in taken)
    if not inputs:
        raise UserError(f"{what} has no input columns besides {', '.join(filter(None, taken))}")
    for name in inputs:
        pick(name, (), known, what)
        if name in taken:
            raise UserError(f"{what}: column '{name}' cannot be an input too; see data.input")
    found["x"] = _inputs(table, inputs, own, what)
    return found


def _table(files: list[Path], own: "OwnFiles") -> "pa.Table":
    import pyarrow as pa

    try:
        return pa.concat_tables([_read(file, own) for file in files])
    except (UserError, MemoryError):
        raise
    except Exception as error:  # Arrow has many kinds for a damaged file
        raise UserError(f"{files[0]} cannot be read ({reason(error)}); mend it") from None


def _read(file: Path, own: "OwnFiles") -> "pa.Table":
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    check_size(file.stat().st_size, file)
    if file.suffix.lower() == ".parquet":
        opened = pq.ParquetFile(file)
        names = opened.schema_arrow.names
        return pa.Table.from_batches(
            decode.batches(opened, names, str(file)), schema=opened.schema_arrow
        )
    text = file.read_bytes()
    words = {name: pa.string() for name in (own.client or "client", own.part or "part")}
    table = csv.read_csv(
        io.BytesIO(text),
        parse_options=csv.ParseOptions(delimiter="\t" if file.suffix.lower() == ".tsv" else ","),
        convert_options=csv.ConvertOptions(column_types=words),
    )
    check_size(table.nbytes, file)
    return table


def _cells(table: "pa.Table", name: str, what: str) -> np.ndarray:
    return decode.values(table[name], f"{what}: column {shortened(name, 40)}")


def _inputs(table: "pa.Table", names: tuple[str, ...], own: "OwnFiles", what: str) -> np.ndarray:
    """One column of images or of lists as it is; plain columns side by side."""
    import pyarrow as pa

    if len(names) == 1:
        kind = table[names[0]].type
        if names[0] in IMAGES or pa.types.is_struct(kind) or pa.types.is_binary(kind):
            from idiolect.data.own.image_folders import as_array

            folder = Path(own.name) if Path(own.name).is_dir() else Path(own.name).parent
            return as_array(decode.encoded(table[names[0]], folder, what), own.size, what)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return _lists(table[names[0]], f"{what}: column {shortened(names[0], 40)}")
    check_size(4 * len(table) * len(names), what)
    found = [_plain(_cells(table, name, what), f"{what}: column {name}") for name in names]
    whole = all(one.dtype == np.int64 for one in found) and not own.standardize
    return np.stack([one if whole else one.astype(np.float32) for one in found], axis=1)


def _plain(cells: np.ndarray, what: str) -> np.ndarray:
    """Whole numbers and codes of categories as int64, quantities as float32."""
    if cells.dtype.kind in "OUSb":
        return codes(cells, what)[0]
    if cells.dtype.kind in "iu":
        return cells.astype(np.int64)
    return numbers(cells, what)


def _lists(column: "pa.ChunkedArray", what: str) -> np.ndarray:
    """A list in every cell, all of one length: tokens or a signal."""
    values: Any = column.combine_chunks()
    lengths = {len(one) if one is not None else -1 for one in values.to_pylist()}
    if len(lengths) != 1 or lengths & {-1, 0}:
        raise UserError(f"{what} holds lists of different lengths; pad them to one length")
    inner = values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), lengths.pop())
    return inner.astype(np.int64) if inner.dtype.kind in "iu" else numbers(inner, what)
