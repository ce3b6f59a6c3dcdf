"""The splits by name, one file each: how the samples of a dataset come to clients.

A new split is a subclass of Split in a file of this folder, no more. Which of a dataset's own parts
a split uses belongs to the paper it comes from. Where it needs a test part and the dataset has none
(digits, Omniglot), a random `test_share` of every class takes its place.
"""

from collections.abc import Collection
from typing import Any

from idiolect.core.registry import import_modules
from idiolect.data.splits.base import Split

import_modules(__name__, __path__)


def split(section: dict[str, Any], allow_code: Collection[str] = ()) -> Split:
    """{"name": "shards", "clients": 5} -> Shards(clients=5). Your own class or function,
    `file.py:Name`, is loaded only if `allow_code` names it too."""
    return Split.from_section(section, allow_code)


def list_splits() -> list[dict[str, Any]]:
    """Every split: what it is, who brings it, and its options with type, default, bounds and
    meaning."""
    return [{**cls.about(), "package": of} for _, cls, of in Split.registry.entries()]
