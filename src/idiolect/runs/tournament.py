"""A short tournament of methods on the same clients, to be judged on validation samples.

All methods do the same local work, as in any comparison. Clients without validation samples get
some: a share of their training samples.
"""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect.core.own_code import called, is_own
from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.runs import compare
from idiolect.runs import config as settings
from idiolect.runs.build import builder, load_federation
from idiolect.runs.compare import Plan
from idiolect.runs.execute import Builder
from idiolect.runs.progress import Progress

# Few, of different kinds: alone, one model, one model tuned, parts kept, pulled, mixed, weighted.
METHODS = ("local", "fedavg", "fedavg_ft", "fedper", "ditto", "apfl", "feddwa", "fedas")
NEEDED = ("local", "fedavg")  # what training alone and one model for all give
ROUNDS = 40
TESTS = 4  # in all rounds: only the last one decides
SEEDS = (0, 1)
VAL_SHARE = 0.25  # of training samples, where clients have no validation samples
PROBED_ROUNDS = 3  # in which updates are compared
PROBE = Path("gradients", "fedavg")  # that run, where a report of the tournament has no part of it


@dataclass(frozen=True)
class Tournament:
    """The runs, the one in which updates are compared, and the methods that cannot take part."""

    plans: list[Plan]
    probe: Plan
    federation: Federation  # of the first seed
    left_out: dict[str, str]  # method: why
    build: Builder

    def run(self, progress: Progress) -> None:
        for name, why in self.left_out.items():
            progress.note(f"{name} is left out: {why}")
        compare.run_all([self.probe, *self.plans], progress, self.build)


def methods_of(text: str) -> list[str]:
    """The methods of `--methods fedper,ditto`, those that are needed first."""
    given = [name.strip() for name in text.split(",")] if text else list(METHODS)
    if not all(given):
        raise UserError(f"--methods takes names such as fedper,ditto, got '{text}'")
    return list(dict.fromkeys([*NEEDED, *given]))


def seeds_of(
    text: str | None, file: Path | None, flags: Mapping[str, Any], sets: Sequence[str]
) -> list[int]:
    """Two, unless the command line or the settings file says otherwise."""
    if text is not None or any("seed" in layer for layer in _layers(file, flags, sets)):
        return compare.seeds_of(text, file, flags, sets)
    return list(SEEDS)


def tournament(
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    allow_code: Collection[str] = (),
) -> Tournament:
    """Plan it: data is read, nothing is written."""
    flags = dict(flags or {})
    layers = _layers(file, flags, sets)
    rounds = next((layer["rounds"] for layer in layers if "rounds" in layer), None)
    if rounds is None:
        rounds = flags["rounds"] = ROUNDS
    if not any("eval_every" in layer for layer in layers) and isinstance(rounds, int):
        flags["eval_every"] = max(1, rounds // TESTS)
    sets = [*sets, *_tuned_as_trained(methods, sets)]

    def planned(*more: str) -> list[Plan]:
        told = [*sets, *more]
        return compare.plans(methods, seeds, out, file, flags, told, allow_code=allow_code)

    made = planned()
    build = builder(made[0].config, allow_code, file)
    federation = load_federation(made[0].config, allow_code)
    if not bool(federation.sizes("val").any()):
        made = planned(f"split.val_share={VAL_SHARE}")
        federation = load_federation(made[0].config, allow_code)
    left_out = _refusals(made, build)
    kept = [item for item in made if _name(item) not in left_out]
    return Tournament(kept, _probe(kept, out), federation, left_out, build)


def _layers(
    file: Path | None, flags: Mapping[str, Any], sets: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Where settings are given, what wins first."""
    below = [] if file is None else [settings.read_yaml(file)]
    return [*map(settings.parse_set, sets), flags, *below]


def _name(item: Plan) -> str:
    return called(item.config["method"]["name"])


def _tuned_as_trained(methods: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Fine-tuning takes the learning rate that is given for training, unless it is given one."""
    rates = [item.partition("=")[2] for item in sets if item.startswith("method.lr=")]
    if not rates or any("ft_lr=" in item for item in sets):
        return []
    tuned = [name for name in methods if name.endswith("_ft") and not is_own(name)]
    return [f"{name}.ft_lr={rates[-1]}" for name in tuned]


def _refusals(made: Sequence[Plan], build: Builder) -> dict[str, str]:
    """The methods that do not fit the task or the network. What `local` refuses is a mistake in
    the settings."""
    refused: dict[str, str] = {}
    for item in made:
        if item.config["seed"] != made[0].config["seed"]:
            break
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they come when the run begins
                build(item.config)
        except UserError as error:
            if _name(item) in NEEDED:
                raise
            refused[_name(item)] = str(error)
    return refused


def _probe(made: Sequence[Plan], out: Path) -> Plan:
    """A few rounds of fedavg in which clients' updates are compared, layer by layer: apart from
    the tournament, as it would add to the time of its rounds."""
    config = next(item.config for item in made if _name(item) == "fedavg")
    rounds = min(PROBED_ROUNDS, config["rounds"])
    about = {**config, "rounds": rounds, "eval_every": rounds, "measure": "gradients"}
    return Plan(settings.complete(about), out / PROBE)
