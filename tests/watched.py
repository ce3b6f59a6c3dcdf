"""A simulation whose messages are kept, round by round."""

from idiolect.conformance.watched import Watched, watch_tasks

__all__ = ["Watched", "watch_tasks"]
