"""Model: a network by name, with its settings. One of an installed package may be the class of a
plain module."""

import inspect
from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

from torch import nn

from idiolect.core.form import Form
from idiolect.core.registry import Named, Registry, declared, renamed
from idiolect.core.signature import settings_of
from idiolect.errors import UserError
from idiolect.models.blocks import Shape


class ModelRegistry(Registry):
    """Networks by name."""

    def accepted(self, found: Any, name: str) -> type[Any]:
        what = f"model '{name}'"
        if isinstance(found, type) and issubclass(found, nn.Module):
            return _of_module(found, name, what)
        kind = declared(found, Model, what)
        if kind.network is Model.network:
            raise UserError(f"{what} lacks network")
        return renamed(kind, name)


@dataclass(frozen=True)
class Model(Named):
    """A network by name. Fields are the options of `model:`."""

    section = "model"
    registry: ClassVar[Registry] = ModelRegistry("model", "idiolect.models")

    def network(self, shape: Shape, classes: int) -> nn.Module:
        """A new network for samples of this shape, with random weights."""
        raise NotImplementedError

    def built(self, shape: Shape, classes: int, form: Form) -> nn.Module:
        """The same where the network must know what the numbers of a sample mean."""
        if form.steps:
            raise UserError(
                f"model '{self.name}' gives one output per sample and the data has a class for each"
                " step; use model 'gru' or your own"
            )
        if form.fields:
            raise UserError(
                f"model '{self.name}' takes one input and the data has {len(form.fields)}; leave"
                " data.form=plain, or use your own model"
            )
        return self.network(shape, classes)


def _of_module(module: type[nn.Module], name: str, what: str) -> type[Model]:
    """The parameters of the constructor are the model's settings; it is given `shape` and `classes`
    if it takes them."""
    settings = settings_of(module.__init__, ("self", "shape", "classes"), what)
    takes = inspect.signature(module).parameters

    def network(self: Model, shape: Shape, classes: int) -> nn.Module:
        given = {"shape": shape, "classes": classes}
        given = {key: value for key, value in given.items() if key in takes}
        return module(**given, **{key: getattr(self, key) for key, *_ in settings})

    facts = {
        "name": name,
        "network": network,
        "__doc__": module.__doc__,
        "__module__": module.__module__,
    }
    made = make_dataclass(module.__name__, settings, bases=(Model,), frozen=True, namespace=facts)
    kind: type[Model] = made
    return kind
