"""How K clients compute: what both engines share.

Letters in the names and comments of this package:

    K  clients of a stack              k  those of them that take part in a step
    B  samples of a batch              T  steps of a round
    N  training samples of all clients of the stack, one client after the other
    C, H, W  channels, height and width of an image; O  output channels; I  inputs of a layer
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property, partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from idiolect.core import devices, own_code, record, tree
from idiolect.core.augmentation import Change
from idiolect.core.local import Loss
from idiolect.core.net import Net
from idiolect.core.tree import Record, Tree
from idiolect.data import Federation
from idiolect.engine import memory
from idiolect.engine.layers import functions
from idiolect.engine.ranks import CPU, Ranks, by_itself
from idiolect.engine.samples import Part, Samples, SampleWindow
from idiolect.engine.samples_local import EVAL_BATCH, SamplesLocal
from idiolect.engine.threads import ClientThreads, Nets
from idiolect.errors import UserError


def takes_whole_numbers(module: nn.Module, x: Tensor) -> bool:
    """Whether the samples are whole numbers that the network can take as they are (tokens), tried;
    otherwise it will see them as floating point."""
    if x.dtype != torch.int64:
        return False
    with torch.no_grad():
        try:
            where = next(module.parameters()).device
            deepcopy(module).eval()(x[:2].to(where))
        except (RuntimeError, ValueError, TypeError):
            return False
        except IndexError:
            raise UserError(
                f"samples hold tokens up to {int(x.max())}, more than the model's embedding has"
            ) from None
    return True


def lacks_variance(error: ValueError) -> bool:
    """Whether a BatchNorm was given single values to train on."""
    return "more than 1 value per channel" in str(error)


@contextmanager
def _single_samples_told() -> Iterator[None]:
    """A method may set some of a client's samples apart, or have a batch size besides `batch_size`:
    what it leaves to train on is seen only when it trains."""
    try:
        yield
    except ValueError as error:
        if not lacks_variance(error):
            raise
        raise UserError(
            "the method leaves a client a batch of one sample to train on, too few for the model's "
            "BatchNorm; raise split.min_size and the method's batch sizes, or use GroupNorm"
        ) from None


class Footprint(NamedTuple):
    """What a network takes of the memory."""

    model: int  # bytes of its parameters
    activations: float  # bytes that one sample leaves for the backward pass
    tensors: int  # that they are in


class Engine(ABC):
    """How K clients compute."""

    name: str
    own_loss: Loss | None = None  # of the user, instead of the task's
    augment: Change | None = None  # what training batches are changed by
    threads: ClientThreads | None = None  # where clients are computed one by one, side by side

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        keys: list[tuple[int, int]] | None = None,
        away: bool = False,
        products: torch.dtype | None = None,
    ):
        """`keys` gives the (seed, client) that each client's randomness is keyed by, where several
        federations share the engine. `away`: samples stay in host memory until clients work on
        them. `products`: networks compute in this type, while everything else is in `dtype`."""
        whole = federation.mean is None and takes_whole_numbers(module, federation.x)
        self.samples = (SampleWindow if away else Samples)(federation, device, dtype, whole)
        self.device, self.dtype = device, dtype
        self.keys = keys or [(seed, i) for i in range(federation.n_clients)]
        module = deepcopy(module).to(device, dtype)
        self.net = Net(module)
        self.train_net = Net(module, training=True)
        self.nets: Nets = (self.net, self.train_net)
        self.task = self.net.task = self.train_net.task = federation.task
        self.products = products
        if products is not None:
            self._compute_in(products)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for net in self.nets:
                if functions.needed(partial(self._try, net)):
                    net.around = functions.BetterFunctions
        self.ranks = Ranks.current()
        meter = memory.CudaMeter if device.type == "cuda" else memory.Meter
        self.chunks = memory.Chunks(meter(device))
        self._largest_batch: float = EVAL_BATCH

    def learn_by(self, loss: Loss | None, augment: Change | None) -> None:
        """From now on clients train by the user's own loss, on batches that are changed."""
        self.own_loss, self.augment = loss, augment
        for net in self.nets:
            net.own_loss = loss
        if loss is not None:
            self._try_loss(loss)

    def _try_loss(self, loss: Loss) -> None:
        """Own code may fail in every way: try it on two samples before the first round."""
        name = getattr(loss, "__name__", "loss")
        at = self.samples.on_device(self.samples.parts["train"][0][[0, 0]])
        state = self.net.module.state_dict()
        params = {n: state[n].detach().clone() for n in self.net.names}
        with own_code.running(f"loss '{name}'"):
            out = loss(self.net, params, self.samples.inputs(at), self.samples.y[at])
        if getattr(out, "shape", None) != (2,):
            got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise UserError(f"loss '{name}' must give one value per sample, [2], got {got}")

    def run(
        self,
        ids: Sequence[int],
        round: int,
        work: Callable[..., Record],
        *records: Record,
        batch_size: int | Literal["full"] = "full",
    ) -> Record:
        """Work of clients with their data, whatever it is: `work(local, *records)` of every group
        of clients that computes together, with their rows of the records. It returns a record of
        records with a row per client; the result is that of all clients, on every rank.
        `batch_size` is the largest that the work trains with."""
        self._largest_batch = float("inf") if batch_size == "full" else max(batch_size, EVAL_BATCH)
        self.samples.prepare()
        sizes = self._sizes(ids, "train")
        share = self.ranks.share(sizes)
        own, given = [ids[k] for k in share], [record.select(r, share) for r in records]
        done: list[Record] = []
        with by_itself(), _single_samples_told():
            if self.threads is not None and own and self.alone("train", batch_size):

                def alone(nets: Nets, k: int) -> Record:
                    local = self.local([own[k]], round, nets)
                    return work(local, *(record.select(r, [k]) for r in given))

                weights = [sizes[k] for k in share]
                at_once = self.chunks.most(self.guess(max(weights)), len(weights))
                done = self.threads.map(alone, weights, at_once)
            elif own:
                for group in self.groups(own):
                    local = self.local([own[g] for g in group], round)
                    done.append(work(local, *(record.select(r, group) for r in given)))
        out = self.ranks.combine(tree.join(done) if done else {}, sizes, self.device)
        if self.device.type == "cpu":
            done.clear()
            devices.return_freed_memory()
        return out

    def evaluate(self, params: Tree, ids: Sequence[int], part: Part) -> tuple[Tensor, Tensor]:
        """Correct predictions (or what else the task's metric sums, `[K, S]`) and summed loss of
        each client's model on its own samples, `[K]`; a GPU may still be computing them."""
        sizes = self._sizes(ids, part)
        share = self.ranks.share(sizes)
        correct, loss = self._no_scores(len(share)), torch.zeros(len(share))
        if any(sizes[k] for k in share):
            with by_itself():
                own, models = [ids[k] for k in share], record.select(params, share)
                correct, loss = self._evaluate_here(models, own, part)
                if self.task.metric.whole is not None:
                    correct = self._evaluate_whole(models, own, part)
        done = {"score": {"correct": correct.double(), "loss": loss.double()}}
        score = self.ranks.combine(done, sizes, CPU)["score"]
        return score["correct"], score["loss"]

    def _no_scores(self, clients: int) -> Tensor:
        """Sums of the metric before the first sample: `[K]`, or `[K, S]` where it has several."""
        classes, y = self.samples.classes, self.samples.y
        steps = y.shape[1:] if self.task.per_step else ()
        target = torch.zeros(1, *y.shape[1:], dtype=y.dtype)
        width = self.task.metric.statistics(torch.zeros(1, *steps, classes), target).shape[1]
        return torch.zeros((clients, width) if width > 1 else clients)

    @torch.no_grad()
    def _evaluate_whole(self, params: Tree, ids: Sequence[int], part: Part) -> Tensor:
        """`[K]`: a metric that needs all samples of a client at once, one client at a time."""
        whole, found = self.task.metric.whole, []
        assert whole is not None
        for k, i in enumerate(ids):
            w, outs, targets = tree.client(params, k), [], []
            for at in self.samples.in_pieces(self.samples.parts[part][i], EVAL_BATCH):
                outs.append(self.net(w, self.samples.inputs(at)).cpu())
                targets.append(self.samples.y[at].cpu())
            found.append(whole(torch.cat(outs), torch.cat(targets)) if outs else float("nan"))
        return torch.tensor(found, dtype=torch.float64)

    def alone(self, part: Part, batch_size: int | Literal["full"]) -> bool:
        """Whether each client computes by itself, in `threads`, in batches of that size."""
        return self.threads is not None

    @abstractmethod
    def groups(self, ids: Sequence[int]) -> Iterable[list[int]]:
        """Clients that compute together, as neighbouring positions in `ids`. The work of one group
        is done when the next is asked for."""

    @abstractmethod
    def local(self, ids: list[int], round: int, nets: Nets | None = None) -> SamplesLocal:
        """The handle of these clients on their data; `nets` are those of a thread."""

    @abstractmethod
    def _evaluate_here(self, params: Tree, ids: Sequence[int], part: Part) -> tuple[Tensor, Tensor]:
        """`evaluate` on this rank."""

    def to_device(self, record: Record) -> Record:
        return tree.each(lambda x: devices.to_device(x, self.device), record)

    @cached_property
    def _largest(self) -> dict[Part, int]:
        """Samples of the client with the most."""
        parts = self.samples.parts
        return {part: max([0, *map(len, rows)]) for part, rows in parts.items()}

    def _sizes(self, ids: Sequence[int], part: Part) -> list[int]:
        return [len(self.samples.parts[part][i]) for i in ids]

    def _compute_in(self, products: torch.dtype) -> None:
        for net in self.nets:
            net.compute_in(products)
        try:
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                self._try(self.train_net)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"the model cannot compute in {products} ({reason}); give tensors it makes itself "
                "the type of its inputs (x.dtype), or use --dtype float32"
            ) from None

    @torch.no_grad()
    def _try(self, net: Net) -> Tensor:
        """What the network makes of two samples."""
        values = net.module.state_dict()
        params = {n: values[n].clone() for n in net.names}
        x = self.samples.inputs(self.samples.on_device(torch.zeros(2, dtype=torch.int64)))
        with warnings.catch_warnings():  # about speed, which does not count here
            warnings.simplefilter("ignore")
            return net(params, x)

    # --- memory ---

    def guess(self, samples: int) -> float:
        """Bytes that one client with so many samples may need: some copies of the model, and the
        activations of a batch, forward and backward."""
        left = self._footprint
        return 10 * left.model + 2 * left.activations * min(samples, self._largest_batch)

    @cached_property
    def _footprint(self) -> Footprint:
        """Measured on two samples."""
        values = self.net.module.state_dict()
        params = {n: values[n].detach().clone() for n in self.net.names}
        params = {n: v.requires_grad_(n in self.net.weights) for n, v in params.items()}
        # What is kept of the weights, frozen ones too, is there once for all samples and clients.
        held = [*params.values(), *values.values()]
        models = {v.untyped_storage().data_ptr() for v in held}
        saved: dict[int, int] = {}

        def note(x: Tensor) -> Tensor:
            store = x.untyped_storage()
            saved[store.data_ptr()] = store.nbytes()
            return x

        x = self.samples.inputs(self.samples.on_device(torch.zeros(2, dtype=torch.int64)))
        with torch.enable_grad(), saved_tensors_hooks(note, lambda x: x):
            self.net(params, x)
        sizes = [n for at, n in saved.items() if at not in models]
        return Footprint(tree.nbytes(params), sum(sizes) / 2, len(sizes))
