"""Builds the network of a config, by name or from your own `file.py:Class` or `module:Class`."""

import inspect
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from idiolect.core import own_code
from idiolect.core.fields import Checked, hyper
from idiolect.core.form import PLAIN, Form
from idiolect.core.net import logits_of
from idiolect.errors import UserError
from idiolect.models.adapters import adapted, parse
from idiolect.models.blocks import Shape
from idiolect.models.head import HeadWatch, name_head
from idiolect.models.model import Model
from idiolect.models.trial import check_trains


@dataclass(frozen=True)
class ModelOptions(Checked):
    """Options of `model:` that every network has, your own too."""

    section = "model"

    head: str = hyper("", "the layer that makes the logits, where that is not clear: its name")
    adapt: str = hyper("", "train only small parts: lora:RANK, bias, norm, head, or several")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapt:
            parse(self.adapt)


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
    own = own_code.is_own(name)
    make_it = own_code.load(name, nn.Module, "model", allow_code) if own else None
    section, options = _divided(section, _arguments(make_it, name) if make_it else ())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if make_it is not None:
            model = _own(make_it, section, shape, classes, form)
        else:
            model = Model.from_section(section).built(shape, classes, form)
        model = form.attached(model)
        if options.head:
            name_head(model, options.head)
        check_fits(model, shape, classes, f"model '{name}'", form)
    return adapted(model, options.adapt, seed) if options.adapt else model


def plain(section: dict[str, Any]) -> dict[str, Any]:
    """The section of the network without its adapters, into which merged weights load."""
    return {key: value for key, value in section.items() if key != "adapt"}


def _divided(
    section: dict[str, Any], arguments: Collection[str] = ()
) -> tuple[dict[str, Any], ModelOptions]:
    """The network's own options, and those that every network has; an own class that takes an
    argument of such a name gets it."""
    common = {known.name for known in fields(ModelOptions)} - set(arguments)
    own = {key: value for key, value in section.items() if key not in common}
    return own, ModelOptions(**{key: section[key] for key in common if key in section})


def resolved(section: dict[str, Any], shape: Shape | None, form: Form = PLAIN) -> dict[str, Any]:
    """The section with every option filled in; without a name, the default for this shape. While
    the shape is not known (own code makes the data), a section without a name stays as it is."""
    if shape is None and "name" not in section:
        return dict(section)
    section = dict(section) if shape is None else {"name": default_model(shape, form), **section}
    if own_code.is_own(section["name"]):
        return {**section, "name": own_code.whole(section["name"])}
    own, options = _divided(section)
    given = {key: value for key, value in options.as_dict().items() if value}
    return Model.from_section(own).resolved() | given


def default_model(shape: Shape, form: Form = PLAIN) -> str:
    """Name of a model that suits samples of this shape and form."""
    if form.steps or form.padded:
        return "gru"
    if len(shape) != 3:
        return "tabular" if any(form.codes) and not form.fields else "mlp"
    side = min(shape[1:])
    return "cnn_small" if side < 16 else "fedas_cnn" if side < 64 else "resnet8"


def list_models() -> list[dict[str, Any]]:
    """Every model: what it is, who brings it, and its options with type, default, bounds and
    meaning."""
    return [{**cls.about(), "package": of} for _, cls, of in Model.registry.entries()]


def _arguments(make_it: type[nn.Module], name: str) -> Collection[str]:
    try:
        return inspect.signature(make_it).parameters
    except (TypeError, ValueError) as error:
        raise UserError(f"model '{name}' could not be built: {_one_line(error)}") from error


def _own(
    make_it: type[nn.Module], section: dict[str, Any], shape: Shape, classes: int, form: Form
) -> nn.Module:
    """Your own class, called with your options, and with `shape`, `classes`, `codes` and `steps`
    if it takes them."""
    options = dict(section)
    name = options.pop("name")
    try:
        takes = inspect.signature(make_it).parameters
        given = {"shape": shape, "classes": classes, "codes": form.codes, "steps": form.steps}
        return make_it(**{k: v for k, v in given.items() if k in takes}, **options)
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
        with torch.enable_grad(), HeadWatch(model) as watch:
            out = logits_of(model(torch.zeros(2, *shape, dtype=dtype)))
        if isinstance(out, Tensor):
            watch.mark(out)
    except UserError:
        raise
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
        outputs = got[-1] if isinstance(got, list) and got else 0
        more = f"; Federation.from_arrays takes classes={outputs}" if outputs > classes else ""
        raise UserError(
            f"{what} gives {got} for 2 samples but the data has {classes} classes{each}:"
            f" it must give {[2, *steps, classes]}, or a dict with these as 'logits'{more}"
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
