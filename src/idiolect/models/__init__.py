"""Networks by name, and your own by `module:Class`."""

from idiolect.models.networks import build, default_model, list_models

__all__ = ["build", "default_model", "list_models"]
