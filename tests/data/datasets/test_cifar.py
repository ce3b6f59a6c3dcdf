"""CIFAR-10, CIFAR-100 and CINIC-10 from small files in their official layouts."""

import numpy as np

from idiolect.data import datasets
from tests.data.dataset_files import (
    colour,
    draw,
    encode,
    write_parquet,
)


def test_cifar10_binary(no_data):
    folder = no_data / "cifar10/cifar-10-batches-bin"
    folder.mkdir(parents=True)
    rows = draw.integers(0, 256, (6, 3073), dtype=np.uint8)
    rows[:, 0] = range(6)
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(rows[i].tobytes())
    (folder / "test_batch.bin").write_bytes(rows[5].tobytes())
    pool = datasets.load({"name": "cifar10", "rows": [5, 1]})
    assert pool.y.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(pool.x[0].ravel(), rows[0, 1:])


def test_cifar100_uses_fine_labels(no_data):
    for part in ("train", "test"):
        columns = {"coarse_label": [1, 2], "fine_label": [99, 7]}
        write_parquet(no_data / f"cifar100/{part}.parquet", colour(2), "img", **columns)
    pool = datasets.load({"name": "cifar100", "rows": [2, 2], "normalize": "feddwa"})
    assert pool.y.tolist() == [99, 7, 99, 7] and pool.std == (0.2023, 0.1994, 0.2010)


def test_cinic10_class_folders(no_data):
    names = ["airplane", "automobile", "bird"]
    pixels = colour(9)
    for p, part in enumerate(("train", "valid", "test")):
        for c, name in enumerate(names):
            folder = no_data / "CINIC-10" / part / name
            folder.mkdir(parents=True)
            (folder / "cifar10-1.png").write_bytes(encode(pixels[3 * p + c]))
    pool = datasets.load({"name": "cinic10", "rows": [3, 3]})
    assert pool.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert np.array_equal(pool.x[3], pixels[6].transpose(2, 0, 1))
    both = datasets.load({"name": "cinic10", "rows": [6, 3], "with_valid": True})
    assert both.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_cinic10_parquet_with_validation(no_data):
    for part in ("train", "validation", "test"):
        write_parquet(no_data / f"cinic10/data/{part}-00000-of-00001.parquet", colour(1), label=[1])
    assert len(datasets.load({"name": "cinic10", "rows": [1, 1]})) == 2
    assert len(datasets.load({"name": "cinic10", "rows": [2, 1], "with_valid": True})) == 3
