"""Tiny-ImageNet from small files in its official layouts."""

import numpy as np

from idiolect.data import datasets
from tests.data.dataset_files import colour, encode, grey, write_parquet


def test_tiny_imagenet_folders(no_data):
    base = no_data / "tiny-imagenet-200"
    wnids = ["n02", "n01"]
    for wnid in wnids:
        images = base / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(2):
            (images / f"{wnid}_{i}.JPEG").write_bytes(encode(colour(1, 64)[0], "JPEG"))
    (base / "wnids.txt").write_text("\n".join(wnids))
    (base / "val/images").mkdir(parents=True)
    (base / "val/images/val_0.JPEG").write_bytes(encode(grey(1, 64)[0], "JPEG"))
    (base / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t63\t63\n")
    pool = datasets.load({"name": "tiny_imagenet", "rows": [4, 1]})
    assert pool.x.shape == (5, 3, 64, 64)  # the grey one too
    assert pool.y.tolist() == [0, 0, 1, 1, 1]  # classes in the order of their wnid


def test_tiny_imagenet_parquet_uses_valid_as_test(no_data):
    for part in ("train", "valid"):
        path = no_data / f"tiny_imagenet/data/{part}-00000-of-00001-abc.parquet"
        write_parquet(path, colour(1, 64), label=[199])
    assert datasets.load({"name": "tiny_imagenet", "rows": [1, 1]}).part.tolist() == [0, 1]


def test_tiny_imagenet_at_32_is_the_mean_of_four_pixels(no_data):
    pixels = colour(1, 64)
    for part in ("train", "valid"):
        path = no_data / f"tiny_imagenet/data/{part}-00000-of-00001.parquet"
        write_parquet(path, pixels, label=[199])
    small = datasets.dataset({"name": "tiny_imagenet", "rows": [1, 1], "side": 32})
    assert small.shape == (3, 32, 32)
    x = small.load().x
    assert x.shape == (2, 3, 32, 32) and x.dtype == np.uint8
    corner = pixels[0, :2, :2].reshape(4, 3).mean(0)
    assert np.abs(x[0, :, 0, 0] - corner).max() <= 0.5
    assert datasets.load({"name": "tiny_imagenet", "rows": [1, 1]}).x.shape == (2, 3, 64, 64)
