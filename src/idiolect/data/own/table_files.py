"""A table of the user's own: CSV, TSV, or Parquet with plain columns or with encoded images."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from idiolect.core.task import IGNORED
from idiolect.core.text import reason, shortened
from idiolect.data import decode
from idiolect.data.cache import Columns
from idiolect.data.limits import check_size
from idiolect.data.own.columns import Known, Read, numbers, pick
from idiolect.data.own.table_inputs import TableInputs, cells_of, is_words, lists
from idiolect.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from idiolect.data.own.own_files import OwnFiles

NOTHING_KNOWN: Known = {}
LABELS = ("label", "y", "target", "class")


def files_of(path: Path) -> dict[str, list[Path]]:
    """The files of a table by part: one file, or those of a folder as on the Hugging Face hub
    (train.parquet, test-00000-of-00001.parquet, also in a folder `data`)."""
    if path.is_file():
        return {"": [path]}
    for folder in (path, path / "data"):
        found: dict[str, list[Path]] = {}
        # What is no file is not passed over: without it, a test part alone would be one table.
        lying = sorted(folder.iterdir()) if folder.is_dir() else []
        tables = [file for file in lying if file.suffix.lower() == ".parquet"]
        for file in tables or [file for file in lying if file.suffix.lower() in (".csv", ".tsv")]:
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


def read(files: dict[str, list[Path]], own: "OwnFiles", like: Read | None = None) -> Read:
    """x, y and, if there are, client and part. With `like`, what was read before: the same inputs
    and codes; labels and clients may be missing."""
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
    if not len(table):
        raise UserError(f"{what} has no samples")
    known = table.column_names
    unlabelled = own.task == "next-token" and not own.labels  # its label is the input
    own = own if like is None else _present(own, known)
    labels = [pick(name, LABELS, known, what) for name in own.labels or (None,)]
    if unlabelled or (like is not None and labels[0] is None):
        labels = []
    elif labels[0] is None:
        raise UserError(
            f"{what} has no column {' or '.join(LABELS)}; name it with --set data.label=COLUMN; its"
            f" columns: {shortened(', '.join(known), 200)}"
        )
    client, part = (
        pick(own.client, ("client",), known, what),
        pick(own.part, ("part",), known, what),
    )
    taken = {*labels, client, part}
    inputs = like.inputs if like else own.columns
    inputs = inputs or tuple(name for name in known if name not in taken)
    _refuse_holes(table, [name for name in known if name in {*taken, *inputs}], own, what)
    found: Columns = {"y": _label(table, labels, own, what)} if labels else {}
    if client is not None:
        found["client"] = cells_of(table, client, what)
    if part is not None and not set(files) & {"train", "test"}:
        found["part"] = cells_of(table, part, what)
    elif set(files) & {"train", "test"}:
        found["part"] = np.repeat(list(named), [len(one) for one in named.values()])
    if not inputs:
        raise UserError(f"{what} has no input columns besides {', '.join(filter(None, taken))}")
    for name in inputs:
        pick(name, (), known, what)
        if name in taken:
            raise UserError(f"{what}: column '{name}' cannot be an input too; see data.input")
    given = TableInputs(table, inputs, own, what, like.known if like else NOTHING_KNOWN)
    if unlabelled:
        x, found["y"], rows = given.next_tokens()
        for name in found.keys() & {"client", "part"}:
            found[name] = found[name][rows]
        return Read({"x": x, **found}, given.form, given.tokens, inputs, given.known)
    x = given.array()
    return Read({"x": x, **found}, given.form, (), inputs, given.known)


def _present(own: "OwnFiles", columns: list[str]) -> "OwnFiles":
    """The settings without the columns that this table may lack: client, label and part."""
    client, part = (name if name in columns else None for name in (own.client, own.part))
    label = own.label if {*own.labels} <= {*columns} else None
    return replace(own, client=client, part=part, label=label)


def _refuse_holes(table: "pa.Table", used: list[str], own: "OwnFiles", what: str) -> None:
    """Every column with empty cells in one message. Of words the empty one counts too, which is how
    a CSV file has them, but an empty text to be cut into tokens is a text."""
    import pyarrow.compute as pc

    holes, whole = {}, np.ones(len(table), bool)
    for name in used:
        empty = table[name].is_null()
        if is_words(table[name].type) and not (own.tokens or own.task == "next-token"):
            empty = pc.or_(empty, pc.fill_null(pc.equal(table[name], ""), True))
        rows = empty.to_numpy()
        if rows.any():
            holes[name], whole = int(rows.sum()), whole & ~rows
    if holes:
        named = ", ".join(f"{shortened(name, 40)} ({count})" for name, count in holes.items())
        raise UserError(
            f"{what}: empty cells, by column: {shortened(named, 300)}; fill them, or drop the"
            f" {int((~whole).sum())} of {len(table)} rows that have some"
        )


def _label(table: "pa.Table", labels: list[str | None], own: "OwnFiles", what: str) -> np.ndarray:
    """One column, or several side by side; a list in every cell where every step has a class."""
    if own.task == "sequence" and len(labels) == 1:
        return lists(table[labels[0]], own.length, IGNORED, f"{what}: column {labels[0]}")
    cells = [cells_of(table, str(name), what) for name in labels]
    if own.task in ("regression", "multilabel"):
        for name, one in zip(labels, cells, strict=True):
            numbers(one, f"{what}: the label, column '{name}',")
    return cells[0] if len(cells) == 1 else np.stack(cells, 1)


def _table(files: list[Path], own: "OwnFiles") -> "pa.Table":
    import pyarrow as pa

    try:
        tables = [_read(file, own) for file in files]
        for file, table in zip(files, tables, strict=True):
            if len(set(table.column_names)) != table.num_columns:
                raise UserError(f"{file} has two columns of one name; rename one")
        return pa.concat_tables(tables)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # Arrow has many kinds for a damaged file
        raise UserError(f"{files[0]} cannot be read ({reason(error)}); mend it") from None


def _read(file: Path, own: "OwnFiles") -> "pa.Table":
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    if not file.is_file():  # opening a pipe would wait for its writer
        raise UserError(f"{file} is no file; put a table there")
    check_size(file.stat().st_size, file)
    if file.suffix.lower() == ".parquet":
        opened = pq.ParquetFile(file)
        names = opened.schema_arrow.names
        return pa.Table.from_batches(
            decode.batches(opened, names, str(file)), schema=opened.schema_arrow
        )
    words = {name: pa.string() for name in (own.client or "client", own.part or "part")}
    # A file of Arrow's own: a thread of Arrow may keep a Python object until after the interpreter
    # has ended, and the process would then be killed.
    with pa.OSFile(os.fsencode(file)) as source:
        table = csv.read_csv(
            source,
            parse_options=csv.ParseOptions(
                delimiter="\t" if file.suffix.lower() == ".tsv" else ",",
                newlines_in_values=True,
            ),
            convert_options=csv.ConvertOptions(column_types=words),
        )
    check_size(table.nbytes, file)
    return table
