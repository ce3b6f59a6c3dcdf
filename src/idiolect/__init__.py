"""Idiolect: personalized federated learning, one good model for every client."""

__version__ = "0.1.0"
