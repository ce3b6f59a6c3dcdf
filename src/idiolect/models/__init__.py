"""Networks by name, and your own by `module:Class`."""

import idiolect.models.networks  # noqa: F401  declares those that have a name
from idiolect.models.build import (
    build,
    check_fits,
    default_model,
    list_models,
    resolved,
    wants_tokens,
)

__all__ = ["build", "check_fits", "default_model", "list_models", "resolved", "wants_tokens"]
