"""Idiolect: personalized federated learning, one good model for every client."""

from typing import Any

__version__ = "0.1.0"

__all__ = ["Federation", "Method", "simulate"]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line answers `--help` without loading torch."""
    if name == "simulate":
        from idiolect.simulation.simulate import simulate

        return simulate
    if name == "Federation":
        from idiolect.data import Federation

        return Federation
    if name == "Method":
        from idiolect.core.method import Method

        return Method
    raise AttributeError(f"module 'idiolect' has no attribute '{name}'")
