"""Omniglot: characters of 50 alphabets, drawn by 20 people.

Pages of 105x105 become 28x28 as in PFLEGO's program: bilinear without smoothing, so that a pixel
knows four of the fourteen that it stands for.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from idiolect.core.fields import hyper
from idiolect.data import decode, layouts
from idiolect.data.arrays import read_npz
from idiolect.data.cache import Columns
from idiolect.data.datasets.base import Constants, Dataset
from idiolect.data.labels import whole
from idiolect.data.layouts import Found, Layout
from idiolect.data.pool import TRAIN
from idiolect.errors import UserError

SIDE = 105  # of a page; images105_packed has the bits of a page in whole bytes


@dataclass(frozen=True)
class Omniglot(Dataset):
    """Omniglot: 1,623 characters, 20 drawings each, 28x28 grey; a natural client is an alphabet."""

    rotations: bool = hyper(True, "add each drawing turned by 90, 180 and 270 degrees (PFLEGO)")

    name = "omniglot"
    classes = 1623
    official = (32_460, 0)
    files_wanted = "omniglot.npz, or images_background and images_evaluation unpacked,"
    constants: ClassVar[Constants] = {"default": None}

    @property
    def cache_name(self) -> str:
        return "omniglot-2x2"  # copies called omniglot hold drawings that were smoothed

    def layouts(self) -> tuple[Layout, ...]:
        return npz_file, image_folders

    def extended(self, columns: Columns) -> Columns:
        turns = 4 if self.rotations else 1
        x = columns["x"]
        out = {
            key: np.tile(value, turns)
            for key, value in columns.items()
            if key in ("y", "part", "group")
        }
        out["drawing"] = np.tile(np.arange(len(x)), turns)
        if turns > 1:
            x = np.concatenate([np.rot90(x, k, axes=(2, 3)) for k in range(turns)])
        return {**columns, **out, "x": x}


def npz_file(folder: Path) -> Found | None:
    """omniglot.npz with pages as bits or 28x28 drawings (ink bright), class, alphabet."""
    for file in (folder / "omniglot.npz", folder.parent / "omniglot.npz"):
        if file.is_file():
            return Found(file, (file,), partial(_read_npz_file, file))
    return None


def _read_npz_file(file: Path) -> Columns:
    names = ("class_id", "alphabet_id", "alphabet_names")
    data = read_npz(file, (*names, "images28", "images105_packed"))
    pages = data.get("images105_packed")
    for name in names if pages is not None else ("images28", *names):
        if name not in data:
            raise UserError(f"{file} has no array {name}; get it again")
    alphabets = whole(data["alphabet_id"], f"{file}: alphabet_id")
    if len(alphabets) and not 0 <= alphabets.min() <= alphabets.max() < len(data["alphabet_names"]):
        raise UserError(f"{file}: alphabet_id has numbers without a name; get it again")
    y = whole(data["class_id"], f"{file}: class_id")
    return {
        "x": (data["images28"] if pages is None else _unpacked(pages, file))[:, None],
        "y": y,
        "part": np.full(len(y), TRAIN, np.uint8),
        "group": alphabets,
        "group_names": data["alphabet_names"],
    }


def _unpacked(pages: np.ndarray, file: Path) -> np.ndarray:
    """Drawings `[M, 28, 28]` of pages whose bits are packed `[M, 1379]`, some at a time."""
    if pages.dtype != np.uint8 or pages.shape[1:] != (-(-SIDE * SIDE // 8),):
        raise UserError(f"{file}: images105_packed is not 105 x 105 bits a drawing; get it again")
    out = np.empty((len(pages), 28, 28), np.uint8)
    for at in range(0, len(pages), 1024):
        bits = np.unpackbits(pages[at : at + 1024], axis=1, count=SIDE * SIDE)
        out[at : at + 1024] = shrunk(255 * bits.reshape(-1, SIDE, SIDE))
    return out


def shrunk(pages: np.ndarray) -> np.ndarray:
    """Grey pages `[M, H, W]` as `[M, 28, 28]`, bilinear between the 2x2 pixels at each centre."""
    x = pages.astype(np.float32)
    for axis in (1, 2):
        size = x.shape[axis]
        at = ((np.arange(28) + 0.5) * size / 28 - 0.5).clip(0, size - 1)
        low = at.astype(int)
        share = (at - low).astype(np.float32).reshape((28, 1) if axis == 1 else (28,))
        high = (low + 1).clip(max=size - 1)
        x = x.take(low, axis) * (1 - share) + x.take(high, axis) * share
    return np.rint(x).astype(np.uint8)


def image_folders(folder: Path) -> Found | None:
    """The authors' images_background and images_evaluation: alphabet/character/0001_01.png."""
    for base in (folder, folder / "python", folder / "omniglot-py"):
        sets = [base / "images_background", base / "images_evaluation"]
        if all(s.is_dir() for s in sets):
            alphabets = sorted(
                (a for s in sets for a in layouts.subfolders(s)), key=lambda a: a.name
            )
            stamps = tuple(c for a in alphabets for c in layouts.subfolders(a))
            return Found(base, stamps, partial(_read_image_folders, alphabets))
    return None


def _read_image_folders(alphabets: list[Path]) -> Columns:
    characters = [(i, c) for i, a in enumerate(alphabets) for c in layouts.subfolders(a)]
    rows = [
        (i, k, f)
        for k, (i, c) in enumerate(characters)
        for f in layouts.files_in(c)
        if f.suffix == ".png"
    ]

    from PIL import Image, ImageOps

    def prepare(image: Image.Image) -> Image.Image:
        page = ImageOps.invert(image.convert("L"))  # PFLEGO: ink bright
        return Image.fromarray(shrunk(np.asarray(page)[None])[0])

    files = [f for _, _, f in rows]
    return {
        "x": decode.images(files, Omniglot.shape, str(alphabets[0].parent), prepare),
        "y": np.array([k for _, k, _ in rows]),
        "part": np.full(len(rows), TRAIN, np.uint8),
        "group": np.array([i for i, _, _ in rows]),
        "group_names": np.array([a.name for a in alphabets]),
    }
