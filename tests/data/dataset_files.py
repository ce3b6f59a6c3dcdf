"""Writes small files in the official layouts of the datasets."""

import gzip
import io
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

draw = np.random.default_rng(0)


def encode(pixels, kind="PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def write_parquet(path, pixels, image="image", **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = [{"bytes": encode(p), "path": None} for p in pixels]
    pq.write_table(pa.table({image: data, **columns}), path)


def write_idx(path, array, packed=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    raw += array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if packed else raw)


def write_omniglot(path, n=4):
    np.savez(
        path,
        images28=grey(n),
        class_id=np.arange(n, dtype=np.uint16),
        alphabet_id=np.arange(n, dtype=np.uint8) // 2,
        alphabet_names=np.array(["Greek", "Latin"]),
        drawer_id=np.arange(1, n + 1, dtype=np.uint8),
    )


def grey(n, side=28):
    return draw.integers(0, 256, (n, side, side), dtype=np.uint8)


def colour(n, side=32):
    return draw.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
