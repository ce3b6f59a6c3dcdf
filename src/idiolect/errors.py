"""Errors a user can mend: one line that names the fix, exit code 2, never a traceback."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any
from unicodedata import category

LONGEST_NAME = 80  # characters of an unknown name that are repeated
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, format, surrogate, … characters


def one_line(value: Any) -> str:
    r"""The text on one line; what a terminal would obey instead of show is written as `\x1b`."""
    return "".join(map(_visible, str(value)))


def _visible(character: str) -> str:
    if category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


class UserError(Exception):
    """Bad input. The message is one line and says what to do about it."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(message))  # names in it may hold anything


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
