"""Errors a user can mend: one line that names the fix, exit code 2, never a traceback."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_NAME = 80  # characters of an unknown name that are repeated


class UserError(Exception):
    """Bad input. The message is one line and says what to do about it."""


class DiskError(UserError):
    """A full or failing disk: no mistake of the user, so that the exit code is 1."""


def did_you_mean(name: object, known: Iterable[str], kind: str) -> UserError:
    """Build the error for an unknown name: the nearest known one first, then all of them."""
    known, text = sorted(known), str(name)
    cut = "…" if len(text) > LONGEST_NAME else ""
    told = repr(text[:LONGEST_NAME])[1:-1] + cut  # on one line, nothing a terminal would obey
    near = get_close_matches(told, known, n=1, cutoff=0.5)
    hint = f" did you mean '{near[0]}'?" if near else ""
    if not known:
        return UserError(f"unknown {kind} '{told}': it has none; leave it out")
    return UserError(f"unknown {kind} '{told}';{hint} known: {', '.join(known)}")
