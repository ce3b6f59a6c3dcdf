"""Images in folders: client/class/image.png or class/image.png, also below train/ and test/."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idiolect.data import decode
from idiolect.data.cache import Columns
from idiolect.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
PARTS = {"train", "test"}
OTHER_PARTS = PARTS | {"training", "testing", "val", "valid", "validation"}
ORIENTATION = 0x0112  # the EXIF tag by which a camera says how it was held


def found(folder: Path) -> list[Path]:
    """All images below a folder, by name."""
    return [one for one in below(folder) if one.suffix.lower() in SUFFIXES and one.is_file()]


def below(folder: Path) -> list[Path]:
    """What lies below a folder, by name; not of a folder that holds everything, which is no data
    and takes minutes."""
    whole = folder.resolve()
    for place, called in ((Path(whole.anchor), "file system"), (_home(), "home folder")):
        if whole == place:
            raise UserError(f"data '{folder}' is the whole {called}; name the folder of the data")
    return sorted(folder.rglob("*"))


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:  # there is none
        return None


def read(folder: Path, size: tuple[int, int] | None) -> Columns:
    """x, y (the name of the class) and, if there are such folders, client and part."""
    what, images = f"data '{folder}'", found(folder)
    levels = [one.relative_to(folder).parts[:-1] for one in images]
    if len({len(one) for one in levels}) > 1 or not levels[0]:
        raise UserError(
            f"{what}: all images must lie in client/class/ or class/, maybe below train/, test/"
        )
    columns = [np.array(level) for level in zip(*levels, strict=True)]
    named: Columns = {}
    for k, column in enumerate(columns):
        if set(column.tolist()) <= PARTS:
            named["part"] = columns.pop(k)
            break
    if len(columns) not in (1, 2):
        raise UserError(
            f"{what}: its images lie {len(levels[0])} folders deep; bring them to client/class/ or"
            " class/, also below train/ and test/"
        )
    named["y"] = columns[-1]
    if len(columns) == 2:
        if {one.lower() for one in columns[0].tolist()} <= OTHER_PARTS:
            told = ", ".join(sorted(set(columns[0].tolist())))
            raise UserError(
                f"{what}: the folders {told} are no clients; parts are called train and test"
            )
        named["client"] = columns[0]
    return {"x": as_array(list(images), size, what), **named}


def as_array(encoded: list[Any], size: tuple[int, int] | None, what: str) -> np.ndarray:
    """uint8 [M, C, H, W], of the size and colours of the first image unless `size` is given."""
    from PIL import Image

    if not encoded:
        raise UserError(f"{what} has no samples")
    try:
        with Image.open(decode.opened(encoded[0]), formats=decode.FORMATS) as image:
            decode.check_pixels(image, f"{what}: image 0")
            first = _as_seen(image, what)
    except (UserError, MemoryError):
        raise
    except Exception:  # every format has errors of its own
        raise UserError(f"{what}: image 0 cannot be decoded; get the file again") from None
    mode, channels = ("L", 1) if first.mode in ("1", "L") else ("RGB", 3)
    height, width = size or (first.size[1], first.size[0])

    def prepared(image: "Image.Image") -> "Image.Image":
        seen = _as_seen(image, what).convert(mode)
        return seen.resize((width, height), Image.Resampling.BILINEAR) if size else seen

    try:
        return decode.images(encoded, (channels, height, width), what, prepared)
    except UserError as error:
        if "expected" in str(error) and size is None:
            raise UserError(f"{error}; bring all to one size with --set data.size=[H,W]") from None
        raise


def _as_seen(image: "Image.Image", what: str) -> "Image.Image":
    """Turned as the camera was held, with 8 bits a colour: Pillow itself makes every 16-bit value
    above 255 white."""
    from PIL import Image, ImageOps

    if image.getexif().get(ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise UserError(
            f"{what} has images of 32-bit numbers, of which none is white; save them with 8 or 16"
            " bits a pixel"
        )
    return image
