"""A step of training on two samples: what a network cannot do is found before the run."""

from copy import deepcopy

import torch
from torch import nn

from idiolect.core.net import logits_of
from idiolect.core.text import reason
from idiolect.errors import UserError
from idiolect.models.blocks import Shape


def check_trains(model: nn.Module, shape: Shape, what: str) -> None:
    """In training mode the model must compute in float32, and a gradient must reach a parameter.
    The model itself, and the random numbers of the caller, stay as they are."""
    if not any(p.requires_grad for p in model.parameters()):
        return  # said elsewhere, with how to mend it
    with torch.random.fork_rng(devices=[]):
        copy = deepcopy(model).float()
        x = torch.zeros(2, *shape, dtype=_input_type(copy.eval(), shape))
        copy.train()
        try:
            with torch.enable_grad():
                out = logits_of(copy(x)).sum()
                reached = out.requires_grad
                if reached:
                    out.backward()
        except Exception as error:
            raise UserError(
                f"{what} cannot be trained: {type(error).__name__}: {reason(error)}"
            ) from error
    if not reached:
        raise UserError(f"{what} cannot be trained: its output does not depend on its parameters")


def _input_type(model: nn.Module, shape: Shape) -> torch.dtype:
    """Floating point, or whole numbers (tokens) for a model that takes nothing else."""
    try:
        with torch.no_grad():
            model(torch.zeros(2, *shape))
    except (RuntimeError, IndexError):
        return torch.int64
    return torch.float32
