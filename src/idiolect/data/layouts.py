"""Ways a dataset lies in a folder. Each finds its files quickly and decodes them when asked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from idiolect.data import decode
from idiolect.data.cache import Columns
from idiolect.data.pool import TEST, TRAIN

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """A dataset on disk: `stamps` change when it changes."""

    where: Path
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
    """train.parquet and test.parquet, or the hub's train-00000-of-00001.parquet."""
    wanted = {"image": ("image", "img"), "y": label} | ({"group": group} if group else {})

    def find(folder: Path) -> Found | None:
        for sub in inside:
            by_part: dict[str, list[Path]] = {}
            for file in sorted((folder / sub).glob("*.parquet")):
                by_part.setdefault(file.name.split(".")[0].split("-")[0], []).append(file)
            train = by_part.get("train", []) + [f for p in more_train for f in by_part.get(p, [])]
            held = next((by_part[name] for name in test if name in by_part), [])
            if by_part.get("train"):
                return Found(folder / sub, (*train, *held), partial(read, train, held))
        return None

    def read(train: list[Path], held: list[Path]) -> Columns:
        parts = [decode.parquet(files, shape, **wanted) for files in (train, held) if files]
        return _joined(parts)

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
            x = x.swapaxes(1, 2) if turned else x
            parts.append({"x": x[:, None], "y": decode.idx(labels).astype(np.int64) - first_label})
        return _joined(parts)

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
        return _joined([{"x": x, "y": y}, {"x": each[-1][0], "y": each[-1][1]}])

    return find


def class_folders(shape: Shape, train: Sequence[str], test: str) -> Layout:
    """part/class/image.png; classes are numbered in the order of their names (CINIC-10)."""

    def find(folder: Path) -> Found | None:
        if not all((folder / part).is_dir() for part in (*train, test)):
            return None
        parts = [[folder / part for part in train], [folder / test]]
        labels = [_folders(p) for p in (*parts[0], *parts[1])]
        return Found(folder, tuple(f for fs in labels for f in fs), partial(read, parts))

    def read(parts: list[list[Path]]) -> Columns:
        names = sorted({f.name for part in parts for p in part for f in _folders(p)})
        decoded = []
        for part in parts:
            paths = [f for p in part for c in _folders(p) for f in _files(c)]
            y = np.array([names.index(f.parent.name) for f in paths])
            decoded.append({"x": decode.images(paths, shape, str(part[0])), "y": y})
        return _joined(decoded)

    return find


def tiny_imagenet_folders(shape: Shape) -> Layout:
    """tiny-imagenet-200: train/<wnid>/images, and val with its annotation file as test part."""

    def find(folder: Path) -> Found | None:
        for base in (folder, folder / "tiny-imagenet-200"):
            notes = base / "val" / "val_annotations.txt"
            if (base / "wnids.txt").is_file() and notes.is_file():
                stamps = (base / "wnids.txt", notes, *_folders(base / "train"))
                return Found(base, stamps, partial(read, base))
        return None

    def read(base: Path) -> Columns:
        number = {w: i for i, w in enumerate(sorted((base / "wnids.txt").read_text().split()))}
        train = [f for w in number for f in _files(base / "train" / w / "images")]
        lines = (base / "val" / "val_annotations.txt").read_text().splitlines()
        notes = [line.split("\t")[:2] for line in lines if line.strip()]
        held = [base / "val" / "images" / name for name, _ in notes]
        y = np.array([number[f.parent.parent.name] for f in train])
        y_held = np.array([number.get(wnid, -1) for _, wnid in notes])
        return _joined(
            [
                {"x": decode.images(train, shape, str(base / "train")), "y": y},
                {"x": decode.images(held, shape, str(base / "val")), "y": y_held},
            ]
        )

    return find


def omniglot_npz(folder: Path) -> Found | None:
    """omniglot.npz with 28x28 drawings (ink bright), class, alphabet and drawer of each."""
    for file in (folder / "omniglot.npz", folder.parent / "omniglot.npz"):
        if file.is_file():
            return Found(file, (file,), partial(_read_omniglot_npz, file))
    return None


def _read_omniglot_npz(file: Path) -> Columns:
    with np.load(file, allow_pickle=False) as data:
        return {
            "x": data["images28"][:, None],
            "y": data["class_id"].astype(np.int64),
            "part": np.full(len(data["class_id"]), TRAIN, np.uint8),
            "group": data["alphabet_id"].astype(np.int64),
            "group_names": data["alphabet_names"],
            "drawer": data["drawer_id"].astype(np.int64),
        }


def omniglot_folders(folder: Path) -> Found | None:
    """The authors' images_background and images_evaluation: alphabet/character/0001_01.png."""
    for base in (folder, folder / "python", folder / "omniglot-py"):
        sets = [base / "images_background", base / "images_evaluation"]
        if all(s.is_dir() for s in sets):
            alphabets = sorted((a for s in sets for a in _folders(s)), key=lambda a: a.name)
            stamps = tuple(c for a in alphabets for c in _folders(a))
            return Found(base, stamps, partial(_read_omniglot_folders, alphabets))
    return None


def _read_omniglot_folders(alphabets: list[Path]) -> Columns:
    characters = [(i, c) for i, a in enumerate(alphabets) for c in _folders(a)]
    rows = [(i, k, f) for k, (i, c) in enumerate(characters) for f in sorted(c.glob("*.png"))]

    def prepare(image: Image.Image) -> Image.Image:
        # PFLEGO: invert, grey, 28x28.
        return ImageOps.invert(image.convert("L")).resize((28, 28), Image.Resampling.BILINEAR)

    files = [f for _, _, f in rows]
    return {
        "x": decode.images(files, (1, 28, 28), str(alphabets[0].parent), prepare),
        "y": np.array([k for _, k, _ in rows]),
        "part": np.full(len(rows), TRAIN, np.uint8),
        "group": np.array([i for i, _, _ in rows]),
        "group_names": np.array([a.name for a in alphabets]),
        "drawer": np.array([int(f.stem.split("_")[1]) for f in files]),
    }


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir()) if path.is_dir() else []


def _files(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else []


def _joined(parts: Iterable[Columns]) -> Columns:
    """Train rows, then test rows (if any); group values become numbers into their names."""
    parts = list(parts)
    out = {key: np.concatenate([p[key] for p in parts]) for key in parts[0]}
    kinds = [
        np.full(len(p["y"]), kind, np.uint8) for kind, p in zip((TRAIN, TEST), parts, strict=False)
    ]
    out["part"] = np.concatenate(kinds)
    out["y"] = out["y"].astype(np.int64)
    if "group" in out:
        names, out["group"] = np.unique(out["group"], return_inverse=True)
        out["group_names"] = names.astype(str)
    return out
