"""A progress bar that shows nothing."""

from collections.abc import Iterable
from typing import Any


def tqdm(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    return items
