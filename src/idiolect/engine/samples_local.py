"""What the handles of both engines share: clients' training samples, one client after the other."""

from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from idiolect.core import devices, rng, tree
from idiolect.core.augmentation import Change
from idiolect.core.batches import BatchPlan
from idiolect.core.local import Local
from idiolect.core.net import Net
from idiolect.core.record import Rows
from idiolect.engine.layers import dropout
from idiolect.engine.samples import Samples

EVAL_BATCH = 512  # samples of a pass that is not training


class SamplesLocal(Local):
    """A `Local` over `Samples`."""

    augment: Change | None = None  # what training batches are changed by

    def __init__(
        self,
        samples: Samples,
        net: Net,
        train_net: Net,
        round: int,
        ids: list[int],
        keys: list[tuple[int, int]],
    ):
        super().__init__(net, round, ids, keys, samples.device, samples.dtype)
        self.samples, self.train_net = samples, train_net
        labels = [samples.train_labels(i) for i in ids]
        index = [samples.parts["train"][i] for i in ids]
        self._hold(index, [y for y, _ in labels], [counts for _, counts in labels])

    def _hold(self, index: list[Tensor], y: list[np.ndarray], counts: list[Tensor]) -> None:
        """Each client's training samples: where they lie, their labels, how many of each class."""
        self.index_host = torch.cat(index)
        self._index, self._index_version = torch.empty(0), -1
        self.y_host, self.lengths = y, [len(one) for one in y]
        self.offsets = [0, *accumulate(self.lengths)]
        sizes = torch.tensor(self.lengths, dtype=self.dtype)
        self.sizes = devices.to_device(sizes, self.device)
        self.counts = devices.to_device(torch.stack(counts), self.device)

    def part(self, positions: Sequence[Tensor]) -> Self:
        part = copy(self)
        chosen = torch.cat(list(positions)).cpu().split([len(at) for at in positions])
        own = zip(self.index_host.split(self.lengths), self.y_host, chosen, strict=True)
        held = [(rows[at], y[at.numpy()]) for rows, y, at in own]
        index, y = [rows for rows, _ in held], [labels for _, labels in held]
        part._hold(index, y, [self.samples.counted(labels) for labels in y])
        return part

    @property
    def index(self) -> Tensor:
        """`[N]`: where the clients' training samples lie on the device."""
        if self._index_version != self.samples.contents_version:
            self._index = self.samples.on_device(self.index_host)
            self._index_version = self.samples.contents_version
        return self._index

    def _draw(self, purpose: str, k: int, number: int) -> np.random.Generator:
        """What changes the batch of client k in step `number` of this training by chance."""
        seed, client = self.keys[k]
        return rng.keyed(seed, f"augment/{purpose}", client, self.round, number)

    def class_mean(self, rows: Rows, **batches: Any) -> Tensor:
        means, index = [], self.index
        for k in range(len(self.ids)):
            at: Any = slice(self.offsets[k], self.offsets[k + 1])
            if batches:
                table, sizes = BatchPlan(**batches).table(self.y_host[k], *self.keys[k], self.round)
                held = np.concatenate([row[:n] for row, n in zip(table, sizes, strict=True)])
                at = devices.to_device(torch.as_tensor(held + self.offsets[k]), self.device)
            y = self.samples.y[index[at]]
            member = torch.nn.functional.one_hot(y, self.samples.classes).to(rows.values.dtype)
            share = member / member.sum(0).clamp_min(1)
            means.append(tree.mix(share.T, {"": rows.values[at]})[""])
        return torch.stack(means)


class dropout_seed:
    """Inside, dropout draws masks keyed by a purpose; torch's global generator stays as it was."""

    def __init__(self, purpose: str, local: SamplesLocal):
        gpus = [local.device] if local.device.type == "cuda" else []
        self._fork = torch.random.fork_rng(gpus, enabled=local.train_net.draws)
        self._device, self._draws = local.device, local.train_net.draws
        seed, client = local.keys[0]
        self._seed = rng.torch_seed(seed, f"dropout/{purpose}", client, local.round)
        self._own = dropout.drawing_from(self._seed)

    def __enter__(self) -> None:
        self._own.__enter__()
        self._fork.__enter__()
        if self._draws:  # not torch.manual_seed: it writes a traceback for every kind of device
            torch.default_generator.manual_seed(self._seed)
            if self._device.type == "cuda":
                torch.cuda.manual_seed(self._seed)

    def __exit__(self, *exc: Any) -> None:
        self._fork.__exit__(*exc)
        self._own.__exit__(*exc)
