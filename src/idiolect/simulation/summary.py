"""What a run came to: each round as an event, and all of them as the summary.

The one implementation, for `simulate()`, run directories and real federations.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idiolect.simulation import metrics
from idiolect.simulation.outcome import Round

Event = dict[str, Any]


def as_event(done: Round) -> Event:
    """One round as a line of events.jsonl."""
    loss = float(done.train_loss)
    event = {
        "round": done.round,
        "time": time.time(),
        **metrics.metric_section(metrics.metric_of(done.clients)),
        "accuracy": metrics.round_stats(done.clients, "before"),
        "accuracy_after": metrics.round_stats(done.clients, "after"),
        "accuracy_global": metrics.round_stats(done.clients, "global"),
        "train_loss": loss if math.isfinite(loss) else None,
        "diverged": bool(done.started) and done.round > 0 and not math.isfinite(loss),
        "seconds": done.seconds,
        "seconds_eval": done.seconds_eval,
        "samples": done.samples,
        "steps": done.steps,
        "bytes_up": done.bytes_up,
        "bytes_down": done.bytes_down,
        "started": done.started,
        "arrived": done.arrived,
        "staleness": done.staleness,
    }
    if found := metrics.measured(done.clients, done.logs):
        event["measured"] = found
    return dict(json.loads(json.dumps(event, default=lambda value: value.item())))


def summarise(
    method: str,
    seed: int,
    protocol: str,
    personal_model: bool,
    table: Mapping[str, np.ndarray],
    events: Sequence[Event],
) -> dict[str, Any]:
    """The summary of the rounds so far. `table` has a row per client and round;
    `personal_model`: whether clients hold a model of their own besides the locally trained one."""
    seconds = sum(event["seconds"] for event in events)
    training = seconds - sum(event["seconds_eval"] for event in events)
    samples = sum(event["samples"] for event in events)
    return {
        "method": method,
        "rounds": max((event["round"] for event in events), default=0),
        "seed": seed,
        **metrics.summarise(table, protocol, personal_model),
        "bytes_up": sum(event["bytes_up"] for event in events),
        "bytes_down": sum(event["bytes_down"] for event in events),
        "seconds": seconds,
        "seconds_eval": seconds - training,
        "samples": samples,
        "steps": _counted([event.get("steps") for event in events]),
        "samples_per_second": samples / training if training > 0 else None,
        "diverged": any(event["diverged"] for event in events),
        **_measured([event["measured"] for event in events if "measured" in event]),
    }


def _counted(steps: Sequence[int | None]) -> int | None:
    """Gradient steps of all rounds; None where those of a round are not known."""
    known = [count for count in steps if count is not None]
    return sum(known) if len(known) == len(steps) else None


def _measured(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What was measured, as it last was; local work as its mean over rounds."""
    if not rounds:
        return {}
    last = {name: value for one in rounds for name, value in one.items()}
    for name in ("flops", "passes"):
        if known := [one[name] for one in rounds if name in one]:
            last[name] = float(np.mean(known))
    if known := [one["guidance_accuracy"] for one in rounds if "guidance_accuracy" in one]:
        last["guidance_accuracy_best"] = max(known)
    return {"measured": last}
