"""The federation: datasets, splits, and the clients with their data."""

from idiolect.data.build import build, describe
from idiolect.data.datasets import get, list_datasets
from idiolect.data.federation import Federation
from idiolect.data.splits import list_splits

__all__ = ["Federation", "build", "describe", "get", "list_datasets", "list_splits"]
