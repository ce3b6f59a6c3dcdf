"""FedBN: normalization layers and their statistics stay."""

from __future__ import annotations

import pytest
import torch

from idiolect import methods
from idiolect.core import tree
from tests.conftest import ENGINES, run
from tests.methods.plain import (
    CLIENTS,
    NET,
    TINY,
    NormNet,
    assert_same,
    combine,
    differ,
    seeded,
    share,
)
from tests.watched import Watched

STEP = {"lr": 0.2, "batch_size": 4}
NORM = ("body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var")


@pytest.mark.parametrize("engine", ENGINES)
def test_without_norm_layers_it_is_fedavg(engine: str) -> None:
    ours = run(methods.build({"name": "fedbn", **STEP}), TINY, NET, engine=engine)
    theirs = run(methods.build({"name": "fedavg", **STEP}), TINY, NET, engine=engine)
    assert_same(ours.personal_model(0), theirs.server_model(), tol=0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_stays_and_what_is_averaged(engine: str) -> None:
    ran = Watched({"name": "fedbn", **STEP}, TINY, seeded(NormNet), 2, engine=engine)
    assert not set(NORM) & set(ran.fits[1].up["base"])
    trained = [tree.client(ran.fits[1].trained, i) for i in range(len(CLIENTS))]
    others = [n for n in trained[0] if n not in NORM]
    mean = combine(share(CLIENTS), [{n: m[n] for n in others} for m in trained])
    for i, model in enumerate(ran.personal[1]):
        assert_same(model, mean, what="averaged")
        assert_same(model, {n: trained[i][n] for n in NORM}, tol=0.0, what="own")
    assert differ({n: trained[0][n] for n in NORM}, {n: trained[1][n] for n in NORM})


def test_fedavg_really_averages_the_statistics_fedbn_keeps() -> None:
    """Elsewhere the statistics are said to be averaged and are not."""
    ran = Watched({"name": "fedavg", **STEP}, TINY, seeded(NormNet), 1)
    stats = ran.fits[0].up["model"]["body.1.running_mean"]
    mean = torch.tensor(share(CLIENTS), dtype=stats.dtype) @ stats
    assert_same(ran.personal[0][0], {"body.1.running_mean": mean})
    assert float((stats - mean).abs().max()) > 1e-3
