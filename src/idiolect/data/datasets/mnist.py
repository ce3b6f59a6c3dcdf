"""MNIST and the datasets in its form, 28x28 grey: Fashion-MNIST, EMNIST, FEMNIST."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from idiolect.core.fields import hyper
from idiolect.data import layouts
from idiolect.data.datasets.base import HALF, Constants, Dataset, MeanStd
from idiolect.data.layouts import Layout

MNIST: MeanStd = ((0.1307,), (0.3081,))


@dataclass(frozen=True)
class Mnist(Dataset):
    """MNIST: handwritten digits, 28x28 grey."""

    name = "mnist"
    official = (60_000, 10_000)
    hub_repository = "ylecun/mnist"
    files_wanted = "train.parquet and test.parquet, or the four IDX files,"
    sha256 = "c2069063c1105f2bf96266aef1ff68c6e13bdda7a54e37bf19c16f1db24efc83"
    constants: ClassVar[Constants] = {"default": MNIST, "spfl": MNIST}

    def layouts(self) -> tuple[Layout, ...]:
        inside = ("", "data", self.name)
        return layouts.parquet(self.shape, inside=inside), layouts.idx("train", "t10k")


@dataclass(frozen=True)
class FashionMnist(Mnist):
    """Fashion-MNIST: clothes, 28x28 grey (Debian package dataset-fashion-mnist)."""

    name = "fashion_mnist"
    other_folders = ("fashion-mnist",)
    hub_repository = "zalando-datasets/fashion_mnist"
    sha256 = "2cbc59191665e1ba3f2494648f17edac5974f748ab89fb2ae05597d658161f54"
    constants: ClassVar[Constants] = {"default": HALF, "spfl": MNIST}


@dataclass(frozen=True)
class Emnist(Dataset):
    """EMNIST: handwritten letters and digits, 28x28 grey, in NIST's six variants."""

    variant: Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"] = hyper(
        "balanced", "which of NIST's six divisions into classes"
    )
    upright: bool = hyper(True, "turn NIST's column-by-column images upright, as SPFL does")

    name = "emnist"
    files_wanted = "NIST's IDX files (emnist-balanced-train-images-idx3-ubyte.gz ...)"
    constants: ClassVar[Constants] = {"default": MNIST, "spfl": MNIST}
    variants: ClassVar[dict[str, tuple[int, int, int]]] = {  # classes, train and test samples
        "balanced": (47, 112_800, 18_800),
        "byclass": (62, 697_932, 116_323),
        "bymerge": (47, 697_932, 116_323),
        "letters": (26, 124_800, 20_800),
        "digits": (10, 240_000, 40_000),
        "mnist": (10, 60_000, 10_000),
    }

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
class Femnist(Dataset):
    """FEMNIST: 62 handwritten characters, 28x28 grey; a natural client is a writer."""

    name = "femnist"
    classes = 62
    hub_repository = "flwrlabs/femnist"
    files_wanted = "train.parquet (and test.parquet) with image, character and writer_id"
    constants: ClassVar[Constants] = {"default": MNIST, "spfl": MNIST}

    def layouts(self) -> tuple[Layout, ...]:
        return (layouts.parquet(self.shape, label=("character", "label"), group=("writer_id",)),)
