"""A metric of the user's own: a function of outputs and targets that gives a value per sample.

    def within_one(outputs, targets):
        return (outputs - targets).abs().amax(1) <= 1

    within_one.lower_is_better = False      # the default

The number of a client is the mean over its samples. In tables it is called by the function's name.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from idiolect.core import own_code
from idiolect.core.task import METRICS, OWN_METRICS, REMEMBERED, Metric, mean_over_samples
from idiolect.errors import UserError


def admit(name: str, allow_code: Collection[str]) -> None:
    """Load the function if `allow_code` names it; from now on its whole name means it."""
    own_code.require(name, allow_code, "data.metric")
    function = own_code.load_any(name, "metric", allow_code)
    called = own_code.called(name)
    if isinstance(function, type) or not callable(function):
        raise UserError(f"metric '{called}' is no function of outputs and targets")
    if any(called in known for known in METRICS.values()):
        raise UserError(f"metric '{called}' has the name of one that Idiolect has; rename it")

    def per_sample(outputs: Tensor, targets: Tensor) -> Tensor:
        value = function(outputs, targets)
        if not isinstance(value, Tensor) or value.shape != (len(outputs),):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(
                f"metric '{called}' must give a tensor with one value per sample, got {got}"
            )
        return value.to(torch.float64)[:, None]

    lower = bool(getattr(function, "lower_is_better", False))
    OWN_METRICS[own_code.whole(name)] = Metric(called, per_sample, mean_over_samples, lower, False)


def remember(section: Any) -> None:
    """What a run says of its metric, where it is one that is not known here: its code is not needed
    to read the numbers."""
    if not isinstance(section, Mapping):
        return
    name, better = section.get("name"), section.get("better")
    known = isinstance(name, str) and any(name in one for one in METRICS.values())
    if isinstance(name, str) and name.isidentifier() and not known:
        REMEMBERED[name] = Metric(name, _unknown, mean_over_samples, better == "lower", False)


def _unknown(outputs: Tensor, targets: Tensor) -> Tensor:
    raise UserError("the metric of this run is own code, which is not loaded to read it")
