"""scikit-learn's digits: the dataset that every machine has."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from idiolect.data.cache import Columns
from idiolect.data.datasets.base import Dataset
from idiolect.data.layouts import Found, joined


@dataclass(frozen=True)
class Digits(Dataset):
    """scikit-learn's handwritten digits, 8x8 grey; always there, no test part of its own."""

    name = "digits"
    shape = (1, 8, 8)
    official = (1797, 0)

    def find(self) -> Found:
        """scikit-learn takes a second to import: where its file is found, as for other datasets the
        decoded copy is read."""
        package = find_spec("sklearn")
        folders = map(Path, (package and package.submodule_search_locations) or ())
        files = [folder / "datasets" / "data" / "digits.csv.gz" for folder in folders]
        return Found("scikit-learn", tuple(f for f in files if f.exists()), self._read)

    def _read(self) -> Columns:
        from sklearn.datasets import load_digits

        images, y = load_digits(return_X_y=True)  # 0..16
        x = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, *self.shape)
        return joined([{"x": x, "y": y}])
