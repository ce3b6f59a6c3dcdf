"""The datasets by name, one file per family. A new one is a subclass of Dataset, no more."""

import os
from typing import Any

import idiolect.data.datasets.digits  # noqa: F401  first in lists: every machine has it
from idiolect.core.own_code import is_function
from idiolect.core.registry import import_modules
from idiolect.data.datasets.base import Dataset
from idiolect.data.own.function import OwnFunction
from idiolect.data.own.own_files import OwnFiles, is_path, own_files
from idiolect.data.pool import Pool
from idiolect.errors import UserError

import_modules(__name__, __path__)


def dataset(section: dict[str, Any]) -> Dataset | OwnFiles | OwnFunction:
    """{"name": "emnist", "variant": "byclass"} -> Emnist(variant="byclass"); a path is data of the
    user's own, `file.py:function` code of theirs."""
    name = section.get("name")
    if is_function(name):
        return OwnFunction(section)
    if is_path(name) or _lies_here(name):
        return own_files(section)
    return Dataset.from_section(section)


def _lies_here(name: Any) -> bool:
    """A folder of this name, where no dataset is called so."""
    plain = isinstance(name, str) and name and "\0" not in name
    return bool(plain and name not in Dataset.registry and os.path.isdir(name))


def load(section: dict[str, Any]) -> Pool:
    """The dataset of a config section, decoded (from the cache the second time)."""
    made = dataset(section)
    if isinstance(made, OwnFunction):
        raise UserError(f"data '{made.name}' is a function: it makes clients, no one dataset")
    return made.load()


def get(section: dict[str, Any]) -> str:
    """Make sure that a dataset is there and whole, download it if need be, and say where it is."""
    return load(section).where


def list_names() -> list[str]:
    """The names of all datasets."""
    return list(Dataset.registry)


def list_datasets() -> list[dict[str, Any]]:
    """Every dataset: what it is, where it was found (None: nowhere), classes, shape, options."""
    listed = []
    for cls in Dataset.registry.values():
        made = cls()
        found = made.find()
        listed.append(
            {
                **cls.about(),
                "found": found and str(found.where),
                "classes": made.n_classes,
                "shape": list(made.shape),
                "rows": made.expected and list(made.expected),
            }
        )
    return listed
