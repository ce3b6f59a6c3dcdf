"""Omniglot from small files in its official layouts."""

import numpy as np
import pytest
from PIL import Image

from idiolect.data import cache, datasets
from idiolect.data.datasets.omniglot import Omniglot, shrunk
from idiolect.errors import UserError
from tests.data.dataset_files import (
    write_omniglot,
)


def test_omniglot_npz_and_its_rotations(no_data):
    write_omniglot(no_data / "omniglot.npz")
    plain = datasets.load({"name": "omniglot", "rows": [4, 0], "rotations": False})
    turned = datasets.load({"name": "omniglot", "rows": [4, 0]})
    assert len(plain) == 4 and len(turned) == 16
    assert turned.drawing.tolist() == [0, 1, 2, 3] * 4
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
    assert pool.group_names == ("Greek", "Latin")
    assert pool.x[0, 0, 14, 13] == 255 and pool.x[0, 0, 0, 0] == 0


def page_with_ink():
    page = np.zeros((105, 105), np.uint8)
    page[[0, 1, 2, 3], [0, 1, 5, 3]] = 255
    return page


def test_a_pixel_is_bilinear_between_the_four_at_its_centre():
    """Centres are 3.75 i + 1.375: rows 1 and 2 by 5/8 and 3/8, then 5 and 6 by 7/8 and 1/8."""
    small = shrunk(page_with_ink()[None])[0]
    assert small[0, 0] == 100  # 255 * 5/8 * 5/8 = 99.6
    assert small[0, 1] == 84  # 255 * 3/8 * 7/8 = 83.7
    small[0, :2] = 0
    assert not small.any()  # ink at (0, 0) and (3, 3) lies at no centre


def test_bits_of_pages_and_folders_of_drawings_are_made_alike(no_data):
    page = page_with_ink()
    write_omniglot(no_data / "omniglot.npz", 2)
    with np.load(no_data / "omniglot.npz") as data:
        known = {name: data[name] for name in data.files if name != "images28"}
    packed = np.packbits(np.stack([page, page.T]).reshape(2, -1) > 0, axis=1)
    np.savez(no_data / "omniglot.npz", **known, images105_packed=packed)
    section = {"name": "omniglot", "rows": [2, 0], "rotations": False}
    of_bits = datasets.load(section).x
    assert np.array_equal(of_bits[:, 0], shrunk(np.stack([page, page.T])))

    (no_data / "omniglot.npz").unlink()
    for s, drawn in (("images_background", page), ("images_evaluation", page.T)):
        folder = no_data / "omniglot" / s / f"{s}_alphabet" / "character01"
        folder.mkdir(parents=True)
        Image.fromarray(drawn == 0).save(folder / "0001_01.png")
    assert np.array_equal(datasets.load(section).x, of_bits)


def test_bits_of_another_size_are_refused(no_data):
    write_omniglot(no_data / "omniglot.npz", 2)
    with np.load(no_data / "omniglot.npz") as data:
        known = dict(data)
    np.savez(no_data / "omniglot.npz", **known, images105_packed=np.zeros((2, 9), np.uint8))
    with pytest.raises(UserError, match="images105_packed is not 105 x 105 bits"):
        datasets.load({"name": "omniglot", "rows": [2, 0]})


def test_a_copy_of_smoothed_drawings_is_not_used(no_data):
    write_omniglot(no_data / "omniglot.npz")
    found = Omniglot().find()
    old = found.decode()
    cache.cached("omniglot", found.stamps, lambda: {**old, "x": old["x"] * 0})
    pool = datasets.load({"name": "omniglot", "rows": [4, 0], "rotations": False})
    assert np.array_equal(pool.x, old["x"])
