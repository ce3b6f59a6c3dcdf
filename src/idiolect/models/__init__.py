"""Networks by name, and your own by `module:Class`."""

from idiolect.models.build import build, default_model, list_models, resolved

__all__ = ["build", "default_model", "list_models", "resolved"]
