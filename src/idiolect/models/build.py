"""Builds the network of a config, by name or from your own `file.py:Class` or `module:Class`."""

import inspect
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from idiolect.core import own_code
from idiolect.core.form import PLAIN, Form
from idiolect.errors import UserError
from idiolect.models.blocks import Shape
from idiolect.models.head import HeadWatch
from idiolect.models.networks import Model
from idiolect.models.trial import check_trains


def build(
    section: dict[str, Any],
    shape: Shape,
    classes: int,
    seed: int = 0,
    allow_code: Collection[str] = (),
    form: Form = PLAIN,
) -> nn.Module:
    """Model of a config section: {"name": "mlp", "hidden": 32}, or {"name": "module:Class"}, which
    is loaded only if `allow_code` names it too: a section may come from a file of someone else.
    `form` says what the numbers of a sample mean (`Federation.form`).

    The same seed gives the same weights, whatever was drawn before.
    """
    shape = tuple(int(n) for n in shape)
    name = str(section.get("name"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if own_code.is_own(name):
            model = _own(section, shape, classes, allow_code, form)
        else:
            model = Model.from_section(section).built(shape, classes, form)
        model = form.attached(model)
        check_fits(model, shape, classes, f"model '{name}'", form)
    return model


def resolved(section: dict[str, Any], shape: Shape | None, form: Form = PLAIN) -> dict[str, Any]:
    """The section with every option filled in; without a name, the default for this shape. While
    the shape is not known (own code makes the data), a section without a name stays as it is."""
    if shape is None and "name" not in section:
        return dict(section)
    section = dict(section) if shape is None else {"name": default_model(shape, form), **section}
    if own_code.is_own(section["name"]):
        return {**section, "name": own_code.whole(section["name"])}
    return Model.from_section(section).resolved()


def default_model(shape: Shape, form: Form = PLAIN) -> str:
    """Name of a model that suits samples of this shape and form."""
    if form.steps or form.padded:
        return "gru"
    if len(shape) != 3:
        return "mlp"
    side = min(shape[1:])
    return "cnn_small" if side < 16 else "fedas_cnn" if side < 64 else "resnet8"


def list_models() -> list[dict[str, Any]]:
    """Every model: what it is, and its options with type, default, bounds and meaning."""
    return [cls.about() for cls in Model.registry.values()]


def _own(
    section: dict[str, Any], shape: Shape, classes: int, allow_code: Collection[str], form: Form
) -> nn.Module:
    """Your own class, called with your options, and with `shape`, `classes`, `codes` and `steps`
    if it takes them."""
    options = dict(section)
    name = options.pop("name")
    make = own_code.load(name, nn.Module, "model", allow_code)
    try:
        takes = inspect.signature(make).parameters
        given = {"shape": shape, "classes": classes, "codes": form.codes, "steps": form.steps}
        return make(**{k: v for k, v in given.items() if k in takes}, **options)
    except (Exception, SystemExit) as error:
        raise UserError(f"model '{name}' could not be built: {_one_line(error)}") from error


def check_fits(
    model: nn.Module,
    shape: Shape,
    classes: int,
    what: str = "the model",
    form: Form = PLAIN,
) -> None:
    """The model must take two samples, as floating point or as whole numbers (tokens), and give a
    value for each class; for each step, where every step has a class."""
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    if wants_tokens(model, shape):
        dtype = torch.int64
    was_training = model.training
    model.eval()  # so that batch norm neither needs a batch nor moves its statistics
    try:
        with torch.no_grad(), HeadWatch(model) as watch:
            out = model(torch.zeros(2, *shape, dtype=dtype))
        watch.mark(out)
    except Exception as error:
        raise UserError(
            f"{what} cannot take samples of shape {list(shape)}: {_one_line(error)}"
        ) from error
    finally:
        model.train(was_training)
    got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
    steps = [form.steps] if form.steps else []
    if got != [2, *steps, classes]:
        each = f" for each of {form.steps} steps" if steps else ""
        raise UserError(
            f"{what} gives {got} for 2 samples but the data has {classes} classes{each}:"
            f" it must give {[2, *steps, classes]}"
        )
    check_trains(model, shape, what)


def wants_tokens(model: nn.Module, shape: Shape) -> bool:
    """Whether the model takes samples only as whole numbers."""
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            try:
                model(torch.zeros(2, *shape, dtype=dtype))
            except (RuntimeError, IndexError):
                with suppress(Exception):
                    model(torch.zeros(2, *shape, dtype=torch.int64))
                    return True
    finally:
        model.train(was_training)
    return False


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
