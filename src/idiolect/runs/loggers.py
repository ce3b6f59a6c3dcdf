"""Where the rounds of a run can be shown besides; `tracking` does it. Nothing here may import
torch: `--help` is made from it."""

from dataclasses import dataclass
from typing import ClassVar

from idiolect.core.fields import hyper
from idiolect.core.words import Words


@dataclass(frozen=True)
class Loggers(Words):
    """Where rounds are shown besides. Short form: words such as `csv,tensorboard`."""

    section: ClassVar[str] = "log"
    takes: ClassVar[str] = "words such as csv,tensorboard"

    csv: bool = hyper(False, "a row per round in RUN/log/rounds.csv")
    tensorboard: bool = hyper(False, "scalars in RUN/log/tensorboard")
    mlflow: bool = hyper(False, "a run at MLFLOW_TRACKING_URI, or in mlflow.db beside the run")
    wandb: bool = hyper(False, "an offline run of Weights & Biases in RUN/log/wandb")
