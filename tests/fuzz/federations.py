"""Federations of odd arrays, written down as plain values, and a simulation of one."""

from typing import Any

import numpy as np
import torch
from torch import nn

import idiolect
from idiolect.core.form import Form
from idiolect.core.task import LearningTask
from idiolect.data import Federation
from idiolect.methods import REGISTRY
from idiolect.models import build as build_model


def array(spec: Any) -> Any:
    """`{"shape": [6, 4], "dtype": "float32", "fill": 0.5}`; anything else stands for itself."""
    if isinstance(spec, dict) and "form" in spec:
        apart = {name: array(one) for name, one in spec.items() if name != "form"}
        return apart if spec["form"] == "dict" else tuple(apart.values())
    if not isinstance(spec, dict) or "dtype" not in spec:
        return spec
    dtype, shape = np.dtype(spec["dtype"]), tuple(spec["shape"])
    if dtype.kind in "SUO":
        return np.full(shape, "a", dtype)
    values = (
        np.random.default_rng(spec.get("seed", 0))
        .integers(0, spec.get("below", 3), shape)
        .astype(dtype)
    )
    if "fill" in spec and values.size and dtype.kind in "iufc":
        with np.errstate(all="ignore"):
            values.reshape(-1)[spec.get("at", 0) % values.size] = _number(spec["fill"], dtype)
    made: Any = values
    if spec.get("masked"):
        made = np.ma.masked_array(values, mask=np.arange(values.size).reshape(shape) % 2 == 0)
    if spec.get("tensor") and dtype.kind in "iufc" and dtype.itemsize <= 8:
        made = torch.as_tensor(values)
    return made


def _number(text: Any, dtype: np.dtype[Any]) -> Any:
    value = float(text)
    if dtype.kind not in "iu":
        return value
    bounds = np.iinfo(dtype)
    whole = 0 if value != value else max(min(value, 2.0**62), -(2.0**62))
    return int(min(max(int(whole), bounds.min), bounds.max))


class Apart(nn.Module):
    """Takes inputs apart; a linear layer over all of them."""

    def __init__(self, classes: int, form: Form):
        super().__init__()
        self.steps = form.steps
        width = sum(one.size for one in form.fields)
        self.head = nn.Linear(width, classes * max(1, form.steps))

    def forward(self, *given: Any) -> torch.Tensor:
        parts = given[0].values() if isinstance(given[0], dict) else given
        flat = torch.cat([one.reshape(len(one), -1).to(self.head.weight) for one in parts], 1)
        out: torch.Tensor = self.head(flat)
        return out.reshape(len(out), self.steps, -1) if self.steps else out


def run(spec: dict[str, Any]) -> None:
    """Build the federation and simulate two rounds of it."""
    clients = [
        {k: array(v) for k, v in client.items()} if isinstance(client, dict) else client
        for client in spec["clients"]
    ]
    options = dict(spec.get("options", {}))
    if spec.get("metric"):
        options["task"] = LearningTask(options["task"], spec["metric"])
    federation = Federation.from_arrays(clients, **options)
    form = federation.form
    model: nn.Module = Apart(federation.classes, form)
    if not form.fields:
        section = {"name": "gru" if form.steps else "linear"}
        model = build_model(section, federation.shape, federation.classes, form=form)
    method = REGISTRY[spec.get("method", "fedavg")]()
    idiolect.simulate(method, federation, model, rounds=2, **spec.get("simulate", {}))
