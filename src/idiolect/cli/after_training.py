"""`idiolect export`, `predict` and `adapt`: what a run's models are good for afterwards."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import AllowCode, Json, Out, examples
from idiolect.cli.options import path as as_path
from idiolect.core.text import one_line
from idiolect.errors import UserError

if TYPE_CHECKING:
    from idiolect.core.task import Metric

commands = typer.Typer()

RunPath = Annotated[Path, typer.Argument(metavar="RUN", parser=as_path, help="Directory of a run.")]
Who = Annotated[str, typer.Option(help="Name or number of the client.")]
Licence = Annotated[
    str | None, typer.Option(help="Licence of the model, for its card; e.g. CC-BY-4.0.")
]


@commands.command(
    epilog=examples(
        "idiolect export runs/fedas --client 3",
        "idiolect export runs/wards --client ward-b --out ward-b --licence CC-BY-4.0",
        "idiolect export runs/fedas --client 3 --onnx",
    )
)
def export(
    path: RunPath,
    client: Who,
    out: Out = None,
    licence: Licence = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write model.onnx too (needs onnx and onnxscript).")
    ] = False,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Write a client's personal model as safetensors, with a card that says what it is."""
    from idiolect.core.task import metric_named
    from idiolect.runs import personal_export, targets
    from idiolect.runs.trained_run import TrainedRun

    run = TrainedRun(path, allow_code or ())
    number = run.client(client)
    place = out or path / "exports" / f"client_{number:04d}"
    targets.no_other_model(place, run.config, number, run.federation.names[number])
    gone = not onnx and (place / personal_export.ONNX).exists()
    card = personal_export.export(run, number, place, licence, onnx)
    if gone:
        print("the earlier model.onnx is deleted; --onnx writes it again", file=sys.stderr)
    if as_json:
        screen.print_json(card)
        return
    name, metric = one_line(card["client"]["name"]), card["metric"]
    told = metric_named(metric["name"]).told(metric["value"])
    told = f"{told} of" if metric["name"] == "accuracy" else f"{metric['name']} {told} on"
    print(
        f"client {name}: {card['method']['name']}, {card['source']}, {told} "
        f"{metric['samples']} test samples"
    )
    print(f"model: {place / 'model.safetensors'}\ncard: {place / 'card.json'}")
    if onnx:
        print(f"ONNX: {place / personal_export.ONNX}")


@commands.command(
    epilog=examples(
        "idiolect predict runs/fedas --client 3 --data new.npz",
        "idiolect predict runs/fedas --client 3 --data new.npz --out answers.parquet",
        "idiolect predict runs/wards --client ward-b --data new.csv",
    )
)
def predict(
    path: RunPath,
    client: Who,
    data: Annotated[
        Path,
        typer.Option(
            parser=as_path,
            help="A table or folder of images like the run's, or an .npz file with samples x.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", parser=as_path, help="File to write, .csv or .parquet."),
    ] = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """What a client's model says about new samples; the run's normalisation is applied."""
    from idiolect.data.given_samples import to_predict
    from idiolect.runs import predictions, targets
    from idiolect.runs.trained_run import TrainedRun

    place = out or data.with_name(f"{data.stem}.predictions.csv")
    if place.suffix.lower() not in predictions.FORMS:
        raise UserError(f"--out {place}: predictions are written as .csv or .parquet")
    targets.outside_runs(place)
    run = TrainedRun(path, allow_code or ())
    targets.no_data(place, data, run.config["data"]["name"])
    number = run.client(client)
    samples, labelled = to_predict(run.federation, data)
    module, metric = run.module(run.personal(number)), samples.task.metric
    found = predictions.answers(module, samples, samples.test[0])
    predictions.write(found, place, samples.task, samples.info.get("class_names") or ())
    right = predictions.score(module, samples, samples.test[0]) if labelled else None
    if as_json:
        screen.print_json({"samples": len(found), metric.name: right, "file": str(place)})
        return
    told = "" if right is None else f", {metric.told(right)} as labelled"
    if right is not None and metric.name != "accuracy":
        told = f", {metric.name} {metric.told(right)} by the labels"
    print(f"{len(found)} samples{told}")
    print(f"predictions: {place}")


@commands.command(
    epilog=examples(
        "idiolect adapt runs/fedas --data ward-d.npz",
        "idiolect adapt runs/fedas --data ward-d.npz --client ward-d --out ward-d",
    )
)
def adapt(
    path: RunPath,
    data: Annotated[
        Path,
        typer.Option(
            parser=as_path,
            help="The new client's table or folder of images, like the run's, or an .npz file with "
            "x_train, y_train, x_test, y_test.",
        ),
    ],
    client: Annotated[str | None, typer.Option(help="What to call it; the file's name.")] = None,
    out: Out = None,
    licence: Licence = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Give a client that never took part its model, by the method's own way, and state the gap."""
    from idiolect.runs import newcomer, personal_export, targets
    from idiolect.runs.trained_run import TrainedRun

    name = data.stem if client is None else client
    place, run = out or data.with_name(f"{data.stem}.model"), TrainedRun(path, allow_code or ())
    targets.no_other_model(place, run.config, run.federation.n_clients, name)
    joined, found = newcomer.adapt(run, data, name)
    module = joined.module(found.model)
    card = personal_export.describe(joined, found.client, found.model, module, licence)
    card["newcomer"] = found.as_dict()
    personal_export.write(place, found.model, card)
    if as_json:
        screen.print_json(found.as_dict())
        return
    for line in _told(card["newcomer"], joined.federation.task.metric):
        print(line)
    print(f"model: {place / 'model.safetensors'}\ncard: {place / 'card.json'}")


def _told(found: dict[str, Any], metric: "Metric") -> list[str]:
    def told(key: str) -> str:
        return metric.told(found[key])

    def points(difference: float) -> str:
        return metric.told(difference, sign=True).replace(" %", " points")

    name = "" if metric.name == "accuracy" else f"{metric.name} "
    lines = [
        f"{one_line(str(found['client']))}: {name}{told('delivered')} with what the server sends, "
        f"{told('trained')} after one round of local work "
        f"({points(found['trained'] - found['delivered'])})",
    ]
    if found["participants"] is not None:
        lines.append(
            f"clients that took part: {told('participants')}; the gap of the model given "
            f"({found['gives']}): {points(found['gap'])}"
        )
    return lines
