"""Small files of a user's own, written for tests."""

from pathlib import Path

import numpy as np
from PIL import Image


def table(path: Path, rows: int = 120, clients: int = 4, delimiter: str = ",") -> Path:
    """Readings of sites: two quantities, one category, a label that follows from them."""
    draw = np.random.default_rng(0)
    lines = [delimiter.join(("site", "warmth", "wet", "soil", "kind"))]
    for i in range(rows):
        warmth, wet = draw.normal(20, 5), draw.normal(0.5, 0.1)
        soil = ("clay", "sand", "peat")[i % 3]
        kind = "birch" if warmth > 20 else "alder" if wet > 0.5 else "willow"
        cells = (f"site {i % clients}", f"{warmth:.3f}", f"{wet:.4f}", soil, kind)
        lines.append(delimiter.join(cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def images(folder: Path, clients: tuple[str, ...] = ("north", "south"), each: int = 8) -> Path:
    """client/class/image.png, or class/image.png without clients."""
    draw = np.random.default_rng(1)
    for client in clients or ("",):
        for label, level in (("dark", 40), ("light", 200)):
            place = folder / client / label
            place.mkdir(parents=True)
            for i in range(each):
                pixels = draw.integers(level - 30, level + 30, (12, 12), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.png")
    return folder


def signals(path: Path, rows: int = 90, clients: int = 3) -> Path:
    """1-D signals of machines: three frequencies in noise."""
    draw = np.random.default_rng(2)
    y = np.arange(rows) % 3
    time = np.linspace(0, 1, 32)
    x = np.sin(2 * np.pi * (y + 1)[:, None] * time) + draw.normal(0, 0.1, (rows, 32))
    machine = np.array([f"machine {i % clients}" for i in range(rows)])
    np.savez(path, x=x.astype(np.float32), y=y, client=machine)
    return path
