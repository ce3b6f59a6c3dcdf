"""All clients of a round in one kernel, or as many as fit; `stacked_local.py` has what they do."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from idiolect.core import devices, record, tree
from idiolect.core.net import Net
from idiolect.core.tree import Tree
from idiolect.engine import layers
from idiolect.engine.cuda_graphs import CapturedSteps
from idiolect.engine.engine import Engine
from idiolect.engine.layers import conv, dropout, loss
from idiolect.engine.layers.stack_function import fused
from idiolect.engine.samples import Part, SampleWindow
from idiolect.engine.samples_local import EVAL_BATCH
from idiolect.engine.stacked_local import StackedLocal
from idiolect.engine.threads import ClientThreads, Nets

MIN_ACTIVATION_BYTES_TO_NARROW = 32 << 10  # that one sample leaves for the backward pass
MIN_TENSOR_BYTES_TO_NARROW = 512 << 10  # of the tensors that a batch leaves, on average
# Of outputs by our layers from PyTorch's, which add up in another order. Products in TF32 see 11
# bits of their operands, in bfloat16 8; float32 has 24, float64 53. Deep networks add up roundings:
# there is room for that, as a false alarm costs the stack.
MAX_DISTANCE = {"bfloat16": 0.05, "tf32": 0.02, "float32": 1e-3, "float64": 1e-9}
MAX_TEST_LAYOUTS = 8  # sets of clients whose test batches are remembered


class StackedEngine(Engine):
    """All clients of a group in one kernel. The exception is a CPU: large convolutions and large
    batches are computed client by client, as stacks of one, because what one client leaves for the
    backward pass fits the caches better than that of all; and so are LSTMs, for which PyTorch has a
    kernel there."""

    name = "stacked"
    narrow_on_cpu = True

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._plain = self._values()
        for net in (self.net, self.train_net):
            layers.install(net.module, self.device)
            if self.device.type == "cuda" and fused() is not None:
                net.class_loss = loss.of_samples
        self.misfit = self._other_values()
        if self.device.type == "cpu":
            devices.keep_freed_memory()
        self.narrow = self._better_alone()
        on_gpu = self.device.type == "cuda"
        if self.narrow_on_cpu and not on_gpu:
            threads = torch.get_num_threads() if self._can_use_threads() else 1
            self.threads = ClientThreads(self.nets, threads)
            self.train_net.class_loss = loss.of_one
        self.captured_steps = CapturedSteps(self.samples) if on_gpu else None
        self._test_layouts: dict[Any, Any] = {}
        # Samples that one model is tested on at once: many for a GPU, few for the caches of a CPU.
        self._test_batch = 8 * EVAL_BATCH if on_gpu else EVAL_BATCH // 4

    def _values(self) -> Tensor:
        """What the network makes of two samples, with the same random numbers each time."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(0)
            return self._try(self.net)

    def _other_values(self) -> str | None:
        """What is wrong if our layers give other values, as in a network that calls single layers
        of an `nn.Sequential`, which are no longer what they were; None: nothing."""
        try:
            ours = self._values()
        except (RuntimeError, ValueError, IndexError) as error:
            return str(error).splitlines()[0]
        plain, most = self._plain, MAX_DISTANCE[rounding(self.dtype, self.products, self.device)]
        far = ours.shape != plain.shape or (ours - plain).norm() > most * plain.norm()
        return "its layers give other values in a stack" if far else None

    def lay_by_planes(self) -> bool:
        """Let convolutions give images plane by plane in memory, as PyTorch's own do: some networks
        count on it. Whether that changes anything."""
        nets = (self.net, self.train_net) if self.device.type == "cuda" else ()
        changed = [layers.lay_by_planes(net.module) for net in nets]
        self.misfit = self._other_values() if any(changed) else self.misfit
        return any(changed)

    def groups(self, ids: Sequence[int]) -> Iterator[list[int]]:
        """The whole cohort, or equal parts of it that fit the memory."""
        for part in self.chunks.cut(self._sizes(ids, "train"), self.guess):
            yield list(part)

    def local(self, ids: list[int], round: int, nets: Nets | None = None) -> StackedLocal:
        keys = [self.keys[i] for i in ids]
        local = StackedLocal(self.samples, *(nets or self.nets), round, ids, keys)
        local.captured_steps, local.augment = self.captured_steps, self.augment
        return local

    def alone(self, part: Part, batch_size: int | Literal["full"]) -> bool:
        """Judged by the largest batch of all clients, whoever takes part: a run that is resumed, or
        is a round further, must round as before."""
        if self.threads is None or self.narrow:
            return self.narrow
        largest = self._largest[part]
        samples = largest if batch_size == "full" else min(batch_size, largest)
        left = self._footprint
        return samples * left.activations >= MIN_TENSOR_BYTES_TO_NARROW * max(1, left.tensors)

    def _better_alone(self) -> bool:
        """On a CPU, whatever the batch: large convolutions, and LSTMs, which PyTorch computes there
        as a whole."""
        if not self.narrow_on_cpu or self.device.type != "cpu":
            return False
        modules = list(self.net.module.modules())
        images = any(isinstance(m, conv.Conv2d) for m in modules)
        large = self._footprint.activations >= MIN_ACTIVATION_BYTES_TO_NARROW
        return (images and large) or any(isinstance(m, nn.LSTM) for m in modules)

    def _can_use_threads(self) -> bool:
        """Clients may train in several threads: nothing they share changes meanwhile. PyTorch's
        random numbers, its switch for attention and a window on the samples would."""
        if self.net.attends or isinstance(self.samples, SampleWindow):
            return False
        self.train_net.draws = self._draws()
        return not self.train_net.draws

    def _draws(self) -> bool:
        """Whether the network asks PyTorch's common generator for random numbers in training:
        tried."""
        with torch.random.fork_rng([]), dropout.drawing_from(0):
            before = torch.get_rng_state()
            self._try(self.train_net)
            return not torch.equal(before, torch.get_rng_state())

    @torch.no_grad()
    def _evaluate_here(self, params: Tree, ids: Sequence[int], part: Part) -> tuple[Tensor, Tensor]:
        if all(v.stride(0) == 0 or len(v) == 1 for v in params.values()):
            return self._evaluate_shared(tree.client(params, 0), ids, part)
        sizes = self._sizes(ids, part)
        if self.threads is not None and self.alone(part, self._test_batch):
            none = torch.zeros((), dtype=torch.float64)

            def test(nets: Nets, k: int) -> Tensor:
                own = tree.client(params, k)
                pieces = self.samples.in_pieces(self.samples.parts[part][ids[k]], self._test_batch)
                return sum((self._scores(nets[0], own, at).sum(1) for at in pieces), none)

            return _apart(torch.stack(self.threads.map(test, sizes), 1))
        most = self.chunks.most(self.guess(min(EVAL_BATCH, max(sizes))), len(ids))
        if most < len(ids):
            spans = [slice(at, at + most) for at in range(0, len(ids), most)]
            parts = [self._evaluate_here(record.select(params, s), ids[s], part) for s in spans]
            return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        order, batches = self._remembered(self._test_batches, ids, part)
        order_there = devices.to_device(order, self.device)
        stack = {n: v[order_there] for n, v in params.items()}
        correct = self._no_scores(len(ids)).to(self.device, torch.float64)
        loss = torch.zeros(len(ids), device=self.device, dtype=torch.float64)
        for batch in batches:
            k, at = len(batch), self.samples.on_device(batch)
            given, real = at.clamp_min(0), at >= 0
            inputs, y = self.samples.inputs(given), self.samples.y[given]
            logits = torch.vmap(self.net)({n: v[:k] for n, v in stack.items()}, inputs)
            flat = logits.flatten(0, 1), y.flatten(0, 1)
            each = self.task.test_loss(*flat)
            found = self.task.metric.statistics(*flat).reshape(*real.shape, -1)
            found = (found * real[..., None]).sum(1)
            correct[:k] += found if correct.ndim > 1 else found[:, 0]
            loss[:k] += (each.reshape(real.shape) * real).sum(1)
        back = devices.to_device(torch.argsort(order), self.device)
        return correct[back], loss[back]

    def _test_batches(self, ids: tuple[int, ...], part: Part) -> tuple[Tensor, list[Tensor]]:
        """Clients from most to fewest samples, and their samples in batches `[k, B]` filled up with
        -1."""
        index = [self.samples.parts[part][i] for i in ids]
        order = sorted(range(len(ids)), key=lambda k: -len(index[k]))
        batches = []
        for at in range(0, len(index[order[0]]), EVAL_BATCH):
            batch = [index[k][at : at + EVAL_BATCH] for k in order if len(index[k]) > at]
            padded = nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=-1)
            batches.append(self.samples.reusable(padded))
        return torch.tensor(order), batches

    def _evaluate_shared(
        self, params: Tree, ids: Sequence[int], part: Part
    ) -> tuple[Tensor, Tensor]:
        """One model for all: the clients' samples in large common batches."""
        everyone, sizes = self._remembered(self._test_samples, ids, part)
        pieces = self.samples.in_pieces(everyone, self._test_batch)
        if self.threads is None or not self.narrow or self.threads.max_threads == 1:
            scores = [self._scores(self.net, params, at) for at in pieces]
        else:
            there = list(pieces)
            scores = self.threads.map(
                lambda nets, k: self._scores(nets[0], params, there[k]), [len(p) for p in there]
            )
        rows = torch.cat(scores, 1)
        # Checked lengths are read by the host, which would wait for the GPU; these are right.
        how = {"lengths": sizes, "initial": 0, "unsafe": True}
        summed = [torch.segment_reduce(row, "sum", **how) for row in rows]
        return _apart(torch.stack(summed))

    def _scores(self, net: Net, params: Tree, at: Tensor) -> Tensor:
        """Of one model and each sample: what the metric sums (1 if it is classified correctly), and
        the loss, `[S + 1, n]`."""
        logits, y = net(params, self.samples.inputs(at)), self.samples.y[at]
        loss = self.task.test_loss(logits, y).double()
        return torch.cat([self.task.metric.statistics(logits, y).T, loss[None]])

    def _test_samples(self, ids: tuple[int, ...], part: Part) -> tuple[Tensor, Tensor]:
        """All samples of these clients, one after the other, and how many each has."""
        index = [self.samples.parts[part][i] for i in ids]
        sizes = devices.to_device(torch.tensor([len(i) for i in index]), self.device)
        return self.samples.reusable(torch.cat(index)), sizes

    def _remembered(self, make: Any, ids: Sequence[int], part: Part) -> Any:
        """The same clients are tested again and again: how the latest lie is kept."""
        key = (make.__name__, tuple(ids), part)
        if key not in self._test_layouts:
            while len(self._test_layouts) >= MAX_TEST_LAYOUTS:
                del self._test_layouts[next(iter(self._test_layouts))]
            self._test_layouts[key] = make(tuple(ids), part)
        return self._test_layouts[key]


def rounding(dtype: torch.dtype, products: torch.dtype | None, device: torch.device) -> str:
    """What the products of networks are rounded to."""
    tf32 = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    if products is None and dtype == torch.float32 and device.type == "cuda" and tf32:
        return "tf32"
    return str(products or dtype).removeprefix("torch.")


def _apart(scores: Tensor) -> tuple[Tensor, Tensor]:
    """`[S + 1, K]` as what the metric sums, `[K]` or `[K, S]`, and the loss."""
    found, loss = scores[:-1], scores[-1]
    return found[0] if len(found) == 1 else found.T, loss
