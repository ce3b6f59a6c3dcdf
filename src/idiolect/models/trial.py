"""A step of training on two samples: what a network cannot do is found before the run."""

from copy import deepcopy

import torch
from torch import nn

from idiolect.core.net import logits_of
from idiolect.core.text import reason
from idiolect.errors import UserError
from idiolect.models.blocks import Shape


def check_trains(model: nn.Module, shape: Shape, what: str) -> None:
    """In training mode the model must compute in float32, a gradient must reach a parameter, and
    what the model remembers must be leaves of its tree: the rest is one for all clients. The model
    itself, and the random numbers of the caller, stay as they are."""
    if not any(p.requires_grad for p in model.parameters()):
        return  # said elsewhere, with how to mend it
    with torch.random.fork_rng(devices=[]):
        try:
            copy = deepcopy(model).float()
        except Exception as error:  # PyTorch's hooks of old for weight_norm and spectral_norm
            raise UserError(
                f"{what} cannot be copied ({reason(error)}); if it uses weight_norm or"
                " spectral_norm of torch.nn.utils, take those of torch.nn.utils.parametrizations"
            ) from error
        x = torch.zeros(2, *shape, dtype=_input_type(copy.eval(), shape))
        copy.train()
        constants = _constants(copy)
        before = {name: value.clone() for name, value in constants.items()}
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
    now = _constants(copy)
    if moved := [name for name, value in before.items() if not torch.equal(value, now[name])]:
        raise UserError(
            f"{what} changes its buffer '{moved[0]}' in training, and all clients would share it;"
            " only buffers of floating point that are saved are each client's own"
        )


def _constants(model: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that are no leaves; BatchNorm's counter is left out, as nothing reads it."""
    saved = model.state_dict()
    return {
        name: value
        for name, value in model.named_buffers()
        if not (value.is_floating_point() and name in saved)
        and not name.endswith("num_batches_tracked")
    }


def _input_type(model: nn.Module, shape: Shape) -> torch.dtype:
    """Floating point, or whole numbers (tokens) for a model that takes nothing else."""
    try:
        with torch.no_grad():
            model(torch.zeros(2, *shape))
    except (RuntimeError, IndexError):
        return torch.int64
    return torch.float32
