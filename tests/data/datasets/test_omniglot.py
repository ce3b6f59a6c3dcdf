"""Omniglot from small files in its official layouts."""

import numpy as np
from PIL import Image

from idiolect.data import datasets
from tests.data.dataset_files import (
    write_omniglot,
)


def test_omniglot_npz_and_its_rotations(no_data):
    write_omniglot(no_data / "omniglot.npz")
    plain = datasets.load({"name": "omniglot", "rows": [4, 0], "rotations": False})
    turned = datasets.load({"name": "omniglot", "rows": [4, 0]})
    assert len(plain) == 4 and len(turned) == 16
    assert turned.drawing.tolist() == [0, 1, 2, 3] * 4
    assert turned.drawer.tolist() == [1, 2, 3, 4] * 4
    assert np.array_equal(turned.x[6, 0], np.rot90(plain.x[2, 0]))
    assert plain.group_names == ("Greek", "Latin")


def test_omniglot_original_folders(no_data):
    for s, alphabet in (("images_background", "Latin"), ("images_evaluation", "Greek")):
        folder = no_data / "omniglot" / s / alphabet / "character01"
        folder.mkdir(parents=True)
        page = np.full((105, 105), True)
        page[40:60, 40:60] = False  # black ink on white paper, one bit
        Image.fromarray(page).save(folder / "0001_07.png")
    pool = datasets.load({"name": "omniglot", "rows": [2, 0], "rotations": False})
    assert pool.group_names == ("Greek", "Latin") and pool.drawer.tolist() == [7, 7]
    assert pool.x[0, 0, 14, 13] == 255 and pool.x[0, 0, 0, 0] == 0
