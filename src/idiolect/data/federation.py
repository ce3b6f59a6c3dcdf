"""Federation: the clients with their data."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.errors import UserError

PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Federation:
    """N clients and their samples. Every sample is stored once, in `x` and `y`; the training,
    validation and test part of a client are tensors of row numbers.

    `x` is uint8 (a model sees x / 255), floating point, or int64 (tokens: a model that can sees
    them as they are, another as floating point), [M, C, H, W] for images and [M, D] for vectors.
    `mean` and `std` are per channel and apply after the division by 255.
    """

    x: Tensor
    y: Tensor  # [M], int64
    train: tuple[Tensor, ...]  # of every client: row numbers
    val: tuple[Tensor, ...]  # empty: no client has a validation part
    test: tuple[Tensor, ...]
    classes: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    names: tuple[str, ...] = ()  # not given: "0", "1", ...
    unseen: tuple[int, ...] = ()  # clients that never take part in training
    info: dict[str, Any] = field(default_factory=dict)  # where the data comes from

    def __post_init__(self) -> None:
        # The class is frozen: what has a short form is replaced by its full form here.
        def fill(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for part in PARTS:
            fill(part, tuple(torch.as_tensor(rows) for rows in getattr(self, part)))
        if not self.val:
            fill("val", tuple(torch.empty(0, dtype=torch.int64) for _ in self.train))
        fill("names", tuple(self.names) or tuple(str(i) for i in range(len(self.train))))
        fill("unseen", tuple(sorted(int(i) for i in self.unseen)))
        fill("classes", _whole("classes", self.classes))
        self._check_samples()
        for name in ("mean", "std"):
            fill(name, _per_channel(name, getattr(self, name), self.shape[0]))
        if self.std is not None and min(self.std) <= 0:
            raise UserError(f"std must be positive in every channel, got {self.std}")
        self._check_clients()

    @property
    def n_clients(self) -> int:
        return len(self.train)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def seen(self) -> tuple[int, ...]:
        """Clients that take part in training."""
        held_out = set(self.unseen)
        return tuple(i for i in range(self.n_clients) if i not in held_out)

    def sizes(self, part: str) -> Tensor:
        """Number of samples of every client in "train", "val" or "test": int64 [N]."""
        if part not in PARTS:
            raise UserError(f"unknown part '{part}'; known: {', '.join(PARTS)}")
        return torch.tensor([len(rows) for rows in getattr(self, part)], dtype=torch.int64)

    def inputs(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Samples as a model sees them: floating point, divided by 255 if uint8, normalised."""
        x = self.x[rows]
        x = x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype)
        across = (1, -1) + (1,) * (x.ndim - 2)
        if self.mean is not None:
            x = x - torch.tensor(self.mean, dtype=dtype).view(across)
        if self.std is not None:
            x = x / torch.tensor(self.std, dtype=dtype).view(across)
        return x

    def _check_samples(self) -> None:
        x, y = self.x, self.y
        if x.ndim < 2:
            raise UserError(f"x must be [M, D] or [M, C, H, W], got shape {tuple(x.shape)}")
        if x.dtype not in (torch.uint8, torch.int64) and not x.is_floating_point():
            raise UserError(
                f"x must be uint8, int64 or floating point, got {x.dtype}; convert it first"
            )
        if y.dtype != torch.int64 or y.shape != x.shape[:1]:
            raise UserError(
                f"y must be int64 of shape [{len(x)}] as x has {len(x)} samples,"
                f" got {y.dtype} {list(y.shape)}"
            )
        if self.classes < 1:
            raise UserError(f"classes must be at least 1, got {self.classes}")

    def _check_clients(self) -> None:
        n = self.n_clients
        if n < 1:
            raise UserError("a federation needs at least one client")
        if len(self.val) != n or len(self.test) != n:
            raise UserError(
                f"train, val and test must have one entry per client,"
                f" got {n}, {len(self.val)} and {len(self.test)}"
            )
        if len(self.names) != n or len(set(self.names)) != n:
            raise UserError(f"names must be {n} different names, one per client")
        if len(set(self.unseen)) != len(self.unseen) or any(not 0 <= i < n for i in self.unseen):
            raise UserError(f"unseen must be different client ids below {n}, got {self.unseen}")
        if len(self.unseen) >= n:
            raise UserError(f"all {n} clients are unseen: none is left to train; lower unseen")
        bad = ~_finite_rows(self.x)
        bad_label = (self.y < 0) | (self.y >= self.classes)
        for i in range(n):
            who = self._who(i)
            for part in PARTS:
                rows = getattr(self, part)[i]
                if rows.dtype != torch.int64 or rows.ndim != 1:
                    raise UserError(f"{who}: {part} must be a 1-d int64 tensor of row numbers")
                if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self.x):
                    raise UserError(f"{who}: {part} has row numbers outside 0..{len(self.x) - 1}")
                if bool(bad[rows].any()):
                    raise UserError(
                        f"{who}: NaN or infinite value in x_{part}; clean or drop those samples"
                    )
                if bool(bad_label[rows].any()):
                    label = int(self.y[rows][bad_label[rows]][0])
                    raise UserError(
                        f"{who}: label {label} in y_{part} is outside 0..{self.classes - 1};"
                        f" relabel or set classes"
                    )
            self._check_not_empty(i, who)

    def _check_not_empty(self, i: int, who: str) -> None:
        total = sum(len(getattr(self, part)[i]) for part in PARTS)
        fix = "raise split.min_size or lower split.clients"
        count = f"{total} sample" + ("" if total == 1 else "s")
        for rows, purpose in ((self.train[i], "training"), (self.test[i], "testing")):
            if len(rows) == 0:
                raise UserError(f"{who} has {count}: none left for {purpose}; {fix}")

    def _who(self, i: int) -> str:
        return f"client {i}" + (f" ({self.names[i]})" if self.names[i] != str(i) else "")

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[Mapping[str, Any]],
        classes: int | None = None,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        names: Sequence[str] | None = None,
        unseen: Sequence[int] = (),
    ) -> "Federation":
        """A federation of your own data. Give one mapping per client with x_train, y_train, x_test
        and y_test, and with x_val and y_val if you have a validation part. Values are NumPy arrays
        or tensors. Not given, `classes` is the largest label plus one."""
        xs: list[Tensor] = []
        ys: list[Tensor] = []
        parts: dict[str, list[Tensor]] = {part: [] for part in PARTS}
        start = 0
        for i, client in enumerate(clients):
            _check_keys(i, client)
            for part in PARTS:
                x, y = _pair(i, part, client)
                if len(x) and xs and (x.shape[1:] != xs[0].shape[1:] or x.dtype != xs[0].dtype):
                    raise UserError(
                        f"client {i}: x_{part} holds {x.dtype} samples of shape"
                        f" {list(x.shape[1:])}, others {xs[0].dtype} of {list(xs[0].shape[1:])};"
                        " bring all clients to one form"
                    )
                if len(x):
                    xs.append(x)
                    ys.append(y)
                parts[part].append(torch.arange(start, start + len(x)))
                start += len(x)
        if not xs:
            raise UserError("no samples: every client needs x_train, y_train, x_test and y_test")
        y = torch.cat(ys)
        return cls(
            x=torch.cat(xs).contiguous(),
            y=y,
            train=tuple(parts["train"]),
            val=tuple(parts["val"]),
            test=tuple(parts["test"]),
            classes=int(y.max()) + 1 if classes is None else classes,
            mean=mean,  # type: ignore[arg-type]  # a number, too: it is for every channel
            std=std,  # type: ignore[arg-type]
            names=tuple(str(name) for name in names) if names is not None else (),
            unseen=tuple(unseen),
            info={"source": {"name": "arrays"}},
        )


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be a whole number, got {value!r}") from None


def _per_channel(
    name: str, value: Sequence[float] | float | None, channels: int
) -> tuple[float, ...] | None:
    """One value per channel; a single value is for every channel."""
    if value is None:
        return None
    try:
        values = np.atleast_1d(np.asarray(value, dtype=np.float64)).tolist()
    except (TypeError, ValueError):
        raise UserError(f"{name} must be a number or one per channel, got {value!r}") from None
    if len(values) not in (1, channels):
        raise UserError(f"{name} has {len(values)} values but samples have {channels} channels")
    if not np.isfinite(values).all():
        raise UserError(f"{name} must be finite, got {tuple(values)}")
    return tuple(values) * (channels if len(values) == 1 else 1)


def _finite_rows(x: Tensor) -> Tensor:
    """[M], whether a sample has neither NaN nor infinite values."""
    if not x.is_floating_point():
        return torch.ones(len(x), dtype=torch.bool)
    # In blocks, so that a memory-mapped x is not doubled in memory.
    starts = range(0, len(x), 8192)
    blocks = [torch.isfinite(x[i : i + 8192]).flatten(1).all(1) for i in starts]
    return torch.cat(blocks) if blocks else torch.ones(0, dtype=torch.bool)


def _check_keys(i: int, client: Mapping[str, Any]) -> None:
    known = {f"{v}_{part}" for v in "xy" for part in PARTS}
    for key in client:
        if key not in known:
            raise UserError(f"client {i}: unknown array '{key}'; known: {', '.join(sorted(known))}")
    for key in ("x_train", "y_train", "x_test", "y_test"):
        if key not in client:
            raise UserError(f"client {i}: '{key}' is missing")
    if ("x_val" in client) != ("y_val" in client):
        raise UserError(f"client {i}: give both x_val and y_val, or neither")


def _pair(i: int, part: str, client: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """x and y of one part of one client, in the types that a Federation holds."""
    if f"x_{part}" not in client:
        return torch.empty(0, 1), torch.empty(0, dtype=torch.int64)
    try:
        x, y = (_tensor(client[f"{v}_{part}"]) for v in "xy")
    except (TypeError, ValueError) as error:
        raise UserError(f"client {i}: {part} is not a numeric array ({error})") from None
    if y.is_floating_point() or y.ndim != 1:
        raise UserError(f"client {i}: y_{part} must be whole numbers of shape [M]")
    if len(x) != len(y):
        raise UserError(f"client {i}: x_{part} has {len(x)} samples, y_{part} {len(y)} labels")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        x = x.to(torch.int64)
    return x, y.to(torch.int64)


def _tensor(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu()
    return torch.as_tensor(np.array(array))
