"""Texts as sequences of tokens: 0 fills short ones up, 1 is a token that is too rare to be kept."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from idiolect.core.task import IGNORED
from idiolect.data.limits import check_size
from idiolect.errors import UserError

By = Literal["chars", "words"]
Tokens = NDArray[np.int64]
SPECIAL = ("<padding>", "<unknown>")
WORD = re.compile(r"\w+|[^\w\s]")


def tokens_of(
    texts: Sequence[str], by: By, most: int, known: tuple[str, ...] = ()
) -> tuple[list[Tokens], tuple[str, ...]]:
    """Every text as token numbers, and the tokens: those of all texts, in the order of their names,
    without the rarest where there are more than `most`; or those known."""
    pieces = [list(text) if by == "chars" else WORD.findall(text.lower()) for text in texts]
    counts = Counter(piece for text in pieces for piece in text)
    frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))[:most]
    names = known or (*SPECIAL, *sorted(frequent))
    number = {name: k for k, name in enumerate(names) if k >= len(SPECIAL)}
    return [np.array([number.get(p, 1) for p in text], np.int64) for text in pieces], names


def filled(rows: Sequence[np.ndarray], length: int | None, fill: float, what: str) -> np.ndarray:
    """Sequences of one length: longer ones are cut, shorter ones filled up."""
    width = max(1, length or max((len(row) for row in rows), default=1))
    check_size(8 * len(rows) * width, what)
    made = np.full((len(rows), width), fill, rows[0].dtype if len(rows) else np.int64)
    for at, row in enumerate(rows):
        made[at, : len(row)] = row[:width]
    return made


def windows(
    rows: Sequence[Tokens], length: int | None, what: str
) -> tuple[Tokens, Tokens, NDArray[np.int64]]:
    """For the task next-token: inputs and targets `[M, T]`, the target of a step being the next
    token, and the row each comes from. A text longer than T makes several samples; one of fewer
    than two tokens makes none."""
    width = length or max(max((len(row) for row in rows), default=2) - 1, 1)
    cuts = [(k, at) for k, row in enumerate(rows) for at in range(0, len(row) - 1, width)]
    if not cuts:
        raise UserError(f"{what}: no text has two tokens, so that there is nothing to predict")
    x = filled(
        [rows[k][at : at + width][: len(rows[k]) - at - 1] for k, at in cuts], width, 0, what
    )
    y = filled([rows[k][at + 1 : at + 1 + width] for k, at in cuts], width, IGNORED, what)
    return x, y, np.array([k for k, _ in cuts])
