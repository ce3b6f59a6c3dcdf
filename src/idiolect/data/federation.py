"""Federation: the clients with their data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.core import own_metric
from idiolect.core.form import PLAIN, Form
from idiolect.core.task import CLASSIFICATION, IGNORED, LearningTask
from idiolect.data.client_arrays import PARTS as PARTS
from idiolect.data.client_arrays import check_alike, check_keys, pair
from idiolect.data.federation_values import (
    by_blocks,
    counted,
    finite_rows,
    listed,
    per_channel,
    row_numbers,
    told,
    whole_number,
)
from idiolect.data.limits import LARGEST_CLASSES
from idiolect.data.packed import checked_form, one_tensor
from idiolect.errors import UserError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Federation:
    """N clients and their samples. Every sample is stored once, in `x` and `y`; the training,
    validation and test part of a client are tensors of row numbers.

    `x` is uint8 (a model sees x / 255), floating point, or int64 (tokens: a model that can sees
    them as they are, another as floating point), [M, C, H, W] for images and [M, D] for vectors.
    `mean` and `std` are per channel and apply after the division by 255.
    """

    x: Tensor
    y: Tensor  # [M], int64; by step [M, T]; without classes [M, classes], floating point
    train: tuple[Tensor, ...]  # of every client: row numbers
    val: tuple[Tensor, ...]  # empty: no client has a validation part
    test: tuple[Tensor, ...]
    classes: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    names: tuple[str, ...] = ()  # not given: "0", "1", ...
    unseen: tuple[int, ...] = ()  # clients that never take part in training
    info: dict[str, Any] = field(default_factory=dict)  # where the data comes from
    task: LearningTask = CLASSIFICATION
    form: Form = PLAIN  # what the numbers of x mean, where shape and type do not say it

    def __post_init__(self) -> None:
        # The class is frozen: what has a short form is replaced by its full form here.
        def fill(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for part in PARTS:
            fill(part, row_numbers(part, getattr(self, part)))
        if not self.val:
            fill("val", tuple(torch.empty(0, dtype=torch.int64) for _ in self.train))
        fill("names", listed("names", self.names) or tuple(map(str, range(len(self.train)))))
        fill(
            "unseen",
            tuple(sorted(whole_number("unseen", i) for i in listed("unseen", self.unseen))),
        )
        fill("classes", whole_number("classes", self.classes))
        self._check_samples()
        fill("form", checked_form(self.form, self.x, self.y.shape[1] if self.task.per_step else 0))
        for name in ("mean", "std"):
            fill(name, per_channel(name, getattr(self, name), self.shape[0]))
        if self.std is not None and min(np.array(self.std, np.float32)) <= 0:
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
    def plain_quantities(self) -> bool:
        """Whether a sample is quantities of one input, without codes."""
        return not self.form.fields and not any(self.form.codes)

    @property
    def seen(self) -> tuple[int, ...]:
        """Clients that take part in training."""
        held_out = set(self.unseen)
        return tuple(i for i in range(self.n_clients) if i not in held_out)

    @cached_property  # every round asks, and it looks at all clients
    def names_given(self) -> tuple[str, ...]:
        """The clients' names; none where they are only numbered."""
        numbered = self.names == tuple(map(str, range(self.n_clients)))
        return () if numbered else self.names

    def sizes(self, part: str) -> Tensor:
        """Number of samples of every client in "train", "val" or "test": int64 [N]."""
        if part not in PARTS:
            raise UserError(f"unknown part '{part}'; known: {', '.join(PARTS)}")
        return torch.tensor([len(rows) for rows in getattr(self, part)], dtype=torch.int64)

    def inputs(self, rows: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
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
        for name, value in (("x", x), ("y", y)):
            if not isinstance(value, Tensor) or value.layout != torch.strided:
                got = type(value).__name__ if not isinstance(value, Tensor) else "a sparse one"
                raise UserError(f"{name} must be a dense tensor, got {got}")
        if x.ndim < 2 or 0 in x.shape[1:]:
            raise UserError(f"x must be [M, D] or [M, C, H, W], got shape {list(x.shape)}")
        if x.dtype not in (torch.uint8, torch.int64, *FLOATS):
            raise UserError(
                f"x must be uint8, int64 or floating point, got {x.dtype}; convert it first"
            )
        if self.task.per_step:
            self._check_steps()
        elif not self.task.has_classes:
            self._check_targets()
        elif y.dtype != torch.int64 or y.shape != x.shape[:1]:
            raise UserError(
                f"y must be int64 of shape [{len(x)}] as x has {len(x)} samples,"
                f" got {y.dtype} {list(y.shape)}"
            )
        if not 1 <= self.classes <= LARGEST_CLASSES:
            allowed = f"at least 1 and at most {LARGEST_CLASSES}"
            raise UserError(f"classes must be {allowed}, got {self.classes}")

    def _check_steps(self) -> None:
        y = self.y
        if y.dtype != torch.int64 or y.ndim != 2 or len(y) != len(self.x) or not y.shape[1]:
            raise UserError(
                f"y must be int64 of shape [{len(self.x)}, steps] for {self.task.name}, got"
                f" {y.dtype} {list(y.shape)}"
            )

    def _check_targets(self) -> None:
        wanted, got = [len(self.x), self.classes], list(self.y.shape)
        if not self.y.is_floating_point() or got != wanted:
            raise UserError(
                f"y must be floating point of shape {wanted} for {self.task.name}, got"
                f" {self.y.dtype} {got}"
            )
        if not bool(torch.isfinite(self.y).all()):
            raise UserError("y has NaN or infinite values; clean or drop those samples")
        if self.task.name == "multilabel" and not bool(((self.y == 0) | (self.y == 1)).all()):
            raise UserError("y must be 0 or 1 for multilabel; write 1 where a label applies")

    def _check_clients(self) -> None:
        n = self.n_clients
        if n < 1:
            raise UserError("a federation needs at least one client")
        if len(self.val) != n or len(self.test) != n:
            raise UserError(
                f"train, val and test must have one entry per client,"
                f" got {n}, {len(self.val)} and {len(self.test)}"
            )
        words = all(isinstance(name, str) for name in self.names)
        if len(self.names) != n or not words or len(set(self.names)) != n:
            raise UserError(f"names must be {n} different names, one per client")
        if len(set(self.unseen)) != len(self.unseen) or any(not 0 <= i < n for i in self.unseen):
            raise UserError(f"unseen must be different client ids below {n}, got {self.unseen}")
        if len(self.unseen) >= n:
            raise UserError(f"all {n} clients are unseen: none is left to train; lower unseen")
        bad, large = ~finite_rows(self.x), ~self._rows_within_reach()
        strange = (self.y < 0) | (self.y >= self.classes)
        if self.task.per_step:
            strange &= self.y != IGNORED
        elif not self.task.has_classes:
            strange = torch.zeros(len(self.y), dtype=torch.bool)
        bad_label = strange.reshape(len(self.y), -1).any(1)
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
                if bool(large[rows].any()):
                    raise UserError(
                        f"{who}: a value in x_{part} is too large for float32 (3.4e38) as a model"
                        " sees it; scale x, mean and std"
                    )
                if bool(bad_label[rows].any()):
                    label = int(self.y[rows][strange[rows]][0])
                    raise UserError(
                        f"{who}: label {label} in y_{part} is outside 0..{self.classes - 1};"
                        f" relabel or set classes"
                    )
            self._check_not_empty(i, who)

    def _rows_within_reach(self) -> Tensor:
        """[M], whether a sample stays finite in the precision that clients compute with."""
        if self.x.dtype == torch.uint8:
            ends = torch.tensor([[0.0], [1.0]]) - torch.tensor(self.mean or (0.0,))
            sound = bool(torch.isfinite(ends / torch.tensor(self.std or (1.0,))).all())
            return torch.full((len(self.x),), sound)
        return by_blocks(len(self.x), lambda rows: torch.isfinite(self.inputs(rows)))

    def _check_not_empty(self, i: int, who: str) -> None:
        total = sum(len(getattr(self, part)[i]) for part in PARTS)
        fix = "raise split.min_size or lower split.clients"
        count = f"{total} sample" + ("" if total == 1 else "s")
        for rows, purpose in ((self.train[i], "training"), (self.test[i], "testing")):
            if len(rows) == 0:
                raise UserError(f"{who} has {count}: none left for {purpose}; {fix}")

    def _who(self, i: int) -> str:
        return f"client {i}" + (f" ({self.names[i]})" if self.names[i] != str(i) else "")

    def __repr__(self) -> str:
        return told(self)

    def judged_by(self, metric: str | Callable[..., Tensor]) -> "Federation":
        """The same clients with another metric: a name, or a function of outputs and targets that
        gives a value per sample."""
        name = metric if isinstance(metric, str) else own_metric.taken(metric)
        return replace(self, task=LearningTask(self.task.name, name))

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[Mapping[str, Any]],
        classes: int | None = None,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        names: Sequence[str] | None = None,
        unseen: Sequence[int] = (),
        task: LearningTask | str = CLASSIFICATION,
        form: Form = PLAIN,
    ) -> "Federation":
        """A federation of your own data. Give one mapping per client with x_train, y_train, x_test
        and y_test, and with x_val and y_val if you have a validation part. Values are NumPy arrays
        or tensors; x may be a dict or a tuple of arrays, as your network takes them. Not given,
        `classes` is the largest label plus one. For a `task` other than classification, y holds a
        number, or several, per sample; a class for every step in `next-token` and `sequence`."""
        task = LearningTask(task) if isinstance(task, str) else task
        xs: list[Tensor] = []
        ys: list[Tensor] = []
        parts: dict[str, list[Tensor]] = {part: [] for part in PARTS}
        start = 0
        for i, client in enumerate(listed("clients", clients)):
            check_keys(i, client)
            client, form = one_tensor(i, client, form)
            for part in PARTS:
                x, y = pair(i, part, client, task)
                check_alike(i, part, (x, y), (xs[0], ys[0]) if xs else None)
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
            classes=counted(y, task) if classes is None else classes,
            task=task,
            form=form,
            mean=mean,  # type: ignore[arg-type]  # a number, too: it is for every channel
            std=std,  # type: ignore[arg-type]
            names=tuple(map(str, listed("names", names))) if names is not None else (),
            unseen=unseen,  # type: ignore[arg-type]  # any list of whole numbers
            info={"source": {"name": "arrays"}},
        )

    @classmethod
    def from_datasets(
        cls,
        clients: Sequence[Any],
        *,
        test_share: float = 0.25,
        seed: int = 0,
        **options: Any,
    ) -> "Federation":
        """PyTorch datasets, one per client, whose items are (x, y): one dataset, of which
        `test_share` becomes the test part, or (train, test), or (train, val, test). The other
        options are those of `from_arrays`."""
        from idiolect.data.torch_datasets import arrays_of

        made = [
            arrays_of(i, one, test_share, seed) for i, one in enumerate(listed("clients", clients))
        ]
        return cls.from_arrays(made, **options)

    @classmethod
    def from_files(
        cls,
        path: str | Path,
        *,
        split: Mapping[str, Any] | str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> "Federation":
        """Your own files, as `--data PATH` reads them; options are those of `data:`, such as
        `client="site"`. Without a `split` the data must name clients."""
        from idiolect.data.own.from_files import federation

        return federation(path, split, seed, options)

    @classmethod
    def from_hub(
        cls,
        repository: str,
        *,
        folder: str = "",
        revision: str | None = None,
        split: Mapping[str, Any] | str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> "Federation":
        """A dataset of the Hugging Face hub with Parquet or CSV files (in `folder`, if there are
        several), read as `from_files` does. What was fetched before is not fetched again."""
        from idiolect.data.places import fetched

        where = fetched(repository, revision) / folder
        return cls.from_files(where, split=split, seed=seed, **options)
