"""Checks every answer before it touches the server's state: what is wrong with it, or None."""

from typing import Any

import torch

from idiolect.core import tree
from idiolect.core.tree import Record
from idiolect.data.federation import PARTS
from idiolect.deploy.client_registry import PendingRequest
from idiolect.deploy.messages import Payload


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
        if stated != value or type(stated) is not type(value):
            return f"{key} is {stated!r}, asked was {value!r}"
    return None


def wrong_record(record: Record, expected: Record) -> str | None:
    """Names, dtypes, shapes and finite values of what the method sends up."""
    theirs, ours = tree.leaves(record), tree.leaves(expected)
    if missing := sorted(set(ours) - set(theirs)):
        return f"'{missing[0]}' is missing"
    if extra := sorted(set(theirs) - set(ours)):
        return f"'{extra[0][:80]}' was not asked for"
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
        return f"client id {client!r} is not among 0..{clients - 1}"
    if not isinstance(sizes, dict) or set(sizes) != set(PARTS):
        return "sizes are missing"
    if any(type(sizes[p]) is not int or not 0 <= sizes[p] < 1 << 40 for p in PARTS):
        return f"sizes {sizes} are not sample counts"
    if not sizes["train"] or not sizes["test"]:
        return "no samples to train or to test with"
    shape, classes = meta.get("shape"), meta.get("classes")
    if not isinstance(shape, list) or not shape or len(shape) > 8:
        return "sample shape is missing"
    if any(type(n) is not int or not 0 < n < 1 << 24 for n in shape):
        return f"sample shape {shape} is not one"
    if type(classes) is not int or not 0 < classes < 1 << 24:
        return f"classes {classes!r} is not a count"
    if not isinstance(meta.get("name"), str) or len(meta["name"]) > 80:
        return "name is missing or too long"
    if not isinstance(meta.get("labels"), str) or len(meta["labels"]) > 64:
        return "labels are missing"
    if type(meta.get("fresh")) is not bool:
        return "fresh is missing"
    return None


def wrong_metrics(metrics: Any, sizes: dict[str, int]) -> str | None:
    """Correct predictions and summed loss of the parts a client has."""
    parts = {p for p in ("test", "val") if sizes[p]}
    if not isinstance(metrics, dict) or set(metrics) != parts:
        return f"metrics are not of the parts {sorted(parts)}"
    for part, found in metrics.items():
        if not isinstance(found, dict) or set(found) != {"correct", "loss"}:
            return f"metrics of the {part} part are incomplete"
        correct, loss = found["correct"], found["loss"]
        if not _number(correct) or not 0 <= correct <= sizes[part]:
            return f"{correct!r} correct of {sizes[part]}"
        if loss is not None and not _number(loss):
            return f"loss {loss!r} is not a number"
    return None


def wrong_counts(meta: dict[str, Any]) -> str | None:
    """What a fit says about itself besides the record."""
    if type(meta.get("samples")) is not int or not 0 <= meta["samples"] < 1 << 50:
        return f"samples {meta.get('samples')!r} is not a count"
    if meta.get("train_loss") is not None and not _number(meta["train_loss"]):
        return "train_loss is not a number"
    logs = meta.get("logs", {})
    if not isinstance(logs, dict) or len(logs) > 64:
        return "logs are not a short dict"
    return None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
