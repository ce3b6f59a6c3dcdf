"""Whole rounds, evaluation of all clients included."""

from dataclasses import replace

import numpy as np

from idiolect.bench.job import Job, chosen, dirichlet, random_federation, random_pool
from idiolect.data import datasets
from idiolect.data.pool import Pool


def pfllib_jobs(quick: bool, device: str = "cpu", only: str = "") -> list[Job]:
    """20 clients of 596 to 4,768 random samples, 59,621 in all, three quarters for training.
    `only` names methods, with commas between."""
    sizes = uneven(6, 24, 36) if quick else uneven(20, 596, 4768)
    federation = random_federation(sizes, (3, 32, 32), train_share=0.75)
    settings = {"lr": 0.005, "epochs": 1 if quick else 5, "batch_size": 16}
    count = 1 if quick else 3
    theirs = {
        "fedavg": (
            *(("pfllib", "FedAvg"), ("flbench", "FedAvg")),
            *(("blazefl", "FedAvg"), ("blazefl", "FedAvg serial")),
        ),
        "fedper": (("pfllib", "FedPer"), ("flbench", "FedPer")),
        "fedas": (("fedas", "FedAS"), ("flbench", "FedAS")),
    }
    names = chosen(only, theirs, "method of this benchmark")
    jobs = [
        Job({"method": n}, {"name": n, **settings}, federation, rounds=count, peers=theirs[n])
        for n in names
    ]
    if device == "cuda":  # what PyTorch does in convolutions unless told otherwise
        jobs += [
            replace(one, label={"method": f"{name}, tf32"}, options={"dtype": "tf32"})
            for name, one in zip(names, jobs, strict=True)
            if name != "fedper"
        ]
    return jobs


def uneven(clients: int, smallest: int, largest: int) -> np.ndarray:
    """Sizes spread as those of a Dir(0.1) split of CIFAR-10."""
    place = np.linspace(0, 1, clients) ** 0.7355
    return (smallest + (largest - smallest) * place).astype(int)


def cpu_jobs(quick: bool, device: str = "cpu", share: float = 1.0) -> list[Job]:
    """All 70,000 samples of MNIST over 20 clients, a quarter of each client's for testing.

    Random samples of that shape where there is no MNIST, and in the quick form.
    """
    pool = _mnist(quick)
    data = "random" if pool.where == "random" else "mnist"
    keep = slice(int((0.01 if quick else share) * len(pool)))
    federation = dirichlet(
        Pool(pool.x[keep], pool.y[keep], pool.part[keep], 10, mean=(0.5,), std=(0.5,))
    )
    return [
        Job(
            {"data": data, "batch": batch},
            {"name": "fedavg", "lr": 0.005, "batch_size": batch},
            federation,
            rounds=1,
            engines=("loop", "stacked"),
            peers=(("pfllib", "FedAvg"),),
            peer_rounds=1,
        )
        for batch in (32 if quick else 128, 10)
    ]


def _mnist(quick: bool) -> Pool:
    if quick or datasets.dataset({"name": "mnist"}).find() is None:
        return random_pool(70_000, (1, 28, 28))
    return datasets.load({"name": "mnist"})
