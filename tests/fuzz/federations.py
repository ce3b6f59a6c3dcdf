"""Federations of odd arrays, written down as plain values, and a simulation of one."""

from typing import Any

import numpy as np
import torch

import idiolect
from idiolect.data import Federation
from idiolect.methods import REGISTRY
from idiolect.models import build as build_model


def array(spec: Any) -> Any:
    """`{"shape": [6, 4], "dtype": "float32", "fill": 0.5}`; anything else stands for itself."""
    if not isinstance(spec, dict) or "dtype" not in spec:
        return spec
    dtype, shape = np.dtype(spec["dtype"]), tuple(spec["shape"])
    if dtype.kind in "SUO":
        return np.full(shape, "a", dtype)
    values = np.random.default_rng(spec.get("seed", 0)).integers(0, 3, shape).astype(dtype)
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


def run(spec: dict[str, Any]) -> None:
    """Build the federation and simulate two rounds of it."""
    clients = [
        {k: array(v) for k, v in client.items()} if isinstance(client, dict) else client
        for client in spec["clients"]
    ]
    federation = Federation.from_arrays(clients, **spec.get("options", {}))
    model = build_model({"name": "linear"}, federation.shape, federation.classes)
    method = REGISTRY[spec.get("method", "fedavg")]()
    idiolect.simulate(method, federation, model, rounds=2, **spec.get("simulate", {}))
