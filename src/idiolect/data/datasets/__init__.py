"""The datasets: what each one is, where its files may lie and how it is normalised."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from idiolect.core.fields import describe, hyper, named
from idiolect.data import layouts
from idiolect.data.cache import Columns
from idiolect.data.datasets.base import HALF, ByPaper, Constants, Source
from idiolect.data.layouts import Found, Layout
from idiolect.data.pool import Table
from idiolect.errors import did_you_mean

COLOUR = (3, 32, 32)
MNIST: Constants = ((0.1307,), (0.3081,))
CIFAR_SPFL: Constants = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
CIFAR_FEDDWA: Constants = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CINIC: Constants = (
    (0.47889522, 0.47227842, 0.43047404),
    (0.24205776, 0.23828046, 0.25874835),
)
IDX_FILES = "train.parquet and test.parquet, or the four IDX files,"


@dataclass(frozen=True)
class Digits(Source):
    """scikit-learn's handwritten digits, 8x8 grey; always there, no test part of its own."""

    name = "digits"
    shape = (1, 8, 8)
    official = (1797, 0)

    def find(self) -> Found | None:
        return None

    def _columns(self) -> tuple[Columns, str]:
        from sklearn.datasets import load_digits  # a second to import

        images, y = load_digits(return_X_y=True)  # 0..16
        x = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, *self.shape)
        part = np.zeros(len(y), np.uint8)
        return {"x": x, "y": y.astype(np.int64), "part": part}, "scikit-learn"


@dataclass(frozen=True)
class Mnist(Source):
    """MNIST: handwritten digits, 28x28 grey."""

    name = "mnist"
    official = (60_000, 10_000)
    hub = "ylecun/mnist"
    get = IDX_FILES
    sha256 = "c2069063c1105f2bf96266aef1ff68c6e13bdda7a54e37bf19c16f1db24efc83"
    constants: ClassVar[ByPaper] = {"default": MNIST, "spfl": MNIST}

    def layouts(self) -> tuple[Layout, ...]:
        inside = ("", "data", "mnist")
        return layouts.parquet(self.shape, inside=inside), layouts.idx("train", "t10k")


@dataclass(frozen=True)
class FashionMnist(Source):
    """Fashion-MNIST: clothes, 28x28 grey (Debian package dataset-fashion-mnist)."""

    name = "fashion_mnist"
    official = (60_000, 10_000)
    folders = ("fashion-mnist",)
    hub = "zalando-datasets/fashion_mnist"
    get = IDX_FILES
    constants: ClassVar[ByPaper] = {"default": HALF, "spfl": MNIST}

    def layouts(self) -> tuple[Layout, ...]:
        inside = ("", "data", "fashion_mnist")
        return layouts.parquet(self.shape, inside=inside), layouts.idx("train", "t10k")


@dataclass(frozen=True)
class Emnist(Source):
    """EMNIST: handwritten letters and digits, 28x28 grey, in NIST's six variants."""

    variant: str = hyper("balanced", "balanced, byclass, bymerge, letters, digits or mnist")
    upright: bool = hyper(True, "turn NIST's column-by-column images; SPFL used them as they are")

    name = "emnist"
    get = "NIST's IDX files (emnist-balanced-train-images-idx3-ubyte.gz ...)"
    constants: ClassVar[ByPaper] = {"default": MNIST, "spfl": MNIST}
    variants: ClassVar[dict[str, tuple[int, int, int]]] = {
        "balanced": (47, 112_800, 18_800),
        "byclass": (62, 697_932, 116_323),
        "bymerge": (47, 697_932, 116_323),
        "letters": (26, 124_800, 20_800),
        "digits": (10, 240_000, 40_000),
        "mnist": (10, 60_000, 10_000),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant not in self.variants:
            raise did_you_mean(self.variant, self.variants, "variant of emnist")

    @property
    def n_classes(self) -> int:
        return self.variants[self.variant][0]

    @property
    def expected(self) -> tuple[int, int]:
        return self.variants[self.variant][1:]

    @property
    def cache_name(self) -> str:
        return f"emnist-{self.variant}" + ("" if self.upright else "-turned")

    def layouts(self) -> tuple[Layout, ...]:
        v = self.variant
        first = 1 if v == "letters" else 0  # NIST counts letters from 1
        return (
            layouts.parquet(self.shape, inside=(v, f"emnist-{v}")),
            layouts.idx(f"emnist-{v}-train", f"emnist-{v}-test", self.upright, first),
        )


@dataclass(frozen=True)
class Femnist(Source):
    """FEMNIST: 62 handwritten characters, 28x28 grey; a natural client is a writer."""

    name = "femnist"
    classes = 62
    hub = "flwrlabs/femnist"
    get = "train.parquet (and test.parquet) with image, character and writer_id"
    constants: ClassVar[ByPaper] = {"default": MNIST, "spfl": MNIST}

    def layouts(self) -> tuple[Layout, ...]:
        return (layouts.parquet(self.shape, label=("character", "label"), group=("writer_id",)),)


@dataclass(frozen=True)
class Cifar10(Source):
    """CIFAR-10: small photographs, 32x32 colour."""

    name = "cifar10"
    shape = COLOUR
    official = (50_000, 10_000)
    hub = "uoft-cs/cifar10"
    get = "train.parquet and test.parquet, or cifar-10-batches-bin,"
    constants: ClassVar[ByPaper] = {
        "default": CIFAR_SPFL,
        "spfl": CIFAR_SPFL,
        "feddwa": CIFAR_FEDDWA,
    }

    def layouts(self) -> tuple[Layout, ...]:
        batches = [f"data_batch_{i}.bin" for i in range(1, 6)]
        return (
            layouts.parquet(self.shape),
            layouts.cifar_binary("cifar-10-batches-bin", batches, "test_batch.bin", 1),
        )


@dataclass(frozen=True)
class Cifar100(Source):
    """CIFAR-100: small photographs, 32x32 colour, fine labels."""

    name = "cifar100"
    shape = COLOUR
    classes = 100
    official = (50_000, 10_000)
    hub = "uoft-cs/cifar100"
    get = "train.parquet and test.parquet, or cifar-100-binary,"
    constants: ClassVar[ByPaper] = {
        "default": CIFAR_SPFL,
        "spfl": CIFAR_SPFL,
        "feddwa": CIFAR_FEDDWA,
    }

    def layouts(self) -> tuple[Layout, ...]:
        return (
            layouts.parquet(self.shape, ("fine_label", "label"), inside=("", "data", "cifar100")),
            layouts.cifar_binary("cifar-100-binary", ["train.bin"], "test.bin", 2),
        )


@dataclass(frozen=True)
class Cinic10(Source):
    """CINIC-10: CIFAR-10 and downsized ImageNet, 32x32 colour."""

    with_valid: bool = hyper(False, "add the validation images to the training part")

    name = "cinic10"
    shape = COLOUR
    folders = ("CINIC-10", "cinic-10")
    hub = "flwrlabs/cinic10"
    get = "the unpacked CINIC-10 archive (train, valid, test folders) or its parquet files"
    constants: ClassVar[ByPaper] = {"default": CINIC, "feddwa": CINIC}

    @property
    def expected(self) -> tuple[int, int]:
        return (180_000 if self.with_valid else 90_000), 90_000

    @property
    def cache_name(self) -> str:
        return "cinic10" + ("-with-valid" if self.with_valid else "")

    def layouts(self) -> tuple[Layout, ...]:
        more = ["valid", "validation"] if self.with_valid else []
        folders = ["train", "valid"] if self.with_valid else ["train"]
        return (
            layouts.parquet(self.shape, more_train=more),
            layouts.class_folders(self.shape, folders, "test"),
        )


@dataclass(frozen=True)
class TinyImagenet(Source):
    """Tiny-ImageNet: photographs, 64x64 colour; its validation part is the test part."""

    name = "tiny_imagenet"
    shape = (3, 64, 64)
    classes = 200
    official = (100_000, 10_000)
    folders = ("tiny-imagenet-200", "tiny-imagenet")
    hub = "zh-plus/tiny-imagenet"
    get = "the unpacked tiny-imagenet-200.zip or its parquet files"
    constants: ClassVar[ByPaper] = {"default": HALF, "feddwa": HALF}

    def layouts(self) -> tuple[Layout, ...]:
        held = ("valid", "validation", "val")
        return (
            layouts.parquet(self.shape, test=held),
            layouts.tiny_imagenet_folders(self.shape),
        )


@dataclass(frozen=True)
class Omniglot(Source):
    """Omniglot: 1,623 characters, 20 drawings each, 28x28 grey; a natural client is an alphabet."""

    rotations: bool = hyper(True, "add each drawing turned by 90, 180 and 270 degrees (PFLEGO)")

    name = "omniglot"
    classes = 1623
    official = (32_460, 0)
    get = "omniglot.npz, or images_background and images_evaluation unpacked,"
    constants: ClassVar[ByPaper] = {"default": None}

    def layouts(self) -> tuple[Layout, ...]:
        return layouts.omniglot_npz, layouts.omniglot_folders

    def finish(self, columns: Columns) -> Columns:
        turns = 4 if self.rotations else 1
        x = columns["x"]
        out = {
            key: np.tile(value, turns)
            for key, value in columns.items()
            if key in ("y", "part", "group", "drawer")
        }
        out["drawing"] = np.tile(np.arange(len(x)), turns)
        if turns > 1:
            x = np.concatenate([np.rot90(x, k, axes=(2, 3)) for k in range(turns)])
        return {**columns, **out, "x": x}


REGISTRY: dict[str, type[Source]] = {
    cls.name: cls
    for cls in (
        Digits,
        Mnist,
        FashionMnist,
        Emnist,
        Femnist,
        Cifar10,
        Cifar100,
        Cinic10,
        TinyImagenet,
        Omniglot,
    )
}


def source(section: dict[str, Any]) -> Source:
    """{"name": "emnist", "variant": "byclass"} -> Emnist(variant="byclass")."""
    return named(REGISTRY, section, "data")


def load(section: dict[str, Any]) -> Table:
    """The dataset of a config section, decoded (from the cache the second time)."""
    return source(section).load()


def get(section: dict[str, Any]) -> str:
    """Make sure a dataset is there and whole; says where. Fetches it from the hub if it must."""
    return load(section).where


def resolved(section: dict[str, Any]) -> dict[str, Any]:
    """The section with every option filled in."""
    made = source(section)
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(made).items()}
    return {"name": made.name, **options}


def list_datasets() -> list[dict[str, Any]]:
    """Every dataset: what it is, where it was found (None: nowhere), classes, shape, options."""
    listed = []
    for name, cls in REGISTRY.items():
        made = cls()
        found = made.find()
        where = "scikit-learn" if isinstance(made, Digits) else found and str(found.where)
        listed.append(
            {
                "name": name,
                "what": " ".join((cls.__doc__ or "").split()),
                "found": where,
                "classes": made.n_classes,
                "shape": list(made.shape),
                "rows": list(made.expected) if made.expected else None,
                "options": describe(cls),
            }
        )
    return listed
