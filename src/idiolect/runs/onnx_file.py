"""A client's model as an ONNX file: input `x`, normalised as the card says; output `logits`."""

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idiolect.core import files
from idiolect.core.net import logits_of
from idiolect.core.text import reason
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.models.build import wants_tokens


def check() -> None:
    """Before anything is computed: PyTorch writes ONNX through packages that it does not bring."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--onnx needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def write(module: nn.Module, federation: Federation, path: Path) -> None:
    """The plain module, for any number of samples at once."""
    shape = federation.shape
    tokens = federation.x.dtype == torch.int64 and wants_tokens(module, shape)
    dtype = torch.int64 if tokens else next(p.dtype for p in module.parameters())
    with files.replacing(path) as draft:
        try:
            with _quiet():
                program = _program(module, torch.zeros(2, *shape, dtype=dtype))
        except Exception as error:  # of any network's own operations
            raise UserError(
                "PyTorch cannot write this network as ONNX "
                f"({reason(error.__cause__ or error)}); leave out --onnx"
            ) from None
        program.save(draft)


def _program(module: nn.Module, like: Tensor) -> Any:
    return torch.onnx.export(
        _Logits(module).eval(),
        (like,),
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )


class _Logits(nn.Module):
    """A network that may give a dict, reduced to its logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.module(x))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes about itself and its listings."""
    loud = logging.getLogger("torch.onnx")
    level = loud.level
    loud.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        loud.setLevel(level)
