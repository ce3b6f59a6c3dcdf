"""Decoding of files into arrays: PNG and JPEG images, parquet, IDX, CIFAR's binary batches."""

import gzip
import io
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idiolect.core.text import reason
from idiolect.data.limits import LARGEST_IMAGE, check_size, inside, largest
from idiolect.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")  # Pillow runs programs for some others
if TYPE_CHECKING:  # what decodes is imported where it is needed: most runs read the decoded copy
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

IMAGES_PER_TASK = 1024  # so many that threads do not wait for each other


def images(
    encoded: Sequence[Any],
    shape: tuple[int, ...],
    what: str,
    prepare: "Callable[[Image.Image], Image.Image] | None" = None,
) -> np.ndarray:
    """PNG/JPEG bytes or paths -> uint8 [M, C, H, W], on all cores."""
    from PIL import Image

    channels, height, width = shape
    check_size(len(encoded) * channels * height * width, what)
    mode = "L" if channels == 1 else "RGB"
    out = np.empty((len(encoded), height, width, channels), dtype=np.uint8)

    def block(start: int) -> None:
        for i in range(start, min(start + IMAGES_PER_TASK, len(encoded))):
            item = encoded[i]
            try:
                with Image.open(opened(item), formats=FORMATS) as image:
                    check_pixels(image, f"{what}: image {i}")
                    ready = prepare(image) if prepare else image
                    _check_extent(ready, (width, height), f"{what}: image {i}")
                    pixels = np.asarray(ready if ready.mode == mode else ready.convert(mode))
            except (UserError, MemoryError):
                raise
            except Exception:  # every format has errors of its own
                raise UserError(
                    f"{what}: image {i} cannot be decoded; get the file again"
                ) from None
            out[i] = pixels.reshape(height, width, channels)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        list(threads.map(block, range(0, len(encoded), IMAGES_PER_TASK)))
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


def opened(item: Any) -> Any:
    """What Pillow opens: bytes as a file, a path as it is."""
    return io.BytesIO(item) if isinstance(item, bytes) else item


def check_pixels(image: "Image.Image", what: str) -> None:
    """The size an image claims, before it is decoded."""
    if image.size[0] * image.size[1] > LARGEST_IMAGE:
        raise UserError(f"{what} has more than {LARGEST_IMAGE} pixels; make it smaller")


def _check_extent(image: "Image.Image", wanted: tuple[int, int], what: str) -> None:
    if image.size != wanted:
        size = f"{image.size[1]}x{image.size[0]}"
        raise UserError(f"{what} is {size}, expected {wanted[1]}x{wanted[0]}")


def parquet(
    files: Sequence[Path], shape: tuple[int, ...], **columns: Sequence[str]
) -> dict[str, np.ndarray]:
    """Parquet files as on the Hugging Face hub: a column of encoded images, and plain columns.

    `columns` gives the possible names of each wanted column; "image" is the encoded one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    what = _named(files)
    try:
        tables = [pq.ParquetFile(file) for file in files]
        known = tables[0].schema_arrow.names
        names = {want: _pick(known, choice, what) for want, choice in columns.items()}
        rows = sum(table.metadata.num_rows for table in tables)
        check_size(rows * math.prod(shape), what)
        parts = [part for table in tables for part in batches(table, list(names.values()), what)]
        table = pa.Table.from_batches(parts) if parts else tables[0].read(list(names.values()))
        listed = encoded(table[names["image"]], files[0].parent, what)
        found = {
            want: values(table[name], f"{what}: column {name}")
            for want, name in names.items()
            if want != "image"
        }
    except (UserError, MemoryError):
        raise
    except Exception as error:  # Arrow has many kinds for a damaged file
        raise UserError(f"{what} cannot be read ({reason(error)}); get it again") from None
    return {"x": images(listed, shape, what), **found}


def batches(table: "pq.ParquetFile", names: list[str], what: str) -> "Iterator[pa.RecordBatch]":
    """A few rows at a time: each row may repeat one large value, which the file holds once."""
    groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
    most = max((group.total_byte_size for group in groups), default=1)
    check_size(most, what)
    total = 0
    for batch in table.iter_batches(max(1, min(1024, largest() // max(most, 1))), columns=names):
        total += batch.nbytes
        check_size(total, what)
        yield batch


def encoded(column: "pa.ChunkedArray", folder: Path, what: str) -> list[Any]:
    """Encoded images, or the paths of image files in the dataset's own folder."""
    import pyarrow as pa

    values = column.combine_chunks()
    if pa.types.is_struct(values.type):
        values = values.field("bytes")
    items = values.to_pylist()
    return [inside(folder, item, what) if isinstance(item, str) else item for item in items]


def values(column: "pa.ChunkedArray", what: str) -> np.ndarray:
    import pyarrow as pa

    if column.null_count:
        raise UserError(f"{what} has empty cells; fill them or drop those rows")
    if pa.types.is_nested(column.type):
        raise UserError(f"{what} must hold numbers or words, got {column.type}")
    return column.to_numpy()


def idx(path: Path, rows: int | None = None) -> np.ndarray:
    """IDX of unsigned bytes, plain or gzip; `rows`: how many it must have."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            zero, kind, ndim = struct.unpack(">HBB", file.read(4))
            if zero != 0 or kind != 8 or not 1 <= ndim <= 4:
                raise ValueError("not an IDX file of bytes")
            shape = struct.unpack(f">{ndim}I", file.read(4 * ndim))
            size = math.prod(shape)
            check_size(size, path)
            if rows is not None and shape[0] != rows:
                raise ValueError(f"it has {shape[0]} labels for {rows} images")
            body = np.frombuffer(file.read(size + 1), np.uint8)
        if body.size != size:
            raise ValueError("it is cut short, or longer than it says")
        return body.reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({reason(error)}); get it again") from None


def cifar_binary(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """The authors' binary version: label byte(s), then 3,072 pixels; the last label is the fine."""
    check_size(path.stat().st_size, path)
    raw = np.fromfile(path, np.uint8)
    if raw.size % (label_bytes + 3072):
        raise UserError(f"{path} is cut short; get it again")
    rows = raw.reshape(-1, label_bytes + 3072)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def _pick(names: Sequence[str], known: Sequence[str], what: str) -> str:
    for name in known:
        if name in names:
            return name
    raise UserError(f"{what} has no column {' or '.join(known)}; its columns: {', '.join(names)}")


def _named(files: Sequence[Path]) -> str:
    return str(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
