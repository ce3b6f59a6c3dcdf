"""What a client's model says about samples: the plain module, and a table of its answers."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from idiolect.core import files
from idiolect.core.net import logits_of
from idiolect.data import Federation
from idiolect.models.build import wants_tokens

FORMS = (".csv", ".parquet")
TOGETHER = 512  # samples in one forward pass


def probabilities(module: nn.Module, samples: Federation, rows: torch.Tensor) -> np.ndarray:
    """`[M, classes]` of these rows, normalised as the federation says."""
    dtype = next(p.dtype for p in module.parameters())
    tokens = samples.x.dtype == torch.int64 and wants_tokens(module, samples.shape)
    found = []
    with torch.no_grad():
        for some in rows.split(TOGETHER):
            x = samples.x[some] if tokens else samples.inputs(some, dtype)
            found.append(logits_of(module(x)).softmax(1))
    return torch.cat(found).numpy()


def accuracy(module: nn.Module, samples: Federation, rows: torch.Tensor) -> float:
    """Share of these rows that the plain module gets right."""
    answers = probabilities(module, samples, rows).argmax(1)
    return float((answers == samples.y[rows].numpy()).mean())


def write(found: np.ndarray, path: Path) -> None:
    """A row per sample: its number, the class, how sure the model is, and every class's share; a
    Parquet file if the name ends so, else CSV."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    columns = {
        "row": np.arange(len(found)),
        "class": found.argmax(1),
        "probability": found.max(1),
        **{f"p{k}": found[:, k] for k in range(found.shape[1])},
    }
    put = parquet.write_table if path.suffix.lower() == ".parquet" else csv.write_csv
    with files.replacing(path) as draft:
        put(pa.table(columns), draft)
