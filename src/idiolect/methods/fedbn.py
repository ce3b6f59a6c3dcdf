"""FedBN (Li et al., ICLR 2021): federated learning on non-IID features via local BatchNorm.

FedPer whose personal layers are the normalization layers, statistics included (Algorithm 1). On a
model without such layers it is FedAvg.

The paper and its code average uniformly over datasets cut to equal size; here it is by sample
count, which is the same there.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from idiolect.core.method import hyper
from idiolect.methods.fedper import FedPer


@dataclass(frozen=True)
class FedBN(FedPer):
    """Normalization layers, with their statistics, stay; everything else is averaged."""

    personal_layers: str = hyper("norm", "what stays: norm, or name patterns")
    head_init: ClassVar[Literal["start"]] = "start"  # type: ignore[misc]  # it is shared

    name = "fedbn"
    paper = "Li et al., FedBN: FL on Non-IID Features via Local Batch Normalization"
    year = 2021
    personal_part = "the normalization layers and their statistics"
    traffic = "2 without norm"
