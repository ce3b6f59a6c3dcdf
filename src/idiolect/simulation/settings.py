"""How a method is run: the settings that the command line, YAML files and `simulate()` share.

Each is declared here once. A run's config (runs/config.py) adds data, split and model, which
`simulate()` gets as objects. Nothing here may import torch or NumPy: `--help` is made from it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from idiolect.core import augmentation, own_code
from idiolect.core.fields import Checked, hyper
from idiolect.errors import UserError, did_you_mean
from idiolect.simulation.measures import Measures
from idiolect.simulation.protocols import ProtocolName
from idiolect.simulation.schedule import LONGEST, Clock, Participation, Stragglers


@dataclass(frozen=True)
class SimulationOptions(Checked):
    """Settings of a simulation besides its method, clients and model."""

    rounds: int | None = hyper(
        None, "rounds; as the method's paper if not given", min=1, max=LONGEST
    )
    seed: int = hyper(0, "seed of split, model and training", min=0, max=2**63 - 1)
    participation: Participation = hyper(
        Participation(), "clients per round: a rate, binomial:RATE or full", needs="schedule=None"
    )
    stragglers: Stragglers = hyper(
        Stragglers(), "number of clients that miss rounds", needs="schedule=None"
    )
    clock: Clock | None = hyper(
        None, "clients' work arrives by a virtual clock", needs="schedule=None"
    )
    schedule: Path | tuple[Any, ...] | None = hyper(
        None, "recorded participation: a JSON file, or a run's events.jsonl"
    )
    engine: Literal["stacked", "loop"] = hyper(
        "stacked", "all clients at once, or one by one as a reference"
    )
    device: str = hyper("auto", "where clients compute: auto, cpu or cuda")
    dtype: Literal["float32", "float64", "tf32", "bf16"] = hyper(
        "float32", "precision (tf32 needs a GPU; bf16: float32 parameters)"
    )
    keep: Literal["auto", "device", "host", "disk"] = hyper(
        "auto", "where clients' data and state wait"
    )
    eval_every: int = hyper(1, "rounds from one evaluation to the next", min=1)
    stop_after: int = hyper(
        0, "rounds without a better validation score until the run ends (0: never)", min=0
    )
    measure: Measures = hyper(
        Measures(), "measured besides, at a cost: train, fisher, guidance, flops, gradients"
    )
    protocol: ProtocolName = hyper("default", "whose number summary.json quotes")
    loss: Callable | str | None = hyper(
        None, "your own loss(net, params, x, y): file.py:function; not set: the task's"
    )
    augment: Callable | str | None = hyper(
        None, "changes of training batches: flip, crop, noise or file.py:function, by commas"
    )
    init: Path | dict[str, Any] | None = hyper(
        None, "starting weights: a safetensors file, or a folder as exported"
    )
    save_models: Literal["every", "last", "best"] | None = hyper(
        None, "rounds whose models are exported"
    )

    def __post_init__(self) -> None:
        if vars(self)["clock"] is False:  # YAML for "no clock"
            object.__setattr__(self, "clock", None)
        super().__post_init__()
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise did_you_mean(self.device, ("auto", "cpu", "cuda"), "device")
        if isinstance(self.augment, str):
            object.__setattr__(self, "augment", augmentation.written(self.augment))
        if isinstance(self.loss, str):
            if not own_code.is_function(self.loss):
                raise UserError(f"loss '{self.loss}' must be file.py:function or module:function")
            object.__setattr__(self, "loss", own_code.whole(self.loss))
        for name in ("schedule", "init"):
            value = getattr(self, name)
            if isinstance(value, Path):
                object.__setattr__(self, name, _existing(name, value))


def _existing(name: str, path: Path) -> Path:
    path = path.expanduser()
    if not path.exists():
        raise UserError(f"{name}: {path} does not exist")
    return path.resolve()
