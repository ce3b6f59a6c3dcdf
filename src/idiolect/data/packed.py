"""Several inputs of a sample side by side in one tensor; `core/form.py` cuts them out again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from idiolect.core.form import PLAIN, Field, Form
from idiolect.data.client_arrays import PARTS, as_tensor
from idiolect.errors import UserError

LARGEST = 1 << 24  # float32 holds all whole numbers up to here


def pack(inputs: Mapping[str, Any], by_name: bool, what: str) -> tuple[Tensor, Form]:
    """The inputs of M samples, each an array `[M, …]`, as float32 `[M, D]`. Whole numbers stay
    whole, uint8 is divided by 255."""
    if not inputs:
        raise UserError(f"{what} has no inputs")
    columns: list[Tensor] = []
    fields: list[Field] = []
    codes: list[int] = []
    rows = 0
    for name, value in inputs.items():
        part = as_tensor(value, f"{what}: {name}")
        if part.ndim < 1 or part.is_complex() or 0 in part.shape[1:]:
            raise UserError(f"{what}: {name} must be numbers [M, …], got shape {list(part.shape)}")
        if columns and len(part) != rows:
            raise UserError(f"{what}: {name} has {len(part)} samples, {fields[0].name} {rows}")
        whole = not part.is_floating_point() and part.dtype != torch.uint8
        part = part.to(torch.int64) if whole else part
        if whole and len(part) and max(int(part.max()), -int(part.min())) >= LARGEST:
            raise UserError(f"{what}: {name} has whole numbers of {LARGEST} or more; use fractions")
        rows = len(part)
        counted = whole and rows and int(part.min()) >= 0
        codes.append(int(part.max()) + 1 if counted else 0)
        fields.append(Field(str(name), tuple(part.shape[1:]), whole))
        flat = part.reshape(rows, fields[-1].size).to(torch.float32)
        columns.append(flat / 255 if part.dtype == torch.uint8 else flat)
    return torch.cat(columns, 1), Form(tuple(codes), fields=tuple(fields), by_name=by_name)


def one_tensor(i: int, client: Mapping[str, Any], form: Form) -> tuple[Mapping[str, Any], Form]:
    """A client's arrays with inputs that come as a dict or a tuple put together; their form, which
    must be that of the clients before."""
    made = dict(client)
    for part in PARTS:
        given = made.get(f"x_{part}")
        if not isinstance(given, Mapping | tuple):
            continue
        named = given if isinstance(given, Mapping) else {str(k): v for k, v in enumerate(given)}
        packed, found = pack(named, isinstance(given, Mapping), f"client {i}: x_{part}")
        if form.fields and (form.fields, form.by_name) != (found.fields, found.by_name):
            raise UserError(
                f"client {i}: the inputs in x_{part} differ in name, shape or type from those"
                " before; bring all clients to one form"
            )
        made[f"x_{part}"] = packed
        codes = zip(form.codes or found.codes, found.codes, strict=True)
        form = replace(found, codes=tuple(max(pair) for pair in codes))
    return made, form


def checked_form(form: Form, x: Tensor, steps: int) -> Form:
    """The form of these samples, complete; an error where it does not fit them."""
    width = x.shape[1]
    if not isinstance(form, Form):
        raise UserError(f"form must be a Form, got {type(form).__name__}")
    if form.fields and (x.ndim != 2 or sum(one.size for one in form.fields) != width):
        raise UserError(f"x has {width} columns, which is not what its inputs take together")
    if form == PLAIN and x.dtype == torch.int64 and x.numel() and int(x.min()) >= 0:
        form = replace(form, codes=(int(x.max()) + 1,))
    if form.codes and not form.fields:
        if len(form.codes) not in (1, width) or min(form.codes) < 0:
            raise UserError(f"codes must be one number or one for each of {width} columns")
        counts = torch.tensor(form.codes)
        most = torch.where(counts > 0, counts, torch.iinfo(torch.int64).max)
        most = most.reshape(-1, *[1] * (x.ndim - 2)) if len(counts) > 1 else most
        bad = (counts > 0).reshape(most.shape) & ((x < 0) | (x >= most) | (x != x.floor()))
        if bool(bad.any()):
            raise UserError(f"x holds codes outside 0..{max(form.codes) - 1}; number them from 0")
    return replace(form, steps=steps)
