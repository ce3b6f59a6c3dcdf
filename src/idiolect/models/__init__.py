"""Networks by name, and your own by `module:Class`; adapters on any of them."""

import idiolect.models.networks  # noqa: F401  declares those that have a name
from idiolect.models.adapters import adapted
from idiolect.models.build import (
    build,
    check_fits,
    default_model,
    list_models,
    plain,
    resolved,
    wants_tokens,
)
from idiolect.models.head import name_head
from idiolect.models.low_rank import merged

__all__ = [
    "adapted",
    "build",
    "check_fits",
    "default_model",
    "list_models",
    "merged",
    "name_head",
    "plain",
    "resolved",
    "wants_tokens",
]
