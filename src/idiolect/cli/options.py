"""The options that commands share, with their help."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Data = Annotated[
    str | None, typer.Option(help="Dataset (idiolect list datasets). Default: digits.")
]
Split = Annotated[
    str | None, typer.Option(help="How it is split over clients. Default: dirichlet.")
]
Clients = Annotated[int | None, typer.Option(help="Number of clients. Default: 20.")]
Model = Annotated[
    str | None, typer.Option(help="Network, or your own module:Class. Default: by dataset.")
]
Rounds = Annotated[int | None, typer.Option(help="Rounds. Default: as the method's paper.")]
Seed = Annotated[int | None, typer.Option(help="Seed of split, model and training. Default: 0.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Directory to write.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, e.g. method.lr=0.05 or split.alpha=0.1; repeatable."),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(help="Values of a hyperparameter, e.g. mu=0.01,0.1; several make a grid."),
]
File = Annotated[Path | None, typer.Option("--config", help="YAML file with settings.")]
Participation = Annotated[
    str | None,
    typer.Option(help="Clients per round: a rate, binomial:RATE or full. Default: full."),
]
Stragglers = Annotated[int | None, typer.Option(help="Clients that miss rounds. Default: 0.")]
Schedule = Annotated[Path | None, typer.Option(help="Recorded participation list (JSON).")]
Init = Annotated[
    Path | None, typer.Option(help="Starting weights: a safetensors file or an exported folder.")
]
SaveModels = Annotated[str | None, typer.Option(help="Export models: every, last or best round.")]
Engine = Annotated[
    str | None, typer.Option(help="stacked (fast) or loop (reference). Default: stacked.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda. Default: auto.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, float64 or tf32 (on a GPU). Default: float32.")
]
Keep = Annotated[
    str | None,
    typer.Option(help="Clients' data and state: auto, device, host or disk. Default: auto."),
]
EvalEvery = Annotated[int | None, typer.Option(help="Evaluate every n rounds. Default: 1.")]
Protocol = Annotated[
    str | None, typer.Option(help="Whose number: default, spfl, plga, feddwa, pflego or fedas.")
]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="Checkpoint every n rounds. Default: 10.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]


def examples(*lines: str) -> str:
    """The end of a --help page."""
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


def flags_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Command options as config sections; what was not given is left out."""
    flags = {key: value for key, value in given.items() if value is not None}
    made: dict[str, Any] = {}
    for section in ("data", "split", "model"):
        if section in flags:
            made[section] = {"name": flags.pop(section)}
    if "clients" in flags:
        made.setdefault("split", {})["clients"] = flags.pop("clients")
    for name in ("schedule", "init"):
        if name in flags:
            flags[name] = str(flags[name])
    return {**flags, **made}
