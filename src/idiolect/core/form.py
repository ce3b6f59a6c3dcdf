"""What the numbers of a sample mean to a network, where their shape and type do not say it.

Every sample is one tensor, so that there is one way of data. A network that wants several inputs,
by name or in order, gets them cut out of that tensor just before its forward pass.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

MARK = "_idiolect_form"  # on a module that cuts its inputs out of one tensor
EXACT = "exact_input"  # on a module whose inputs hold codes: they are never rounded


@dataclass(frozen=True)
class Field:
    """One of several inputs of a network."""

    name: str
    shape: tuple[int, ...]  # of one sample; (): a single value
    whole: bool  # whole numbers, int64 for the network

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Form:
    """`codes`: how many values whole numbers have, one number for all positions (tokens), one per
    column, or one for each of several inputs; 0 for a quantity. `padded`: 0 fills short sequences
    up. `steps`: outputs of a sample, 0 if it has one. `fields`: the inputs that one tensor holds,
    handed over `by_name` (a dict) or in order."""

    codes: tuple[int, ...] = ()
    padded: bool = False
    steps: int = 0
    fields: tuple[Field, ...] = ()
    by_name: bool = True

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "Form":
        """From what JSON holds of it."""
        fields = tuple(
            Field(one["name"], tuple(one["shape"]), one["whole"]) for one in plain["fields"]
        )
        return cls(**{**plain, "codes": tuple(plain["codes"]), "fields": fields})

    def as_plain(self) -> dict[str, Any]:
        """What `read` reads: lists in place of tuples, as in JSON."""
        fields = [{**asdict(one), "shape": list(one.shape)} for one in self.fields]
        return {**asdict(self), "codes": list(self.codes), "fields": fields}

    def quantities(self, width: int) -> list[bool]:
        """Which of the columns of a sample are quantities and no codes."""
        if self.fields:
            return [not one.whole for one in self.fields for _ in range(one.size)]
        each = self.codes * width if len(self.codes) == 1 else self.codes or (0,) * width
        return [count == 0 for count in each]

    def attached(self, model: nn.Module) -> nn.Module:
        """The model, or a copy of it that takes one tensor and sees several inputs."""
        if not self.fields or getattr(model, MARK, None) == self:
            return model
        model = deepcopy(model)
        model.register_forward_pre_hook(Inputs(self))
        setattr(model, MARK, self)
        setattr(model, EXACT, True)
        return model


@dataclass(frozen=True)
class Inputs:
    """Cuts the inputs of a network out of the one tensor that holds them."""

    form: Form

    def __call__(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(given) != 1 or not isinstance(given[0], Tensor):
            return given  # somebody who has the inputs apart
        parts = self._parts(given[0], _type_of(module))
        return (parts,) if self.form.by_name else tuple(parts.values())

    def _parts(self, x: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        fields = self.form.fields
        ends = list(accumulate(one.size for one in fields))
        parts = {}
        for one, end in zip(fields, ends, strict=True):
            part = x[..., end - one.size : end].to(torch.int64 if one.whole else dtype)
            parts[one.name] = part.reshape(*part.shape[:-1], *one.shape)
        return parts


def _type_of(module: nn.Module) -> torch.dtype:
    floats = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(floats, torch.float32)


PLAIN = Form()
