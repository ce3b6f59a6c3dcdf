"""Tiny-ImageNet: photographs, 64x64 colour."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from idiolect.core.fields import hyper
from idiolect.data import decode, layouts
from idiolect.data.cache import Columns
from idiolect.data.datasets.base import HALF, Constants, Dataset
from idiolect.data.layouts import Found, Layout
from idiolect.data.limits import inside


@dataclass(frozen=True)
class TinyImagenet(Dataset):
    """Tiny-ImageNet: photographs, 64x64 colour; its validation part is the test part."""

    side: Literal[64, 32] = hyper(64, "pixels: as published, or halved (FedDWA's 32x32)")

    name = "tiny_imagenet"
    shape = (3, 64, 64)
    classes = 200
    official = (100_000, 10_000)
    other_folders = ("tiny-imagenet-200", "tiny-imagenet")
    hub_repository = "zh-plus/tiny-imagenet"
    files_wanted = "the unpacked tiny-imagenet-200.zip or its parquet files"
    constants: ClassVar[Constants] = {"default": HALF, "feddwa": HALF}

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shape", (3, self.side, self.side))

    def extended(self, columns: Columns) -> Columns:
        if self.side == 64:
            return columns
        return {**columns, "x": np.concatenate([_halved(x) for x in _pieces(columns["x"])])}

    def layouts(self) -> tuple[Layout, ...]:
        test = ("valid", "validation", "val")
        return layouts.parquet(TinyImagenet.shape, test=test), image_folders


def _pieces(x: np.ndarray) -> list[np.ndarray]:
    return np.array_split(x, max(1, len(x) // 4096))


def _halved(x: np.ndarray) -> np.ndarray:
    """Every pixel the mean of four."""
    n, c, h, w = x.shape
    mean = x.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5), dtype=np.float32)
    return np.rint(mean).astype(np.uint8)


def image_folders(folder: Path) -> Found | None:
    """tiny-imagenet-200: train/<wnid>/images, and val with its annotation file as test part."""
    for base in (folder, folder / "tiny-imagenet-200"):
        notes = base / "val" / "val_annotations.txt"
        if (base / "wnids.txt").is_file() and notes.is_file():
            stamps = (base / "wnids.txt", notes, *layouts.subfolders(base / "train"))
            return Found(base, stamps, partial(_read_image_folders, base))
    return None


def _read_image_folders(base: Path) -> Columns:
    number = {w: i for i, w in enumerate(sorted((base / "wnids.txt").read_text().split()))}
    train = [f for w in number for f in layouts.files_in(base / "train" / w / "images")]
    lines = (base / "val" / "val_annotations.txt").read_text().splitlines()
    notes = [line.split("\t")[:2] for line in lines if line.strip()]
    test = [inside(base / "val" / "images", name, base / "val") for name, _ in notes]
    y = np.array([number[f.parent.parent.name] for f in train])
    y_test = np.array([number.get(wnid, -1) for _, wnid in notes])
    shape = TinyImagenet.shape
    return layouts.joined(
        [
            {"x": decode.images(train, shape, str(base / "train")), "y": y},
            {"x": decode.images(test, shape, str(base / "val")), "y": y_test},
        ]
    )
