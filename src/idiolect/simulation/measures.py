"""What a run can measure in every tested round besides tests, on request because it costs time.

Each is declared here once; measuring.py and evaluation.py do it. Nothing here may import torch or
NumPy: `--help` is made from it.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from idiolect.core.fields import Checked, hyper
from idiolect.errors import did_you_mean


@dataclass(frozen=True)
class Measures(Checked):
    """What is measured besides. Short form: words such as `train,fisher`."""

    section: ClassVar[str] = "measure"
    short: ClassVar[type | None] = str
    takes: ClassVar[str] = "words such as train,fisher"

    train: bool = hyper(False, "loss and accuracy of every client's model on its training samples")
    fisher: bool = hyper(False, "trace of the Fisher information of every client, absent ones too")
    guidance: bool = hyper(False, "tests of models a method has besides (FedDWA's guidance)")
    flops: bool = hyper(False, "FLOPs and network passes of local work, counted client by client")
    gradients: bool = hyper(False, "cosine of every two clients' updates, layer by layer")

    @classmethod
    def of(cls, value: Any) -> Self:
        if value is None:
            return cls()
        if isinstance(value, str):
            value = [word for word in value.replace(" ", "").split(",") if word]
        if isinstance(value, list | tuple):
            known = [field.name for field in fields(cls)]
            for word in value:
                if word not in known:
                    raise did_you_mean(str(word), known, "measure")
            value = dict.fromkeys(value, True)
        return super().of(value)

    def as_dict(self) -> dict[str, Any]:
        return {name: True for name, wanted in super().as_dict().items() if wanted}

    def __str__(self) -> str:
        return ",".join(self.as_dict())

    def __bool__(self) -> bool:
        return bool(self.as_dict())
