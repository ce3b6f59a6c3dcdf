"""Augmentation: what training batches are changed by, one client's batch at a time.

A function of it is `change(x, draw)`: the batch as the network sees it, and a generator keyed by
seed, client, round and step, so that a batch is changed alike in every engine and after a resume.
`--help` is made from the names here: nothing may import torch or NumPy before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from idiolect.core import own_code
from idiolect.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Change = Callable[["Tensor", "np.random.Generator"], "Tensor"]


class Word(NamedTuple):
    """One word of the setting: `flip`, `crop:2`, `noise:0.1` or `file.py:function`."""

    name: str
    amount: float | None = None


def words_of(text: str) -> list[Word]:
    """The setting taken apart; an error of one line if a word means nothing."""
    words = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, _, amount = part.partition(":")
        if name in NAMED:
            words.append(Word(name, _amount(name, amount)))
        elif own_code.is_function(part):
            words.append(Word(own_code.whole(part)))
        else:
            raise did_you_mean(part, [*NAMED, "file.py:function"], "augmentation")
    if not words:
        raise UserError("augment is empty; give flip, crop, noise or file.py:function")
    return words


def written(text: str) -> str:
    """The setting with the whole paths of own code, so that it means the same everywhere."""
    return ",".join(
        w.name if w.amount is None else f"{w.name}:{w.amount:g}" for w in words_of(text)
    )


def own_words(text: object) -> list[str]:
    """The own code that the setting names."""
    if not isinstance(text, str):
        return []
    parts = (one.strip() for one in text.split(","))
    return [one for one in parts if own_code.is_function(one) and one.split(":")[0] not in NAMED]


@dataclass(frozen=True)
class Augmentation:
    """The changes of a setting, one after the other; two of one setting are equal."""

    text: str
    changes: tuple[Change, ...] = field(compare=False)

    def __call__(self, x: Tensor, draw: np.random.Generator) -> Tensor:
        for change in self.changes:
            x = change(x, draw)
        return x


def loaded(text: str, allow_code: Collection[str] = ()) -> Augmentation:
    """The setting as one function; own code is loaded only if `allow_code` names it."""
    changes: list[Change] = []
    for name, amount in words_of(text):
        if name in NAMED:
            changes.append(partial(NAMED[name], amount=amount))
        else:
            changes.append(_checked(own_code.load_function(name, "augment", allow_code), name))
    return Augmentation(text, tuple(changes))


def check_fits(text: object, shape: tuple[int, ...], plain: bool) -> None:
    """Refuse what cannot be done with samples of this shape; `plain`: their numbers are quantities
    of one input."""
    if text is None:
        return
    if not plain:
        raise UserError("augment is for samples of quantities in one input; leave it out")
    names = {word.name for word in words_of(text)} if isinstance(text, str) else set()
    if names & {"flip", "crop"} and len(shape) != 3:
        raise UserError(
            f"augment {' and '.join(sorted(names & {'flip', 'crop'}))} needs images [C, H, W], got"
            f" samples of shape {list(shape)}; use noise or your own file.py:function"
        )


def flip(x: Tensor, draw: np.random.Generator, amount: float | None) -> Tensor:
    """Left and right exchanged, for half of the images (or a share of `amount`)."""
    import torch

    chosen = draw.random(len(x)) < (0.5 if amount is None else amount)
    return torch.where(torch.from_numpy(chosen).to(x.device)[:, None, None, None], x.flip(-1), x)


def crop(x: Tensor, draw: np.random.Generator, amount: float | None) -> Tensor:
    """Every image moved by up to `amount` pixels (an eighth of its side), zeros where it ends."""
    import torch
    import torch.nn.functional as F

    (n, channels, height, width), far = x.shape, amount
    most = int(max(1, min(height, width) // 8) if far is None else far)
    down, right = torch.from_numpy(draw.integers(0, 2 * most + 1, (2, n))).to(x.device)
    rows = down[:, None] + torch.arange(height, device=x.device)
    columns = right[:, None] + torch.arange(width, device=x.device)
    padded = F.pad(x, (most, most, most, most))
    image = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def noise(x: Tensor, draw: np.random.Generator, amount: float | None) -> Tensor:
    """Normal noise of deviation `amount` (0.1) on every number."""
    import torch

    drawn = draw.normal(0.0, 0.1 if amount is None else amount, tuple(x.shape))
    return x + torch.from_numpy(drawn).to(x)


NAMED: dict[str, Callable[..., Tensor]] = {"flip": flip, "crop": crop, "noise": noise}


def _amount(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    limit = {"flip": 1.0, "crop": 1000.0, "noise": 1e6}[name]
    if not 0 < amount <= limit or (name == "crop" and amount != int(amount)):
        kind = "a whole number of pixels" if name == "crop" else "a number"
        raise UserError(f"augment {name}:{text}: give {kind} above 0 and at most {limit:g}")
    return amount


def _checked(change: Callable[..., Any], name: str) -> Change:
    """Own code may fail in every way, and must keep the form of the batch."""

    def checked(x: Tensor, draw: np.random.Generator) -> Tensor:
        with own_code.running(f"augment '{name}'"):
            made = change(x, draw)
        if getattr(made, "shape", None) != x.shape or getattr(made, "dtype", None) != x.dtype:
            raise UserError(
                f"augment '{name}' must return a tensor like its batch, {list(x.shape)} {x.dtype}"
            )
        return made

    return checked
