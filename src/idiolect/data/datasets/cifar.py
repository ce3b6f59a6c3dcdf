"""CIFAR-10, CIFAR-100 and CINIC-10: small photographs, 32x32 colour."""

from dataclasses import dataclass
from typing import ClassVar

from idiolect.core.fields import hyper
from idiolect.data import layouts
from idiolect.data.datasets.base import Constants, Dataset, MeanStd
from idiolect.data.layouts import Layout

SHAPE = (3, 32, 32)
CIFAR_SPFL: MeanStd = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
CIFAR_FEDDWA: MeanStd = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CIFAR: Constants = {"default": CIFAR_SPFL, "spfl": CIFAR_SPFL, "feddwa": CIFAR_FEDDWA}
CINIC: MeanStd = (
    (0.47889522, 0.47227842, 0.43047404),
    (0.24205776, 0.23828046, 0.25874835),
)


@dataclass(frozen=True)
class Cifar10(Dataset):
    """CIFAR-10: small photographs, 32x32 colour."""

    name = "cifar10"
    shape = SHAPE
    official = (50_000, 10_000)
    hub_repository = "uoft-cs/cifar10"
    files_wanted = "train.parquet and test.parquet, or cifar-10-batches-bin,"
    constants = CIFAR

    def layouts(self) -> tuple[Layout, ...]:
        batches = [f"data_batch_{i}.bin" for i in range(1, 6)]
        return (
            layouts.parquet(self.shape),
            layouts.cifar_binary("cifar-10-batches-bin", batches, "test_batch.bin", 1),
        )


@dataclass(frozen=True)
class Cifar100(Dataset):
    """CIFAR-100: small photographs, 32x32 colour, fine labels."""

    name = "cifar100"
    shape = SHAPE
    classes = 100
    official = (50_000, 10_000)
    hub_repository = "uoft-cs/cifar100"
    files_wanted = "train.parquet and test.parquet, or cifar-100-binary,"
    constants = CIFAR

    def layouts(self) -> tuple[Layout, ...]:
        return (
            layouts.parquet(self.shape, ("fine_label", "label"), inside=("", "data", "cifar100")),
            layouts.cifar_binary("cifar-100-binary", ["train.bin"], "test.bin", 2),
        )


@dataclass(frozen=True)
class Cinic10(Dataset):
    """CINIC-10: CIFAR-10 and downsized ImageNet, 32x32 colour."""

    with_valid: bool = hyper(False, "add the validation images to the training part")

    name = "cinic10"
    shape = SHAPE
    other_folders = ("CINIC-10", "cinic-10")
    hub_repository = "flwrlabs/cinic10"
    files_wanted = "the unpacked CINIC-10 archive (train, valid, test folders) or its parquet files"
    constants: ClassVar[Constants] = {"default": CINIC, "feddwa": CINIC}

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
