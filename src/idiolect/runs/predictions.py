"""What a client's model says about samples: the plain module, and a table of its answers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from idiolect.core import files
from idiolect.core.net import logits_of
from idiolect.core.task import LearningTask
from idiolect.data import Federation
from idiolect.models.build import wants_tokens

FORMS = (".csv", ".parquet")
TOGETHER = 512  # samples in one forward pass


def outputs(module: nn.Module, samples: Federation, rows: torch.Tensor) -> torch.Tensor:
    """What the module gives for these rows, normalised as the federation says."""
    dtype = next(p.dtype for p in module.parameters())
    tokens = samples.x.dtype == torch.int64 and wants_tokens(module, samples.shape)
    found = []
    with torch.no_grad():
        for some in rows.split(TOGETHER):
            x = samples.x[some] if tokens else samples.inputs(some, dtype)
            found.append(logits_of(module(x)))
    return torch.cat(found)


def answers(module: nn.Module, samples: Federation, rows: torch.Tensor) -> np.ndarray:
    """Shares of the classes `[M, classes]`, or what else the task asks for."""
    return samples.task.answers(outputs(module, samples, rows)).numpy()


def score(module: nn.Module, samples: Federation, rows: torch.Tensor) -> float:
    """What the plain module is judged by on these rows: the task's metric."""
    return samples.task.metric.of_client(outputs(module, samples, rows), samples.y[rows])


def write(found: np.ndarray, path: Path, task: LearningTask, names: Sequence[str] = ()) -> None:
    """A row per sample: its number and what the model says (the class, its name if `names` are not
    just numbers, how sure it is, and every class's share; a share of every label; quantities; or a
    class for each step). A Parquet file if the name ends so, else CSV."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    columns = {"row": np.arange(len(found))}
    if task.has_classes:
        said = found.argmax(1)
        numbers = [str(k) for k in range(len(names))]
        called = {"name": np.array(names, dtype=str)[said]} if list(names) != numbers else {}
        columns |= {"class": said, **called, "probability": found.max(1)}
    letter = "step" if task.per_step else "value" if task.name == "regression" else "p"
    columns |= {f"{letter}{k}": found[:, k] for k in range(found.shape[1])}
    put = parquet.write_table if path.suffix.lower() == ".parquet" else csv.write_csv
    with files.replacing(path) as draft:
        put(pa.table(columns), draft)
