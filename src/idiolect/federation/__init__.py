"""The federation: datasets, splits, and the clients with their data."""

from idiolect.federation.build import build, describe
from idiolect.federation.federation import Federation
from idiolect.federation.sources import get, list_datasets
from idiolect.federation.splits import list_splits

__all__ = ["Federation", "build", "describe", "get", "list_datasets", "list_splits"]
