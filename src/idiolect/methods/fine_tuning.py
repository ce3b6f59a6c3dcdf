"""Fine-tuning, around any method: FedAvg-P, FedProx-P, and after any other (SPFL's Table 8).

A client trains the model it would predict with a little further on its own data, predicts with the
result, and keeps nothing of it: the method itself goes on unchanged. `fine_tuned(SPFL)` is SPFL
with that added; every method's name takes the suffix `_ft`.

As in SPFL's Table 8 (whose program this follows): plain SGD with weight decay 1e-4; `ft_steps` is a
number of mini-batches but never more than one epoch, so that on 2,400 samples steps of 20 and of
100 are the same; grid ft_batch_size {64, 128}, ft_lr {1e-2, 1e-3, 1e-4}, ft_steps {10, 20, 100}.
There the model of the last round is tuned; here it is whenever a client is tested, also before the
first round.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal, cast

from idiolect.core.method import Local, Method, Tree, cross_entropy, hyper
from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedprox import FedProx

SUFFIX = "_ft"


@dataclass(frozen=True)
class FineTuning(Method):
    """What fine-tuning adds to a method: its settings and the work after delivery."""

    ft_lr: float = hyper(0.01, "fine-tuning: learning rate", above=0)
    ft_epochs: int = hyper(1, "fine-tuning: passes over data (0: none)", min=0, needs="ft_steps=0")
    ft_steps: int = hyper(0, "fine-tuning: mini-batches, at most an epoch (0: ft_epochs)", min=0)
    ft_batch_size: int | Literal["full"] = hyper(64, "fine-tuning: batch size, or 'full'", min=1)
    ft_weight_decay: float = hyper(1e-4, "fine-tuning: L2 penalty", min=0)

    adapt_only = frozenset(("ft_lr", "ft_epochs", "ft_steps", "ft_batch_size", "ft_weight_decay"))

    def adapt(self, params: Tree, local: Local) -> Tree:
        params = super().adapt(params, local)
        if not (self.ft_steps or self.ft_epochs):
            return params
        return local.sgd(
            cross_entropy,
            params,
            lr=self.ft_lr,
            epochs=1 if self.ft_steps else self.ft_epochs,
            most=self.ft_steps,
            batch_size=self.ft_batch_size,
            weight_decay=self.ft_weight_decay,
            purpose="fine-tuning",
        ).params


@cache
def fine_tuned(base: type[Method]) -> type[Method]:
    """The method `base`, tested after fine-tuning."""
    if issubclass(base, FineTuning):
        raise UserError(f"'{base.name}' is fine-tuned already; leave out one '{SUFFIX}'")
    facts = {
        "__doc__": f"{base.__doc__} Every client fine-tunes before it predicts.",
        "__module__": __name__,
        "name": base.name + SUFFIX,
        "personal_part": f"the whole model, fine-tuned (before that: {base.personal_part})",
    }
    kind = type(f"{base.__name__}FineTuned", (FineTuning, base), facts)
    return cast(type[Method], dataclass(frozen=True)(kind))


FedAvgFineTuned = fine_tuned(FedAvg)
FedProxFineTuned = fine_tuned(FedProx)
