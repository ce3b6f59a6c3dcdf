"""What a recipe still lacks, what that costs, and what comes first.

A job is what one process runs in one stack: all missing seeds of one row and column.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from idiolect.errors import UserError
from idiolect.papers.cells import Cell, settings_digest
from idiolect.papers.recipe import Recipe
from idiolect.papers.results import Results
from idiolect.papers.run_record import Record, of_revision
from idiolect.papers.verdicts import Values, judge
from idiolect.runs.config import Config, digest, short_name

PRODUCTS_PER_SECOND = {"gpu": 1e12, "cpu": 2e10}  # until something was measured
SMALL_NETWORK = 1e6  # multiplications for a sample
COUNTING = 50  # times slower than a plain step


@dataclass
class CellJob:
    """Cells that are run together."""

    results: Results
    cells: list[Cell]
    outs: list[Path]
    seconds: float = 0.0  # estimated
    measured: bool = False  # whether the estimate rests on records
    tries: int = 0  # times it failed already

    @property
    def recipe(self) -> Recipe:
        return self.results.recipe

    @property
    def places(self) -> set[tuple[str, str]]:
        return {(cell.row, cell.column) for cell in self.cells}

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.seed for cell in self.cells})

    @property
    def label(self) -> str:
        return f"{self.recipe.name} {self.cells[0].label} seed {','.join(map(str, self.seeds))}"


@dataclass
class Missing:
    """The cells of a recipe by what stands between them and a number."""

    done: list[Cell]
    jobs: list[CellJob]
    no_data: list[tuple[Cell, str]]
    broken: list[Cell]
    waiting: list[Cell]  # for what trials choose


def missing(results: Results, cells: Sequence[Cell], out: Path) -> Missing:
    """Sort cells into finished ones, jobs, and those that cannot be run here, or not yet."""
    found = Missing([], [], [], [], [])
    together: dict[str, list[Cell]] = {}
    reasons: dict[str, str] = {}
    for cell in cells:
        if cell.broken and not cell.waiting:
            found.broken.append(cell)
        elif not cell.waiting and results.of(cell) is not None:
            found.done.append(cell)
        else:
            data = str(cell.config["data"])
            if data not in reasons:
                reasons[data] = without_data(cell.config)
            if reasons[data]:
                found.no_data.append((cell, reasons[data]))
            elif cell.waiting:
                found.waiting.append(cell)
            else:
                together.setdefault(_training(cell.config), []).append(cell)
    for members in together.values():
        outs = [run_directory(out, cell.config) for cell in members]
        found.jobs.append(CellJob(results, members, outs))
    return found


def _training(config: Config) -> str:
    """Runs that train alike but for their seed: fine-tuning settings share the trained model."""
    from idiolect.methods import REGISTRY

    free = REGISTRY[config["method"]["name"]].adapt_only
    method = {key: value for key, value in config["method"].items() if key not in free}
    return settings_digest({**config, "method": method, "seed": 0})


def run_directory(out: Path, config: Config) -> Path:
    """Where a run is kept; recipes that share a run share its directory. What an earlier revision
    of the method left there is another run."""
    names = "-".join(short_name(config[key]["name"]) for key in ("method", "data", "split"))
    return out / f"{names}-seed{config['seed']}-{digest(config)[:10]}{of_revision(config)}"


def without_data(config: Config) -> str:
    """Why its dataset cannot be loaded, in one line that says how to get it; "" if it is here."""
    from idiolect.data import datasets, places

    dataset = datasets.dataset(config["data"])
    if dataset.find() is not None or (dataset.hub_repository and places.can_download()):
        return ""
    return str(dataset.not_found())


def estimate(jobs: Sequence[CellJob], records: Sequence[Record], on_gpu: bool) -> None:
    """Set each job's seconds: from the speed of recorded runs like it, else from its work. Networks
    of other records are not even built: nobody knows who wrote them."""
    ours = [job.cells[0].config["model"] for job in jobs]
    like = [r for r in records if r.config.get("model") in ours]
    known = [r for r in like if _is_gpu(r) == on_gpu and r.seconds > 0]
    for job in jobs:
        config = job.cells[0].config
        speed = _speed(config, known)
        job.measured = speed is not None
        job.seconds = work(config) / (speed or PRODUCTS_PER_SECOND["gpu" if on_gpu else "cpu"])
        job.seconds *= len(job.seeds)


def ordered(jobs: Sequence[CellJob], values: Mapping[str, Values]) -> list[CellJob]:
    """The most informative first: again and again the open claim that is cheapest to complete.
    Columns a recipe lists as `first` come before its others, cells of no claim last."""
    left = list(jobs)
    out: list[CellJob] = []
    recipes = {job.recipe.name: job.recipe for job in jobs}
    quick = any(job.results.quick for job in jobs)
    open_claims = [
        (name, recipe.places_of(done.claim))
        for name, recipe in recipes.items()
        for done in judge(recipe, values.get(name, {}), quick)
        if done.answer == "not enough evidence"
    ]
    for early in (True, False):
        tier = [job for job in left if _is_first(job) == early]
        left = [job for job in left if job not in tier]
        goals = [[j for j in tier if j.recipe.name == n and j.places & p] for n, p in open_claims]
        while goals := [goal for goal in goals if goal]:
            best = min(goals, key=lambda goal: sum(job.seconds for job in goal))
            out += sorted(best, key=lambda job: job.seconds)
            goals = [[job for job in goal if job not in best] for goal in goals]
        rest = [job for job in tier if job not in out]
        out += sorted(rest, key=lambda job: (_is_extra(job), job.seconds))
    return out


def work(config: Config) -> float:
    """Multiplications of a run's training, about."""
    from idiolect.data import datasets
    from idiolect.methods import REGISTRY

    method, split = config["method"], config["split"]
    dataset = datasets.dataset(config["data"])
    limit = config["data"].get("sample") or config["data"].get("rows") or dataset.expected
    samples = float(limit[0]) if limit else 10_000.0
    epochs = method.get("epochs") or 1
    if method.get("steps"):
        batch = method.get("batch_size", 1)
        batch = batch if isinstance(batch, int) else samples / split.get("clients", 1)
        samples = min(samples * epochs, method["steps"] * batch * split.get("clients", 1))
    else:
        samples *= 2 if method.get("tau") else epochs  # tau steps are on the head alone
    known = getattr(dataset, "shape", ()), getattr(dataset, "n_classes", 2)  # own data has neither
    samples *= _products(json.dumps(config["model"]), *known)
    if config.get("measure", {}).get("flops"):  # client by client, every operation through Python
        samples *= COUNTING
    known_method = REGISTRY.get(method["name"])
    samples *= known_method.trainings if known_method else 1
    return max(1.0, samples * config["rounds"] * config["participation"].get("rate", 1.0))


@cache
def _products(model: str, shape: tuple[int, ...], classes: int) -> float:
    """Multiplications of one sample's forward pass: each weight, as often as it is used. A network
    of the user's own, or one for other data than images, counts as a small one."""
    import torch

    from idiolect import models

    found = 0.0

    def count(layer: Any, given: Any, out: Any) -> None:
        nonlocal found
        found += layer.weight.numel() * out[0].numel() / layer.weight.shape[0]

    try:
        section = {"name": models.default_model(shape), **json.loads(model)}
        network = models.build(section, shape, classes)
        for layer in network.modules():
            if isinstance(layer, torch.nn.Linear | torch.nn.modules.conv._ConvNd):
                layer.register_forward_hook(count)
        with torch.no_grad():
            network.eval()(torch.zeros(2, *shape))
    except (UserError, RuntimeError):
        return SMALL_NETWORK
    return found or SMALL_NETWORK


def _speed(config: Config, records: Sequence[Record]) -> float | None:
    """How much work a second the runs most like this one did, of those with its network. A run of
    another method in the same precision says more than one of the same method in another. One of
    another network says nothing: small ones do a hundredth of a large one's work a second."""

    def like(record: Record, *sections: str) -> bool:
        return all(record.config[s].get("name") == config[s].get("name") for s in sections)

    same = [record for record in records if record.config.get("dtype") == config.get("dtype")]
    for sections in (("method", "data", "model"), ("data", "model"), ("model",)):
        for known in (same, records) if sections != ("method", "data", "model") else (same,):
            rates = [work(r.config) / r.seconds for r in known if like(r, *sections)]
            if rates:
                return median(rates)
    return None


def _is_first(job: CellJob) -> bool:
    first = job.recipe.first
    return not first or any(column in first for _, column in job.places)


def _is_extra(job: CellJob) -> bool:
    return all(job.recipe.row(row).extra for row, _ in job.places)


def _is_gpu(record: Record) -> bool:
    return "NVIDIA" in str(record.machine.get("device")) or "AMD Instinct" in str(
        record.machine.get("device")
    )


def all_results(root: Path, quick: bool) -> list[Results]:
    """The results of every recipe in the folder, as far as they can be read."""
    from idiolect.papers import recipe as recipes

    found = []
    for name in recipes.names():
        folder = root / name / "quick" if quick else root / name
        if (folder / "runs.jsonl").exists():
            try:
                found.append(Results(root, recipes.read(name), quick))
            except UserError:
                continue
    return found


def gpu_here(how: dict[str, Any]) -> bool:
    import torch

    return str(how.get("device", "auto")) != "cpu" and torch.cuda.is_available()
