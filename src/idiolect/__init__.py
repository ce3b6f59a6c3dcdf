"""Idiolect: personalized federated learning, one good model for every client."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idiolect import data as data
    from idiolect import methods as methods
    from idiolect import models as models
    from idiolect import report as report
    from idiolect.core.method import Method as Method
    from idiolect.data import Federation as Federation
    from idiolect.report.advised import advise as advise
    from idiolect.report.comparison import compare as compare
    from idiolect.report.comparison import sweep as sweep
    from idiolect.report.load import load as load_run
    from idiolect.runs.from_python import simulate as simulate

__version__ = "0.1.0"

__all__ = ["Federation", "Method", "advise", "compare", "load_run", "report", "simulate", "sweep"]

_PLACES = {
    "Federation": ("idiolect.data", "Federation"),
    "Method": ("idiolect.core.method", "Method"),
    "advise": ("idiolect.report.advised", "advise"),
    "compare": ("idiolect.report.comparison", "compare"),
    "load_run": ("idiolect.report.load", "load"),
    "sweep": ("idiolect.report.comparison", "sweep"),
    "simulate": ("idiolect.runs.from_python", "simulate"),
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line answers `--help` without loading torch."""
    if name in ("report", "data", "methods", "models"):  # rooms; `report` can be called too
        return import_module(f"idiolect.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'idiolect' has no attribute '{name}'")
    module, member = _PLACES[name]
    return getattr(import_module(module), member)
