"""What a run can measure in every tested round besides tests, on request because it costs time.

Each is declared here once; measuring.py and evaluation.py do it. Nothing here may import torch or
NumPy: `--help` is made from it.
"""

from dataclasses import dataclass
from typing import ClassVar

from idiolect.core.fields import hyper
from idiolect.core.words import Words


@dataclass(frozen=True)
class Measures(Words):
    """What is measured besides. Short form: words such as `train,fisher`."""

    section: ClassVar[str] = "measure"
    takes: ClassVar[str] = "words such as train,fisher"

    train: bool = hyper(False, "loss and accuracy of every client's model on its training samples")
    fisher: bool = hyper(False, "trace of the Fisher information of every client, absent ones too")
    guidance: bool = hyper(False, "tests of models a method has besides (FedDWA's guidance)")
    flops: bool = hyper(False, "FLOPs and network passes of local work, counted client by client")
    gradients: bool = hyper(False, "cosine of every two clients' updates, layer by layer")
