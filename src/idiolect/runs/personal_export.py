"""A client's model as files that stand alone: weights, and a card that says what they are.

DIR/model.safetensors  weights under the names of the plain nn.Module, adapters merged into them
DIR/adapters.safetensors  what trained, where the network had adapters
DIR/card.json          classes, input, network, method, accuracy, data, licence, commit
DIR/README.md          the same for people, with the lines that load it
DIR/model.onnx         where it was asked for
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

import idiolect
from idiolect import models
from idiolect.core import files, tree
from idiolect.core.form import PLAIN, Form
from idiolect.core.own_code import is_own
from idiolect.core.task import metric_named
from idiolect.core.text import one_line, shortened
from idiolect.data.own.later_files import input_columns
from idiolect.runs import onnx_file, predictions, run_files
from idiolect.runs.config import digest
from idiolect.runs.trained_run import PersonalModel, TrainedRun

Card = dict[str, Any]
ONNX = "model.onnx"
MOST_NAMED = 50  # classes in README.md; the card has all


def export(
    run: TrainedRun, client: int, out: Path, licence: str | None = None, onnx: bool = False
) -> Card:
    """Write the client's model and its card; the card says what the files written predict."""
    if onnx:
        onnx_file.check()
    model = run.personal(client)
    module = run.module(model)
    card = describe(run, client, model, module, licence)
    card["metric"]["reported"] = run.accuracy(client, model.round)
    write(out, model, card)
    if onnx:
        onnx_file.write(module, run.federation, out / ONNX)
    return card


def describe(
    run: TrainedRun, client: int, model: PersonalModel, module: nn.Module, licence: str | None
) -> Card:
    """What a personal model is. Its accuracy is that of the plain module with these weights."""
    fed, config = run.federation, run.config
    env = run_files.read_json(run.path / "env.json")
    test, has_classes = fed.test[client], fed.task.has_classes
    return {
        "client": {
            "id": client,
            "name": fed.names[client],
            "train": len(fed.train[client]),
            "validation": len(fed.val[client]),
            "test": len(test),
            "classes": torch.unique(fed.y[fed.train[client]]).tolist() if has_classes else [],
        },
        "task": fed.task.name,
        "classes": fed.classes,
        "class_names": list(fed.info.get("class_names") or ()),
        "form": fed.form.as_plain(),
        "input": {
            "shape": list(fed.shape),
            "dtype": str(fed.x.dtype).removeprefix("torch."),
            "divided_by": 255 if fed.x.dtype == torch.uint8 else 1,
            "mean": fed.mean and list(fed.mean),
            "std": fed.std and list(fed.std),
            "columns": input_columns(fed),
        },
        "model": models.plain(run.network),
        "adapt": run.network.get("adapt"),
        "parameters": sum(p.numel() for p in module.parameters()),
        "method": dict(config["method"]),
        "metric": {
            "name": fed.task.metric.name,
            "on": "the client's own test samples",
            "value": predictions.score(module, fed, test),
            "samples": len(test),
        },
        "round": model.round,
        "rounds": config["rounds"],
        "source": model.source,
        "data": dict(config["data"]),
        "split": dict(config["split"]),
        "seed": config["seed"],
        "licence": licence,
        "run": digest(config),
        "commit": env.get("commit"),
        "idiolect": idiolect.__version__,
    }


def write(out: Path, model: PersonalModel, card: Card) -> None:
    """The files of an export, each whole or as it was. An ONNX file of an earlier one goes first:
    it would be of another model."""
    out.mkdir(parents=True, exist_ok=True)
    if files.kind(out / ONNX) == "a file":
        (out / ONNX).unlink()
    files.write_tensors(out / "model.safetensors", model.merged)
    if card["adapt"]:
        files.write_tensors(out / "adapters.safetensors", tree.pick(model.weights, model.trained))
    files.write_json(out / "card.json", card)
    files.write_text(out / "README.md", _page(card))


def _page(card: Card) -> str:
    who, metric, given = card["client"], card["metric"], card["input"]
    scale = " divided by 255" if given["divided_by"] == 255 else ""
    rows = _rows(given)
    norm = f" minus {given['mean']}, divided by {given['std']} per channel"
    norm = ", columns as below" if rows else norm if given["mean"] else ""
    told = metric_named(metric["name"]).told(metric["value"])
    names = card["class_names"] or range(card["classes"])
    trained = ", ".join(str(names[k]) for k in who["classes"])
    own = f"; this client trained on {trained}" if trained else f" ({card['task']})"
    named = card["class_names"] if len(card["class_names"]) <= MOST_NAMED else []
    has = "Targets" if card["task"] in ("regression", "multilabel") else "Classes"
    sizes = f"{who['train']} training, {who['validation']} validation, {who['test']} test samples"
    lines = {
        "Client": f"{who['name']} (number {who['id']}): {sizes}",
        metric["name"].capitalize(): f"{told} on {metric['on']} ({metric['samples']})",
        has: f"{', '.join(named) or card['classes']}{own}",
        "Input": f"{given['dtype']} of shape {given['shape']}{scale}{norm}",
        "Network": f"{_words(card['model'])}; {card['parameters']} parameters",
        "Method": f"{_words(card['method'])}; round {card['round']} of {card['rounds']}",
        "Data": f"{_words(card['data'])}; split {_words(card['split'])}; seed {card['seed']}",
        "Licence": card["licence"] or "not stated",
        "Made by": f"Idiolect {card['idiolect']}, commit {card['commit']}, run {card['run']}",
    }
    about = "".join(f"- **{name}**: {one_line(text)}\n" for name, text in lines.items())
    permission = ", allow_code=[card['model']['name']]" if is_own(card["model"]["name"]) else ""
    plain = Form.read(card["form"]) == PLAIN
    permission += "" if plain else ", form=Form.read(card['form'])"
    more = "" if plain else "\nfrom idiolect.core.form import Form"
    return f"""# Personal model of client {one_line(who["name"])}

{about}{rows}
```python
import json
from safetensors.torch import load_file
from idiolect import models{more}

card = json.load(open("card.json"))
module = models.build(card["model"], card["input"]["shape"], card["classes"]{permission})
module.load_state_dict(load_file("model.safetensors"))
module.eval()
# logits = module(x), with samples x as the line "Input" says
```
"""


def _rows(given: dict[str, Any]) -> str:
    """The columns of a table in the order of the input, and how each becomes a number."""
    columns, mean, std = given["columns"], given["mean"], given["std"]
    if not columns or given["shape"] != [len(columns)]:
        return ""
    lines = ["", "| # | column | number | minus | divided by |", "|--:|---|---|--:|--:|"]
    for k, one in enumerate(columns):
        known = one.get("values")
        coded = known and ", ".join(f"{i} {word}" for i, word in enumerate(known[:MOST_NAMED]))
        scaled = f"{mean[k]:.6g} | {std[k]:.6g}" if mean and not known else "– | –"
        cells = [str(k), one["name"], shortened(coded, 300) if coded else "as it is"]
        lines.append(f"| {' | '.join(one_line(c).replace('|', '/') for c in cells)} | {scaled} |")
    return "\n".join(lines) + "\n"


def _words(section: dict[str, Any]) -> str:
    """`fedas: lr 0.005, epochs 5`."""
    options = [f"{k} {v}" for k, v in section.items() if k != "name" and v is not None]
    return ": ".join([str(section.get("name")), *([", ".join(options)] if options else [])])
