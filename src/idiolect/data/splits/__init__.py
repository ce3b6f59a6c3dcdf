"""The splits by name, one file each: how the samples of a dataset come to clients.

A new split is a subclass of Split in a file of this folder, no more. Which of a dataset's own parts
a split uses belongs to the paper it comes from. Where it needs a test part and the dataset has none
(digits, Omniglot), a random `test_share` of every class takes its place.
"""

from typing import Any

from idiolect.core.registry import import_modules
from idiolect.data.splits.base import Split

import_modules(__name__, __path__)


def split(section: dict[str, Any]) -> Split:
    """{"name": "shards", "clients": 5} -> Shards(clients=5)."""
    return Split.from_section(section)


def list_splits() -> list[dict[str, Any]]:
    """Every split: what it is, and its options with type, default, bounds and meaning."""
    return [cls.about() for cls in Split.registry.values()]
