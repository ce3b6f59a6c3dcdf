"""What is wrong or odd in a federation's data, in lines people read before they train."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from idiolect.data.federation import PARTS, Federation
from idiolect.data.own.own_files import TABLES

FEW = 8  # clients or classes that a line names
FEW_TESTS = 10  # below so many test samples one moves a client's accuracy by more than ten points
LARGE = 10  # inputs and targets beyond this make steps that no usual learning rate suits


def findings(federation: Federation) -> dict[str, Any]:
    """Leaks between training and test samples, clients with few test samples, inputs that should be
    standardised, classes of one sample, clients of one class, classes that a client is tested on
    and never sees in training: JSON-able, with `lines` that say it in words."""
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
    few = {federation.names[i]: len(rows) for i, rows in enumerate(federation.test)}
    few = {name: n for name, n in few.items() if n < FEW_TESTS}
    large = unscaled(federation)
    lines = _leak_lines(federation, leaks)
    if few:
        named = _few([f"{name} {n}" for name, n in sorted(few.items(), key=lambda one: one[1])])
        lines.append(f"fewer than {FEW_TESTS} test samples, so that each weighs much: {named}")
    if large:
        lines.append(f"inputs {unscaled_told(large)}")
    reach = float(federation.y.abs().max()) if federation.task.name == "regression" else 0.0
    if reach > LARGE:
        lines.append(
            f"targets reach {reach:.4g}, which makes large errors and steps: write the label in a"
            " larger unit"
        )
    common: dict[str, Any] = {
        "leaks": leaks,
        "leaks_of_own": own_leaks,
        "few_test_samples": few,
        "largest_input": large,
        "largest_target": reach or None,
    }
    if not federation.task.has_classes:
        return {**common, "lines": lines}
    counts = torch.bincount(federation.y[_used(federation)], minlength=federation.classes)
    single = [_class_name(federation, c) for c in (counts == 1).nonzero()[:, 0].tolist()]
    empty = int((counts == 0).sum())
    unknown = _unknown(federation)
    alone = _one_class(federation)
    if single:
        lines.append(f"classes of one sample: {_few(single)}")
    if alone:
        lines.append(f"train on one class only: {_few(alone)}")
    if empty:
        lines.append(f"{empty} of {federation.classes} classes have no sample")
    if unknown:
        lines.append(f"tested on classes they never train on: {_few(unknown)}")
    return {
        **common,
        "one_sample_classes": single,
        "one_class_clients": alone,
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


def _one_class(federation: Federation) -> list[str]:
    """Clients with several training samples, all of one class."""
    return [
        federation.names[i]
        for i, rows in enumerate(federation.train)
        if len(rows) > 1 and len(torch.unique(federation.y[rows])) == 1
    ]


def unscaled(federation: Federation) -> float | None:
    """The largest quantity of a table of the user's own, where it is large and not standardised."""
    source = federation.info.get("source") or {}
    table = Path(str(source.get("name"))).suffix.lower() in TABLES
    if not table or source.get("standardize", True) or len(federation.shape) != 1:
        return None
    quantities = [k for k, one in enumerate(federation.form.quantities(federation.shape[0])) if one]
    if federation.form.padded or federation.form.fields or not quantities:
        return None
    largest = float(federation.x[_used(federation)][:, quantities].abs().max())
    return largest if largest > LARGE else None


def unscaled_told(largest: float) -> str:
    return f"reach {largest:.4g} and are not standardised: add --set data.standardize=true"


def _class_name(federation: Federation, number: int) -> str:
    names = federation.info.get("class_names") or ()
    return str(names[number]) if number < len(names) else str(number)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
