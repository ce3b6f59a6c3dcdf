"""What it costs to train many models instead of one."""

import numpy as np
import torch
import torch.nn.functional as F

from idiolect import models
from idiolect.bench.job import (
    Job,
    Row,
    dirichlet,
    measure,
    median_time,
    random_federation,
    random_pool,
)
from idiolect.bench.nets import captured
from idiolect.data import Federation

BATCH = 16


def tax(device: str, quick: bool) -> list[Row]:
    """A stacked epoch of K models, batch 16 each, against one model on the same samples in
    batches of 16 K: clients of equal size, and 20 clients with class shares from Dir(0.1)."""
    k = 4 if quick else 100
    equal = np.full(k, 36 if quick else 640)
    pool = random_pool(400 if quick else 40_000, (3, 32, 32))
    cases = {
        f"{k} x {BATCH}": random_federation(equal, (3, 32, 32), train_share=0.9),
        "20, Dir(0.1)": dirichlet(pool, test_share=0.1),
    }
    rows = []
    for case, federation in cases.items():
        job = Job(
            {},
            {"name": "local", "batch_size": BATCH},
            federation,
            rounds=1 if quick else 7,
            options={"eval_every": 1000},
        )
        stacked = measure(job, device)["seconds"]
        alone = _centralized(federation, device, BATCH * federation.n_clients)
        sizes = federation.sizes("train")
        rows.append(
            {
                "case": case,
                "samples": int(sizes.sum()),
                "largest": int(sizes.max()),
                "stacked_s": stacked,
                "centralized_s": alone,
                "tax": stacked / alone,
            }
        )
    return rows


def _centralized(federation: Federation, device: str, batch: int) -> float:
    """One epoch of one model over all training samples, in CUDA graphs where there is a GPU."""
    module = models.build({"name": "fedas_cnn"}, federation.shape, 10, 0).to(device)
    weights: list[torch.Tensor] = list(module.parameters())
    x, y = federation.x.to(device), federation.y.to(device)
    rows = torch.cat(federation.train).to(device)
    batch = min(batch, len(rows))
    at = torch.zeros(batch, dtype=torch.int64, device=device)

    def step() -> None:
        loss = F.cross_entropy(module(x[at].float() / 127.5 - 1), y[at])
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, grads, alpha=-0.005)

    replay = captured(step) if device == "cuda" else step
    cuts = [c for c in rows.split(batch) if len(c) == batch]

    def epoch() -> None:
        for cut in cuts:
            at.copy_(cut)
            replay()

    # The last partial batch is left out: charge it at the same rate.
    return median_time(epoch, device) * len(rows) / sum(len(c) for c in cuts)
