"""Checks every answer before it touches the server's state: what is wrong with it, or None."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from idiolect.core import tree
from idiolect.core.task import ACCURACY, Metric
from idiolect.core.tree import Record
from idiolect.data.federation import PARTS
from idiolect.deploy import sample_kind
from idiolect.deploy.client_registry import PendingRequest
from idiolect.deploy.messages import Payload

MAX_SAMPLES = 1 << 31  # of one part of one client
MAX_CLASSES = 1 << 20
MAX_NUMBERS = 1 << 26  # of one sample
MAX_VISITS = 1 << 20  # of one sample in one round
MAX_LOGGED_NUMBERS = 4096  # of one log entry of a method, per client and round
# Beyond this many times what the others send, an update or a number of samples is no difference
# between sites any more: it would decide the result alone, or end in infinite values.
ENORMOUS = 1000.0
ENORMOUS_ALONE = 1e9  # with no other to compare: data of a large scale may give large values
FEW_SAMPLES = 1000  # no number of samples up to ENORMOUS times this one is called absurd


def wrong_reply(reply: Payload, request: PendingRequest, node: int, experiment: str) -> str | None:
    """Sender, kind, experiment, version and client must be those of the request."""
    if node != request.node:
        return f"sender is node {node}, asked was {request.node}"
    asked = {
        "kind": request.kind,
        "experiment": experiment,
        "version": request.version,
        "client": request.client,
    }
    for key, value in asked.items():
        stated = reply.meta.get(key)
        if type(stated) is not type(value) or stated != value:
            return f"{key} is {stated!r:.80}, asked was {value!r}"
    return None


def wrong_record(record: Record, expected: Record) -> str | None:
    """Names, dtypes, shapes and finite values of what the method sends up."""
    theirs, ours = tree.leaves(record), tree.leaves(expected)
    if missing := sorted(set(ours) - set(theirs)):
        return f"'{missing[0]}' is missing"
    if extra := sorted(set(theirs) - set(ours)):
        return f"{extra[0][:80]!r} was not asked for"
    for name, like in ours.items():
        leaf = theirs[name]
        if leaf.shape != like.shape:
            return f"'{name}' has shape {list(leaf.shape)}, expected {list(like.shape)}"
        if leaf.dtype != like.dtype:
            return f"'{name}' is {leaf.dtype}, expected {like.dtype}"
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            return f"'{name}' holds NaN or infinite values"
    return None


def wrong_hello(meta: dict[str, Any], clients: int) -> str | None:
    """What a client says of itself when it joins."""
    client, sizes = meta.get("client"), meta.get("sizes")
    if type(client) is not int or not 0 <= client < clients:
        return f"client id {client!r:.80} is not among 0..{clients - 1}"
    if not isinstance(sizes, dict) or set(sizes) != set(PARTS):
        return "sizes are missing"
    if any(type(sizes[p]) is not int or not 0 <= sizes[p] < MAX_SAMPLES for p in PARTS):
        return f"sizes {sizes!r:.120} are not sample counts"
    if not sizes["train"] or not sizes["test"]:
        return "no samples to train or to test with"
    shape, classes = meta.get("shape"), meta.get("classes")
    if not isinstance(shape, list) or not shape or len(shape) > 8:
        return "sample shape is missing"
    if any(type(n) is not int or n < 1 for n in shape) or math.prod(shape) > MAX_NUMBERS:
        return f"sample shape {shape!r:.80} is not one"
    if type(classes) is not int or not 0 < classes < MAX_CLASSES:
        return f"classes {classes!r:.80} is not a count"
    if not isinstance(meta.get("name"), str) or len(meta["name"]) > 80:
        return "name is missing or too long"
    if not meta["name"].isprintable():
        return "name is not printable"
    if not isinstance(meta.get("labels"), str) or len(meta["labels"]) > 64:
        return "labels are missing"
    if type(meta.get("fresh")) is not bool:
        return "fresh is missing"
    return sample_kind.wrong(meta)


def score_key(metric: Metric) -> str:
    """What a site sends of a test: correct predictions, or the value of another metric."""
    return "correct" if metric is ACCURACY else "value"


def wrong_metrics(metrics: Any, sizes: dict[str, int], metric: Metric = ACCURACY) -> str | None:
    """Correct predictions (or the metric's value) and summed loss of the parts a client has."""
    key = score_key(metric)
    parts = {p for p in ("test", "val") if sizes[p]}
    if not isinstance(metrics, dict) or set(metrics) != parts:
        return f"metrics are not of the parts {sorted(parts)}"
    for part, found in metrics.items():
        if not isinstance(found, dict) or set(found) != {key, "loss"}:
            return f"metrics of the {part} part are incomplete"
        score, loss = found[key], found["loss"]
        if reason := _wrong_score(score, sizes[part], metric):
            return reason
        if loss is not None and not _number(loss):
            return f"loss {loss!r:.40} is not a number"
    return None


def _wrong_score(score: Any, size: int, metric: Metric) -> str | None:
    if metric is ACCURACY:
        possible = _number(score) and 0 <= score <= size
        return None if possible else f"{score!r:.40} correct of {size}"
    if score is None or (_number(score) and (0 <= score <= 1 or not metric.share)):
        return None  # without a value: it is not known, as AUC of one class
    return f"{metric.name} cannot be {score!r:.40}"


def wrong_counts(meta: dict[str, Any], sizes: dict[str, int]) -> str | None:
    """What a fit says about itself besides the record."""
    samples = meta.get("samples")
    if type(samples) is not int or samples < 0:
        return f"samples {samples!r:.40} is not a count"
    if samples > sizes["train"] * MAX_VISITS:
        return f"samples {samples!r:.40} is absurd for {sizes['train']} training samples"
    if meta.get("train_loss") is not None and not _number(meta["train_loss"]):
        return "train_loss is not a number"
    logs = meta.get("logs", {})
    if not isinstance(logs, dict) or len(logs) > 64:
        return "logs are not a short dict"
    return next((f"log {name[:64]!r} is none" for name in logs if not _log(name, logs[name])), None)


def magnitudes(record: Record) -> dict[str, float]:
    """The largest absolute value of every leaf."""
    filled = {name: x for name, x in tree.leaves(record).items() if x.numel()}
    return {name: max(float(x.max()), -float(x.min())) for name, x in filled.items()}


def enormous(
    mine: Mapping[str, float], others: Sequence[Mapping[str, float]], expected: Mapping[str, float]
) -> str | None:
    """Why an update is out of all proportion to what the others sent and the server expected."""
    for name, size in mine.items():
        usual = [other[name] for other in others if name in other]
        scale = max(1.0, expected.get(name, 1.0), float(np.median(usual)) if usual else 1.0)
        if size > (ENORMOUS if usual else ENORMOUS_ALONE) * scale:
            return f"'{name}' holds {size:.3g}, usual is up to {scale:.3g}"
    return None


def absurd_size(client: int, sizes: Mapping[int, dict[str, int]]) -> str | None:
    """Why a stated number of training samples cannot be meant, by what the others state."""
    stated = sizes[client]["train"]
    others = [size["train"] for i, size in sizes.items() if i != client]
    usual = max(FEW_SAMPLES, float(np.median(others)) if others else MAX_SAMPLES)
    if stated > ENORMOUS * usual:
        return f"states {stated} training samples, the others about {int(np.median(others))}"
    return None


def _number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _log(name: str, value: Any) -> bool:
    """Whether this can be a log entry of one client: an array of finite numbers, one row."""
    if not re.fullmatch(r"[\w .:/()+-]{1,64}", name) or not isinstance(value, list):
        return False
    try:
        numbers = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    return (
        len(numbers) == 1
        and numbers.size <= MAX_LOGGED_NUMBERS
        and bool(np.isfinite(numbers).all())
    )
