"""A metric of the user's own: a function of outputs and targets that gives a value per sample.

    def within_one(outputs, targets):
        return (outputs - targets).abs().amax(1) <= 1

    within_one.lower_is_better = False      # the default

The number of a client is the mean over its samples. In tables it is called by the function's name.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor

from idiolect.core import own_code
from idiolect.core.task import (
    OWN_METRICS,
    REMEMBERED,
    Metric,
    is_ours,
    mean_over_samples,
    metric_of,
)
from idiolect.errors import UserError


def admit(name: str, allow_code: Collection[str]) -> None:
    """Load the function if `allow_code` names it; from now on its whole name means it."""
    own_code.require(name, allow_code, "data.metric")
    function = own_code.load_any(name, "metric", allow_code)
    OWN_METRICS[own_code.whole(name)] = metric_of(function, own_code.called(name))


def taken(function: Callable[..., Tensor]) -> str:
    """The name under which a function that Python code gave is known from now on."""
    called = str(getattr(function, "__name__", ""))
    if not called.isidentifier():
        raise UserError("a metric needs a name for tables; write it with def")
    OWN_METRICS[f"python:{called}"] = metric_of(function, called)
    return f"python:{called}"


def remember(section: Any) -> None:
    """What a run says of its metric, where it is one that is not known here: its code is not needed
    to read the numbers."""
    if not isinstance(section, Mapping):
        return
    name, better = section.get("name"), section.get("better")
    if isinstance(name, str) and name.isidentifier() and not is_ours(name):
        REMEMBERED[name] = Metric(name, _unknown, mean_over_samples, better == "lower", False)


def _unknown(outputs: Tensor, targets: Tensor) -> Tensor:
    raise UserError("the metric of this run is own code, which is not loaded to read it")
