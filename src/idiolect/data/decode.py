"""Decoding of files into arrays: PNG and JPEG images, parquet, IDX, CIFAR's binary batches."""

import gzip
import io
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idiolect.errors import UserError

if TYPE_CHECKING:  # what decodes is imported where it is needed: most runs read the decoded copy
    from PIL import Image

IMAGES_PER_TASK = 1024  # so many that threads do not wait for each other


def images(
    encoded: Sequence[Any],
    shape: tuple[int, ...],
    what: str,
    prepare: "Callable[[Image.Image], Image.Image] | None" = None,
) -> np.ndarray:
    """PNG/JPEG bytes or paths -> uint8 [M, C, H, W], on all cores."""
    from PIL import Image, UnidentifiedImageError

    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    out = np.empty((len(encoded), height, width, channels), dtype=np.uint8)

    def block(start: int) -> None:
        for i in range(start, min(start + IMAGES_PER_TASK, len(encoded))):
            item = encoded[i]
            try:
                with Image.open(io.BytesIO(item) if isinstance(item, bytes) else item) as image:
                    ready = prepare(image) if prepare else image
                    pixels = np.asarray(ready if ready.mode == mode else ready.convert(mode))
            except (OSError, SyntaxError, ValueError, TypeError, UnidentifiedImageError):
                raise UserError(
                    f"{what}: image {i} cannot be decoded; get the file again"
                ) from None
            if pixels.shape[:2] != (height, width):
                size = f"{pixels.shape[0]}x{pixels.shape[1]}"
                raise UserError(f"{what}: image {i} is {size}, expected {height}x{width}")
            out[i] = pixels.reshape(height, width, channels)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        list(threads.map(block, range(0, len(encoded), IMAGES_PER_TASK)))
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


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
        schema = pq.read_schema(files[0])
        names = {want: _pick(schema.names, known, what) for want, known in columns.items()}
        table = pa.concat_tables([pq.read_table(f, columns=list(names.values())) for f in files])
        encoded = table[names["image"]].combine_chunks()
        if pa.types.is_struct(encoded.type):
            encoded = encoded.field("bytes")
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UserError(f"{what} cannot be read ({_short(error)}); get it again") from None
    found = {want: table[name].to_numpy() for want, name in names.items() if want != "image"}
    return {"x": images(encoded.to_pylist(), shape, what), **found}


def idx(path: Path) -> np.ndarray:
    """IDX of unsigned bytes, plain or gzip."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, kind, ndim = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{ndim}I", raw, 4)
        body = np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim)
        if zero != 0 or kind != 8 or body.size != np.prod(shape, dtype=np.int64):
            raise ValueError("not an IDX file of bytes, or cut short")
        return body.reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({_short(error)}); get it again") from None


def cifar_binary(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """The authors' binary version: label byte(s), then 3,072 pixels; the last label is the fine."""
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


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
