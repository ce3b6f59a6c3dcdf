"""The datasets by name, one file per family. A new one is a subclass of Dataset, no more."""

from typing import Any

import idiolect.data.datasets.digits  # noqa: F401  first in lists: every machine has it
from idiolect.core.registry import import_modules
from idiolect.data.datasets.base import Dataset
from idiolect.data.pool import Pool

import_modules(__name__, __path__)


def dataset(section: dict[str, Any]) -> Dataset:
    """{"name": "emnist", "variant": "byclass"} -> Emnist(variant="byclass")."""
    return Dataset.from_section(section)


def load(section: dict[str, Any]) -> Pool:
    """The dataset of a config section, decoded (from the cache the second time)."""
    return dataset(section).load()


def get(section: dict[str, Any]) -> str:
    """Make sure that a dataset is there and whole, download it if need be, and say where it is."""
    return load(section).where


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
