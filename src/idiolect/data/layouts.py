"""Finding the files of a dataset in a folder: one function for each way they may lie there.

A layout looks for its files, which is quick, and returns how to decode them, which is not.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from idiolect.data import decode
from idiolect.data.cache import Columns
from idiolect.data.labels import whole
from idiolect.data.pool import TEST, TRAIN

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """A dataset that was found: where, how to decode it, and the files whose size or time changes
    when it changes (none: decoding it is so quick that no decoded copy is kept)."""

    where: Path | str
    stamps: tuple[Path, ...]
    decode: Callable[[], Columns]


Layout = Callable[[Path], Found | None]


def parquet(
    shape: Shape,
    label: Sequence[str] = ("label",),
    group: Sequence[str] = (),
    test: Sequence[str] = ("test",),
    more_train: Sequence[str] = (),
    inside: Sequence[str] = ("", "data", "plain_text"),
) -> Layout:
    """train.parquet and test.parquet, or train-00000-of-00001.parquet as on the Hugging Face hub.

    `inside` names the subfolders that may hold them; the other options name columns and parts.
    """
    wanted = {"image": ("image", "img"), "y": label} | ({"group": group} if group else {})

    def find(folder: Path) -> Found | None:
        for sub in inside:
            by_part: dict[str, list[Path]] = {}
            for file in sorted((folder / sub).glob("*.parquet")):
                by_part.setdefault(file.name.split(".")[0].split("-")[0], []).append(file)
            train = by_part.get("train", []) + [f for p in more_train for f in by_part.get(p, [])]
            tests = next((by_part[name] for name in test if name in by_part), [])
            if by_part.get("train"):
                return Found(folder / sub, (*train, *tests), partial(read, train, tests))
        return None

    def read(train: list[Path], tests: list[Path]) -> Columns:
        parts = [decode.parquet(files, shape, **wanted) for files in (train, tests) if files]
        return joined(parts)

    return find


def idx(train: str, test: str, turned: bool = False, first_label: int = 0) -> Layout:
    """IDX pairs; `turned` images are stored column by column and are set upright."""

    def file(folder: Path, prefix: str, kind: str) -> Path | None:
        for sub in ("", "raw", "gzip"):
            for name in (f"{prefix}-{kind}-ubyte", f"{prefix}-{kind}-ubyte.gz"):
                for spelled in (name, name.replace("-idx", ".idx")):
                    if (path := folder / sub / spelled).is_file():
                        return path
        return None

    def find(folder: Path) -> Found | None:
        kinds = ("images-idx3", "labels-idx1")
        files = [file(folder, prefix, kind) for prefix in (train, test) for kind in kinds]
        present = tuple(path for path in files if path is not None)
        return Found(folder, present, partial(read, present)) if len(present) == 4 else None

    def read(files: tuple[Path, ...]) -> Columns:
        parts = []
        for images, labels in (files[:2], files[2:]):
            x = decode.idx(images)
            if x.ndim != 3:
                raise ValueError(f"{images.name} holds no images")
            x = x.swapaxes(1, 2) if turned else x
            y = decode.idx(labels, rows=len(x)).astype(np.int64) - first_label
            parts.append({"x": x[:, None], "y": y})
        return joined(parts)

    return find


def cifar_binary(sub: str, train: Sequence[str], test: str, label_bytes: int) -> Layout:
    """The authors' binary archive, unpacked."""

    def find(folder: Path) -> Found | None:
        for base in (folder, folder / sub):
            files = tuple(base / name for name in (*train, test))
            if all(f.is_file() for f in files):
                return Found(base, files, partial(read, files))
        return None

    def read(files: tuple[Path, ...]) -> Columns:
        each = [decode.cifar_binary(f, label_bytes) for f in files]
        x, y = (np.concatenate([pair[i] for pair in each[:-1]]) for i in (0, 1))
        return joined([{"x": x, "y": y}, {"x": each[-1][0], "y": each[-1][1]}])

    return find


def class_folders(shape: Shape, train: Sequence[str], test: str) -> Layout:
    """part/class/image.png; classes are numbered in the order of their names (CINIC-10)."""

    def find(folder: Path) -> Found | None:
        if not all((folder / part).is_dir() for part in (*train, test)):
            return None
        parts = [[folder / part for part in train], [folder / test]]
        labels = [subfolders(p) for p in (*parts[0], *parts[1])]
        return Found(folder, tuple(f for fs in labels for f in fs), partial(read, parts))

    def read(parts: list[list[Path]]) -> Columns:
        names = sorted({f.name for part in parts for p in part for f in subfolders(p)})
        decoded = []
        for part in parts:
            paths = [f for p in part for c in subfolders(p) for f in files_in(c)]
            y = np.array([names.index(f.parent.name) for f in paths])
            decoded.append({"x": decode.images(paths, shape, str(part[0])), "y": y})
        return joined(decoded)

    return find


def subfolders(path: Path) -> list[Path]:
    """By name; none if the folder does not exist."""
    return sorted(p for p in path.iterdir() if p.is_dir()) if path.is_dir() else []


def files_in(path: Path) -> list[Path]:
    """By name; none if the folder does not exist."""
    return sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else []


def joined(parts: Iterable[Columns]) -> Columns:
    """Training rows, then test rows if there are any. Values of `group` become numbers, their names
    are kept in `group_names`."""
    parts = list(parts)
    out = {key: np.concatenate([p[key] for p in parts]) for key in parts[0]}
    kinds = [
        np.full(len(p["y"]), kind, np.uint8) for kind, p in zip((TRAIN, TEST), parts, strict=False)
    ]
    out["part"] = np.concatenate(kinds)
    out["y"] = whole(out["y"], "labels")
    if "group" in out:
        names, out["group"] = np.unique(out["group"], return_inverse=True)
        out["group_names"] = names.astype(str)
    return out
