"""Builds a Federation from the sections of a config, and describes one."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from idiolect.core import own_code, own_metric, rng
from idiolect.data import datasets, splits
from idiolect.data.federation import PARTS, Federation
from idiolect.data.own.function import OwnFunction
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Rows, Split, cut
from idiolect.errors import UserError


def build(
    data: dict[str, Any],
    split: dict[str, Any],
    seed: int = 0,
    allow_code: Collection[str] = (),
) -> Federation:
    """The federation of a run. The same sections and seed give the same clients. Code of the
    user's own is loaded only if `allow_code` names it.

    >>> fed = build({"name": "digits"}, {"name": "dirichlet", "clients": 10, "alpha": 0.3}, 0)
    """
    how, dataset = splits.split(split, allow_code), datasets.dataset(data)
    seed = seed.item() if isinstance(seed, np.generic) else seed
    rng.keyed(seed)  # like the lines above, so that a mistake is found before the data is read
    if isinstance(metric := data.get("metric"), str) and own_code.is_own(metric):
        own_metric.admit(metric, allow_code)
    if isinstance(dataset, OwnFunction):
        if how.name != "own":
            raise UserError(f"data '{dataset.name}' brings its clients; leave --split out")
        return with_validation(dataset.federation(seed, allow_code), how.val_share, seed)
    pool = dataset.load()
    return divide(pool, how, seed, {**dataset.resolved(), "where": pool.where})


def with_validation(given: Federation, share: float, seed: int) -> Federation:
    """Clients that came without validation samples keep a share of their training samples."""
    if not share or bool(given.sizes("val").any()):
        return given
    parts = []
    for i, rows in enumerate(given.train):
        kept, rest = cut(rng.keyed(seed, "val", i).permutation(len(rows)), share)
        parts.append((rows[np.sort(kept)], rows[np.sort(rest)]))
    train, val = zip(*parts, strict=True)
    return replace(given, train=train, val=val)


def divide(pool: Pool, how: Split, seed: int, source: dict[str, Any] | None = None) -> Federation:
    """The federation of a pool whose samples come to clients as the split says."""
    shares = how.shares(pool, seed)
    y, classes = how.labels(pool, shares)
    unseen = how.held_out(len(shares), seed)
    mean, std = pool.mean, pool.std
    if pool.standardize:
        mean, std = _statistics(pool, [s.train for i, s in enumerate(shares) if i not in unseen])
    return Federation(
        x=torch.from_numpy(np.ascontiguousarray(pool.x)),
        y=torch.from_numpy(np.ascontiguousarray(y)),
        train=tuple(torch.from_numpy(s.train) for s in shares),
        val=tuple(torch.from_numpy(s.val) for s in shares),
        test=tuple(torch.from_numpy(s.test) for s in shares),
        classes=classes,
        task=pool.task,
        form=pool.form,
        mean=mean,
        std=std,
        names=tuple(s.name for s in shares),
        unseen=unseen,
        info={"source": source, "split": how.resolved(), "seed": seed, **_names(pool)},
    )


def _statistics(pool: Pool, train: Sequence[Rows]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of the samples that are trained on."""
    x = pool.x[np.concatenate(train)].astype(np.float64)
    over = (0, *range(2, x.ndim))
    mean, std = x.mean(over), x.std(over)
    plain = np.array(pool.form.quantities(len(mean)))  # codes of categories stay what they are
    mean, std = np.where(plain, mean, 0.0), np.where(plain, std, 1.0)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def _names(pool: Pool) -> dict[str, Any]:
    return {"class_names": list(pool.class_names)} if pool.class_names else {}


def describe(federation: Federation) -> dict[str, Any]:
    """Sizes and class histograms of every client, JSON-able."""
    held_out = set(federation.unseen)
    clients = []
    for i, name in enumerate(federation.names):
        rows = {part: getattr(federation, part)[i] for part in PARTS}
        has = federation.task.has_classes
        histogram = {p: _histogram(federation.y[rows[p]]) if has else {} for p in PARTS}
        clients.append(
            {
                "client": i,
                "name": name,
                **{part: len(rows[part]) for part in PARTS},
                "classes": len(histogram["train"]),
                "histogram": histogram,
                "unseen": i in held_out,
            }
        )
    return {
        "n_clients": federation.n_clients,
        "samples": {part: int(federation.sizes(part).sum()) for part in PARTS},
        "classes": federation.classes,
        "task": federation.task.name,
        "shape": list(federation.shape),
        "mean": federation.mean and list(federation.mean),
        "std": federation.std and list(federation.std),
        "unseen": list(federation.unseen),
        "info": federation.info,
        "clients": clients,
    }


def _histogram(y: torch.Tensor) -> dict[str, int]:
    """Label -> number of samples, for the labels that occur."""
    labels, counts = torch.unique(y, return_counts=True)
    return {str(int(k)): int(n) for k, n in zip(labels, counts, strict=True)}
