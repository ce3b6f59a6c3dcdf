"""Protocols: how each paper turns its clients' accuracies into the one number it quotes.

Kept apart from the numbers themselves (metrics.py), so that the command line can name the protocols
without importing NumPy.
"""

from dataclasses import dataclass
from typing import Literal

from idiolect.errors import did_you_mean

Series = Literal["before", "after", "global"]
ProtocolName = Literal["default", "spfl", "plga", "feddwa", "pflego", "fedas"]


@dataclass(frozen=True)
class Protocol:
    """How a paper turns accuracies into its one number."""

    series: Series
    weighting: Literal["mean", "pooled"]
    when: Literal["best", "last", "last10", "selected"]
    clients: Literal["all", "started", "next"]
    what: str

    @property
    def rounds_at_end(self) -> int:
        """The last rounds that are tested, however rarely the others are."""
        return 10 if self.when == "last10" else 1


PROTOCOLS: dict[str, Protocol] = {
    "default": Protocol(
        "before", "mean", "selected", "all",
        "mean over clients of the delivered personal model, in the round chosen on validation data"
        " (the last round when there is none)",
    ),
    "spfl": Protocol(
        "before", "mean", "last", "all",
        "mean over clients of the personal model after mixing, last round",
    ),
    "plga": Protocol(
        "before", "mean", "last", "all",
        "mean over clients of the client's model (the locally trained one for methods without a"
        " personal model), last round; `server` is the global model on all test data",
    ),
    "feddwa": Protocol(
        "before", "pooled", "best", "next",
        "pooled over the clients selected in a round, of the model they received, before training;"
        " best round",
    ),
    "pflego": Protocol(
        "after", "pooled", "last10", "started",
        "pooled over the clients sampled in a round, after local training; mean of the last 10"
        " rounds",
    ),
    "fedas": Protocol(
        "after", "pooled", "best", "all",
        "pooled over all clients, each with its own last trained model; best round, the starting"
        " point included",
    ),
}  # fmt: skip


def protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise did_you_mean(name, PROTOCOLS, "protocol")
    return PROTOCOLS[name]
