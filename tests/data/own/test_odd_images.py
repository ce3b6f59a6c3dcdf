"""Images that Pillow alone would read wrongly, and folders that are no clients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idiolect.data import Federation
from idiolect.errors import UserError

IID = {"name": "iid", "clients": 1}
RAMP = np.linspace(0, 65535, 64).reshape(8, 8)


def images(folder: Path, image: Image.Image, ending: str = "png", **how: Any) -> Path:
    for label in "ab":
        (folder / label).mkdir(parents=True)
        for i in range(6):
            image.save(folder / label / f"{i}.{ending}", **how)
    return folder


@pytest.mark.parametrize(("ending", "kind"), [("png", "<u2"), ("tif", "<u2"), ("tif", ">u2")])
def test_sixteen_bits_keep_their_greys(tmp_path: Path, ending: str, kind: str) -> None:
    """Pillow makes every value above 255 white."""
    fed = Federation.from_files(
        images(tmp_path, Image.fromarray(RAMP.astype(kind)), ending), split=IID
    )
    assert fed.shape == (1, 8, 8)
    assert fed.x[0, 0].tolist() == (RAMP.astype(int) >> 8).tolist()


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_of_32_bits_have_no_white(tmp_path: Path, kind: type) -> None:
    folder = images(tmp_path, Image.fromarray((RAMP / 65535).astype(kind)), "tif")
    with pytest.raises(UserError, match="has images of 32-bit numbers"):
        Federation.from_files(folder, split=IID)


@pytest.mark.parametrize("size", [None, (8, 4)])
def test_photographs_are_turned_as_the_camera_was_held(tmp_path: Path, size: Any) -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255  # left on the sensor: above, once it is turned
    exif = Image.Exif()
    exif[0x0112] = 6
    folder = images(tmp_path, Image.fromarray(pixels), "jpg", exif=exif)
    fed = Federation.from_files(folder, split=IID, size=size)
    assert fed.shape == (3, 8, 4) if size else (3, 16, 8)
    column = fed.x[0, 0, :, 1].tolist()
    assert column[0] > 250 and column[-1] < 5


def test_modes_of_pillow_become_grey_or_colours(tmp_path: Path) -> None:
    grey = Image.fromarray((RAMP.astype(int) >> 8).astype(np.uint8))
    for mode, channels in (("1", 1), ("L", 1), ("LA", 3), ("P", 3), ("RGBA", 3), ("CMYK", 3)):
        ending = "jpg" if mode == "CMYK" else "png"
        fed = Federation.from_files(images(tmp_path / mode, grey.convert(mode), ending), split=IID)
        assert fed.shape == (channels, 8, 8), mode


@pytest.mark.parametrize("parts", [("train", "val", "test"), ("Train", "Test"), ("train", "valid")])
def test_parts_of_other_names_are_no_clients(tmp_path: Path, parts: tuple[str, ...]) -> None:
    """The folders train, val and test became three clients, who trained on test images."""
    grey = Image.fromarray(np.zeros((8, 8), np.uint8))
    for part in parts:
        images(tmp_path / part, grey)
    with pytest.raises(UserError, match="are no clients; parts are called train and test"):
        Federation.from_files(tmp_path)
