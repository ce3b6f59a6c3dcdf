"""What is wrong or odd in a federation's data, in lines people read before they train."""

import hashlib
from collections import Counter
from typing import Any

import torch

from idiolect.data.federation import PARTS, Federation

FEW = 8  # clients or classes that a line names


def findings(federation: Federation) -> dict[str, Any]:
    """Leaks between training and test samples, classes of one sample, classes that a client is
    tested on and never sees in training: JSON-able, with `lines` that say it in words."""
    hashes = _hashes(federation)
    train = Counter(hashes[k] for rows in federation.train for k in rows.tolist())
    leaks: dict[str, int] = {}
    own_leaks = 0
    for i, rows in enumerate(federation.test):
        mine = {hashes[k] for k in federation.train[i].tolist()}
        tested = [hashes[k] for k in rows.tolist()]
        own_leaks += sum(one in mine for one in tested)
        if found := sum(one in train for one in tested):
            leaks[federation.names[i]] = found
    if not federation.task.has_classes:
        return {"leaks": leaks, "leaks_of_own": own_leaks, "lines": _leak_lines(federation, leaks)}
    counts = torch.bincount(federation.y[_used(federation)], minlength=federation.classes)
    single = [_class_name(federation, c) for c in (counts == 1).nonzero()[:, 0].tolist()]
    empty = int((counts == 0).sum())
    unknown = _unknown(federation)
    lines = _leak_lines(federation, leaks)
    if single:
        lines.append(f"classes of one sample: {_few(single)}")
    if empty:
        lines.append(f"{empty} of {federation.classes} classes have no sample")
    if unknown:
        lines.append(f"tested on classes they never train on: {_few(unknown)}")
    return {
        "leaks": leaks,
        "leaks_of_own": own_leaks,
        "one_sample_classes": single,
        "empty_classes": empty,
        "tested_on_unknown_classes": unknown,
        "lines": lines,
    }


def _leak_lines(federation: Federation, leaks: dict[str, int]) -> list[str]:
    if not leaks:
        return ["no test sample is also a training sample"]
    total, share = sum(leaks.values()), sum(map(len, federation.test))
    named = _few([f"{name} {n}" for name, n in leaks.items()])
    return [f"{total} of {share} test samples are also training samples: {named}"]


def _hashes(federation: Federation) -> list[bytes]:
    """Of every sample's values; the label is no part of it."""
    x = federation.x.contiguous().numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in x]


def _used(federation: Federation) -> torch.Tensor:
    return torch.cat([rows for part in PARTS for rows in getattr(federation, part)])


def _unknown(federation: Federation) -> list[str]:
    names = []
    for i, rows in enumerate(federation.test):
        known = set(federation.y[federation.train[i]].tolist())
        if not set(federation.y[rows].tolist()) <= known:
            names.append(federation.names[i])
    return names


def _class_name(federation: Federation, number: int) -> str:
    names = federation.info.get("class_names") or ()
    return str(names[number]) if number < len(names) else str(number)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
