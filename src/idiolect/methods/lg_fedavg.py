"""LG-FedAvg (Liang et al., 2020): local representations, a global head.

FedPer turned round: every client keeps its own feature extractor, only the layers on top of it are
averaged (Algorithm 1: global parameters weighted by n_m / N).

Where paper and code disagree: the code averages the global layers uniformly (its clients have equal
sizes), starts from a model FedAvg has trained for hundreds of rounds (give it as the initial
weights), and on CIFAR-10 also shares the layer below the last (`personal_layers` takes patterns).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from idiolect.core.method import hyper
from idiolect.methods.fedper import FedPer


@dataclass(frozen=True)
class LGFedAvg(FedPer):
    """Body and head train together; the body stays, the head is averaged by sample count."""

    lr: float = hyper(0.1)
    batch_size: int | Literal["full"] = hyper(50)
    momentum: float = hyper(0.5)
    personal_layers: str = hyper("body", "what stays: body, or name patterns")
    head_init: ClassVar[Literal["start"]] = "start"  # type: ignore[misc]  # it is shared

    name = "lg_fedavg"
    paper = "Liang et al., Think Locally, Act Globally: Federated Learning with LG"
    year = 2020
    personal_part = "the body"
    traffic = "2 head"
