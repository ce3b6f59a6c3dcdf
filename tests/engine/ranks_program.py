"""Problems that several ranks and one must solve alike. As a program it is one of the ranks:
`torchrun --nproc-per-node 2 -m tests.engine.ranks_program OUT CASE…` writes what each rank ended
with, and run directories if no case is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from idiolect.engine.ranks import joined
from idiolect.runs import config as settings
from idiolect.runs import execute as runs
from idiolect.simulation.outcome import Round
from idiolect.simulation.side_by_side import Sweep
from idiolect.simulation.simulation import Simulation
from tests.conftest import SmallNet, ragged_federation, simulation
from tests.test_every_method import METHODS, begin, model, small

ROUNDS = 3
RUN = {"rounds": 4, "checkpoint_every": 2, "dtype": "float64", "device": "cpu"}
SPLIT = {"name": "dirichlet", "clients": 5, "alpha": 0.5, "unseen": 1}


def solve(name: str, **options: Any) -> dict[str, Tensor]:
    """One of the methods on ragged clients, three of five a round, some late where that may be."""
    return after([begin(name, **options)])


def images(name: str) -> dict[str, Tensor]:
    sim = simulation(small(name), ragged_federation(), model(partial(SmallNet, norm=True)), ROUNDS)
    return after([sim])


def seeds() -> dict[str, Tensor]:
    """Two seeds in one stack."""
    return after([begin("feddwa", seed=s) for s in (0, 1)])


def after(sims: list[Simulation]) -> dict[str, Tensor]:
    """Everything a simulation holds and reports in the end."""
    sweep = Sweep(sims) if len(sims) > 1 else None
    found: dict[str, Tensor] = {}
    first = [sim.start() for sim in sims]
    rounds = [sweep.step() if sweep else [sims[0].step()] for _ in range(ROUNDS)]
    for done in (first, *rounds):
        for k, one in enumerate(done):
            found |= {f"{k}/{one.round}/{n}": v for n, v in reported(one).items()}
    for k, sim in enumerate(sims):
        found |= {f"{k}/{n}": v for n, v in sim.state()[0].items()}
        found |= {f"{k}/model/{n}": v for n, v in sim.personal_model(1).items()}
    return found


def reported(done: Round) -> dict[str, Tensor]:
    columns = {n: torch.from_numpy(np.array(v)) for n, v in done.clients.items()}
    facts = {"up": done.bytes_up, "down": done.bytes_down, "loss": done.train_loss}
    facts |= {"samples": done.samples}
    logs = {f"logs/{n}": v for n, v in done.logs.items()}
    return columns | logs | {n: torch.tensor(v, dtype=torch.float64) for n, v in facts.items()}


QUICK = "fedavg", "fedper", "fedas", "feddwa", "pflego", "spfl", "plga", "fedavg_ft", "fedproto"
OTHERS = [name for name in METHODS if name not in QUICK]
CASES: dict[str, Callable[[], dict[str, Tensor]]] = {
    **{name: partial(solve, name) for name in QUICK},
    "one client of two ranks": partial(solve, "fedas", participation=0.2),
    "loop": partial(solve, "fedper", engine="loop"),
    "batch norm": partial(images, "fedbn"),
    "seeds": seeds,
}


def write_runs(out: Path) -> None:
    """A run directory of one seed, two in one stack, and one that is continued."""
    runs.execute(resolved("fedper", 0, save_models="best"), out / "one")
    configs = [resolved("fedavg", seed) for seed in (0, 1)]
    runs.execute_together(configs, [out / "seed0", out / "seed1"])
    runs.execute(resolved("plga", 0, stragglers={"count": 2}), out / "resumed", resume=True)


def resolved(name: str, seed: int, **changes: Any) -> dict[str, Any]:
    return settings.resolve(
        None,
        {"method": {"name": name}, "seed": seed, "split": SPLIT, "model": {"name": "mlp"}}
        | RUN
        | changes,
        (),
    )


if __name__ == "__main__":
    target, named = Path(sys.argv[1]), sys.argv[2:]
    with joined() as ranks:
        for label, case in {n: partial(solve, n) for n in named}.items() or CASES.items():
            save_file(case(), target / f"{label}.{ranks.rank}.safetensors")
        if not named:
            write_runs(target)
