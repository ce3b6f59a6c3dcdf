"""The sound things that cases spoil: a run, a dataset in every layout, a client's file."""

import gzip
import io
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from safetensors.torch import save_file

from idiolect.cli.app import app
from idiolect.models import build as build_model
from tests.fuzz import own_data

TINY = ("--clients", "3", "--rounds", "2", "--model", "linear", "--set", "split.alpha=0.5")
ROWS = (6, 4)
DATASETS = ("mnist", "fashion_mnist", "cifar10", "omniglot", "cinic10", "femnist")


@cache
def sound() -> Path:
    """A folder with everything sound, made once: `run`, `unfinished`, `data`, `client`, `own`,
    `init`."""
    from typer.testing import CliRunner

    base = Path(tempfile.mkdtemp(prefix="idiolect-fuzz-"))
    words = ["run", "feddwa", *TINY, "--checkpoint-every", "1", "--out", str(base / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    shutil.copytree(base / "run", base / "unfinished")
    (base / "unfinished/summary.json").unlink()
    _write_data(base / "data")
    _write_client(base / "client")
    own_data.write(base / "own")
    model = build_model({"name": "linear"}, (1, 8, 8), 10)
    (base / "init").mkdir()
    save_file(model.state_dict(), base / "init/start.safetensors")
    return base


def forget() -> None:
    if sound.cache_info().currsize:
        shutil.rmtree(sound(), ignore_errors=True)
        sound.cache_clear()


def grey(n: int, side: int = 28) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (n, side, side)).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def parquet(rows: int, side: int = 28, **more: object) -> bytes:
    out = io.BytesIO()
    images = [{"bytes": png(one), "path": None} for one in grey(rows, side)]
    labels = np.arange(rows) % 10
    pq.write_table(pa.table({"image": images, "label": labels, **more}), out)
    return out.getvalue()


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def npz(**arrays: object) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def _write_data(folder: Path) -> None:
    train, test = ROWS
    files: dict[str, bytes] = {
        "mnist/train.parquet": parquet(train),
        "mnist/test.parquet": parquet(test),
        "femnist/train.parquet": parquet(
            train, character=np.arange(train), writer_id=[f"w{i % 2}" for i in range(train)]
        ),
        "omniglot.npz": npz(
            images28=grey(train),
            class_id=np.arange(train),
            alphabet_id=np.arange(train) % 2,
            alphabet_names=np.array(["a", "b"]),
            drawer_id=np.arange(train),
        ),
    }
    for prefix, rows in (("train", train), ("t10k", test)):
        images, labels = idx(grey(rows)), idx(np.arange(rows))
        files[f"fashion_mnist/{prefix}-images-idx3-ubyte.gz"] = gzip.compress(images)
        files[f"fashion_mnist/{prefix}-labels-idx1-ubyte"] = labels
    for part, rows in (("train", train), ("test", test)):
        for i, pixels in enumerate(grey(rows, 32)):
            coloured = np.repeat(pixels[..., None], 3, 2)
            files[f"cinic10/{part}/{'cat' if i % 2 else 'dog'}/{i}.png"] = png(coloured)
    batch = np.concatenate([np.arange(train)[:, None] % 10, np.zeros((train, 3072))], 1)
    for i in range(1, 6):
        files[f"cifar10/data_batch_{i}.bin"] = batch[:1].astype(np.uint8).tobytes()
    files["cifar10/data_batch_1.bin"] = batch[:2].astype(np.uint8).tobytes()
    files["cifar10/test_batch.bin"] = batch[:test].astype(np.uint8).tobytes()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _write_client(folder: Path) -> None:
    folder.mkdir()
    x, y = np.random.default_rng(0).normal(size=(6, 4)), np.arange(6) % 3
    arrays = {"x_train": x, "y_train": y, "x_test": x[:3], "y_test": y[:3]}
    (folder / "site.npz").write_bytes(npz(**arrays))
    (folder / "site").mkdir()
    for name, array in arrays.items():
        np.save(folder / "site" / f"{name}.npy", array)
