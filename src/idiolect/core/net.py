"""A plain `nn.Module` as a function of its tree, for one client.

The tree holds the trainable parameters and the floating-point buffers (BatchNorm statistics) under
the module's own names, so what a method mixes, sends or exports loads back into the plain module.
Parameters with `requires_grad=False` are no leaves: they stay in the module, once for all clients.
A parameter that a module has under several names (tied weights, a layer used twice) is one leaf.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from idiolect.core import tree
from idiolect.core.form import EXACT
from idiolect.core.task import CLASSIFICATION
from idiolect.core.tree import Tree
from idiolect.errors import UserError

HEAD_MARK = "_idiolect_head"  # on a module: the name of the layer that makes its logits
HEAD_GIVEN = "_idiolect_head_given"  # the same, named by the user: it comes before all others
HEAD_DOUBT = "_idiolect_head_doubt"  # why no layer was found to be the one
NO_HEAD = "the model has no linear layer to serve as head"
NAME_IT = "give model.head=PATTERN, or name its last layer 'head'"
_CHANNELLED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # leaves begin with output channels


@contextmanager
def _no_fast_attention() -> Iterator[None]:
    """Attention's inference kernel cannot be stacked over clients."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class LiveWeights:
    """A recurrent layer that computes with the parameters it has now. PyTorch's own keeps a list of
    those it was made with, so that it would not see the tree's."""

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Tensor]:
        return [getattr(self, name) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, _: list[Tensor]) -> None: ...


class _ReachedHead(Exception):
    """Carries the head's input out of the forward pass."""


class Net:
    """`net(params, x)` are logits; `features` is what goes into the head, `classify` the head."""

    around: Callable[[], AbstractContextManager[object]] = nullcontext  # what it computes inside of
    products: torch.dtype | None = None  # what it computes in, if not in the type of its leaves
    task = CLASSIFICATION  # what its outputs mean
    own_loss: Callable[..., Tensor] | None = None  # of the user, instead of the task's
    class_loss: Callable[..., Tensor] | None = None  # an engine's own way to the task's
    draws = True  # may ask PyTorch for random numbers in training (dropout): so unless known better

    def __init__(self, module: nn.Module, *, training: bool = False):
        # Frozen parameters never change: both nets of an engine show the same.
        still = {id(p): p for p in module.parameters() if not p.requires_grad}
        self.module = deepcopy(module, still).train(training)
        self.training = training
        for layer in self.module.modules():
            if isinstance(layer, _BatchNorm) and layer.track_running_stats:
                if layer.momentum is None:
                    raise UserError(
                        "BatchNorm with momentum=None (cumulative statistics) is not supported; "
                        "give it a momentum, e.g. 0.1"
                    )
                layer.num_batches_tracked = None  # a counter nothing reads once momentum is set
            if isinstance(layer, nn.RNNBase) and not isinstance(layer, LiveWeights):
                layer.__class__ = type(type(layer).__name__, (LiveWeights, type(layer)), {})
        self.weights = tuple(n for n, p in self.module.named_parameters() if p.requires_grad)
        if not self.weights:
            raise UserError("the model has no parameter to train; set requires_grad=True on some")
        saved = self.module.state_dict()  # a buffer that is not saved is a constant, no leaf
        buffers = self.module.named_buffers()
        self.stats = tuple(n for n, b in buffers if b.is_floating_point() and n in saved)
        self.names = self.weights + self.stats
        self.aliases = _aliases(self.module)
        leaves = [*self.module.named_parameters(), *self.module.named_buffers()]
        self._ndim = {n: v.ndim for n, v in leaves}
        self.attends = any(isinstance(m, nn.MultiheadAttention) for m in self.module.modules())
        found, self._doubt = find_head(self.module)
        if found is None:
            return
        self._head_name, self._head = found
        self._prefix = f"{self._head_name}." if self._head_name else ""  # a bare linear layer
        self.head = tuple(n for n in self.names if n.startswith(self._prefix))
        self.body = tuple(n for n in self.names if not n.startswith(self._prefix))

    def __getattr__(self, name: str) -> Any:
        """Methods that need no head, as FedAvg, take a network without one."""
        if name in ("head", "body", "_head", "_head_name", "_prefix"):
            raise UserError(f"{self._doubt}; {NAME_IT}")
        raise AttributeError(name)

    def loss_of(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of the task, one value per sample."""
        if self.class_loss is not None and self.task.has_classes:
            return self.class_loss(out, y)
        return self.task.loss(out, y)

    @property
    def couples(self) -> bool:
        """In training, a sample's output depends on the others in its batch (BatchNorm)."""
        return self.training and any(isinstance(m, _BatchNorm) for m in self.module.modules())

    def __call__(self, params: Tree, x: Tensor) -> Tensor:
        return self._computed(self.module, self._rounded(params), x)

    def _computed(self, module: nn.Module, params: Tree, x: Tensor) -> Tensor:
        exact = getattr(module, EXACT, False)  # it rounds what may be rounded itself
        if self.products is not None and x.is_floating_point() and not exact:
            x = x.to(self.products)
        with self.around(), _no_fast_attention() if self.attends else nullcontext():
            # Looking for tied weights takes as long as a small layer.
            out = functional_call(module, params, (x,), tie_weights=bool(self.aliases))
            return self._unrounded(logits_of(out))

    def compute_in(self, dtype: torch.dtype) -> None:
        """From now on compute in a shorter type; leaves, gradients and what comes out keep theirs.
        Norms with running statistics compute in that of the statistics."""
        self.products = dtype
        # Frozen ones may have been shortened already, for another net that shows them too.
        self._wide = wide = next(p for p in self.module.parameters() if p.requires_grad).dtype
        exact = set()
        for owner, layer in self.module.named_modules():
            if isinstance(layer, _NormBase):
                exact |= {n for n in self.names if n.rpartition(".")[0] == owner}
                layer.register_forward_pre_hook(lambda layer, given: given[0].to(wide))
                layer.register_forward_hook(lambda layer, given, out: out.to(dtype))
            else:
                for p in layer.parameters(recurse=False):
                    p.data = p.data if p.requires_grad else p.data.to(dtype)
        self._short = set(self.names) - exact

    def _rounded(self, params: Tree) -> Tree:
        if self.products is None:
            return params
        return {n: v.to(self.products) if n in self._short else v for n, v in params.items()}

    def _unrounded(self, out: Tensor) -> Tensor:
        return out if self.products is None else out.to(self._wide)

    def features(self, params: Tree, x: Tensor) -> Tensor:
        """The input of the head; needs only the body's leaves."""
        self._check_last()

        def stop(_: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            raise _ReachedHead((*inputs, *named.values())[0])

        hook = self._head.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self._computed(self.module, self._rounded(tree.drop(params, self.head)), x)
        except _ReachedHead as reached:
            h: Tensor = reached.args[0]
            return self._unrounded(h)
        finally:
            hook.remove()
        raise UserError(f"the model's forward never calls its head '{self._head_name}'")

    def classify(self, params: Tree, h: Tensor) -> Tensor:
        """Logits from features; needs only the head's leaves, and those it is tied to."""
        self._check_last()
        cut = len(self._prefix)
        tied = {n: first for n, first in self.aliases.items() if n.startswith(self._prefix)}
        leaves = {n: n for n in self.head} | {n: t for n, t in tied.items() if t in self.names}
        params = self._rounded({t: params[t] for t in leaves.values()})
        return self._computed(self._head, {n[cut:]: params[t] for n, t in leaves.items()}, h)

    def _check_last(self) -> None:
        """Body and head, one after the other, must compute what the model does."""
        if self._doubt:
            raise UserError(f"{self._doubt}; {NAME_IT}")

    def part(self, spec: str) -> tuple[str, ...]:
        """Names chosen by `spec`: head, body, norm, none, all, or name patterns like 'body.0.*'."""
        if spec in ("head", "body"):
            return self.head if spec == "head" else self.body
        if spec in ("none", "all"):
            return self.names if spec == "all" else ()
        if spec == "norm":
            owners = tuple(
                f"{n}." for n, m in self.module.named_modules() if "Norm" in type(m).__name__
            )
            return tuple(n for n in self.names if n.startswith(owners))
        patterns = [p.strip() for p in spec.split(",")]
        found = tuple(n for n in self.names if any(fnmatchcase(n, p) for p in patterns))
        if not found:
            raise UserError(f"no parameter matches '{spec}'; names are {', '.join(self.names)}")
        return found

    def shared(self, params: Tree, spec: str) -> Tree:
        """What of `params` is not personal under `spec`: without `part(spec)`, or for 'channels:P'
        without the last share P of every layer's output channels (for the head: of its inputs)."""
        if not spec.startswith("channels:"):
            return tree.drop(params, self.part(spec))
        share = _personal_share(spec)
        if share == 1:
            return {}
        out = dict(params)
        for name, axis in self._channels().items():
            if name in params:
                axis += params[name].ndim - self._ndim[name]  # after the client axis, if any
                size = params[name].shape[axis]
                out[name] = params[name].narrow(axis, 0, size - int(share * size + 1e-9))
        return out

    def linear_head(self) -> tuple[str, str | None]:
        """Names of the head's weight and bias, for methods that need it to be one linear layer."""
        if not isinstance(self._head, nn.Linear):
            raise UserError(f"this method needs a linear layer as head, not {self._head}")
        names = f"{self._prefix}weight", None if self._head.bias is None else f"{self._prefix}bias"
        for name in names:
            if name is not None and name not in self.names:
                frozen = "frozen; with adapters, train it too: model.adapt=…,head"
                why = f"tied to {self.aliases[name]}" if name in self.aliases else frozen
                raise UserError(f"this method needs a head of its own, but '{name}' is {why}")
        return names

    def biased_head(self) -> tuple[str, str]:
        """The same, for methods that need the bias too."""
        weight, bias = self.linear_head()
        if bias is None:
            raise UserError("this method needs a head with a bias; build it with bias=True")
        return weight, bias

    def _channels(self) -> dict[str, int]:
        """The channel axis of every leaf that has one: output channels, for the head inputs."""
        axes: dict[str, int] = {}
        for owner, layer in self.module.named_modules():
            leaves = [n for n in self.names if n.rpartition(".")[0] == owner]
            if layer is self._head:
                inputs = [n for n in leaves if self._ndim[n] > 1 and not n.endswith("lora_up")]
                axes |= dict.fromkeys(inputs, 1)
            elif set(leaves) & set(self.head):
                continue  # a head of several layers is shared whole
            elif isinstance(layer, _CHANNELLED) or "Norm" in type(layer).__name__:
                outputs = [n for n in leaves if not n.endswith("lora_down")]
                axes |= dict.fromkeys(outputs, 0)
        return axes

    def stages(self, count: int | str) -> list[tuple[str, ...]]:
        """The weights in stages: 1 whole, 2 body and head, 'tensor' each on its own. A model that
        is all head has one stage."""
        if count == "tensor":
            return [(n,) for n in self.weights]
        if count == 1:
            return [self.weights]
        if count == 2:
            body = tuple(n for n in self.weights if n not in self.head)
            head = tuple(n for n in self.weights if n in self.head)
            return [names for names in (body, head) if names]
        raise UserError(f"stages must be 1, 2 or 'tensor', not {count!r}")


def initial_tree(module: nn.Module, net: Net, dtype: torch.dtype) -> Tree:
    """The module's own values under the net's names."""
    state = module.state_dict()
    return {n: state[n].detach().to(dtype).clone() for n in net.names}


def _aliases(module: nn.Module) -> dict[str, str]:
    """Further names of parameters and buffers that have several, with the first name of each."""
    first: dict[int, str] = {}
    weights = module.named_parameters(remove_duplicate=False)
    leaves = [*weights, *module.named_buffers(remove_duplicate=False)]
    named = [(name, first.setdefault(id(x), name)) for name, x in leaves]
    return {name: known for name, known in named if name != known}


def _personal_share(spec: str) -> float:
    try:
        share = float(spec.removeprefix("channels:"))
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError(f"'{spec}' must be a share between 0 and 1, as in channels:0.5")
    return share


def find_head(module: nn.Module) -> tuple[tuple[str, nn.Module] | None, str]:
    """Name and layer: the one the user named, the one called `head`, the one that was seen to make
    the logits, or, in a module nobody looked at yet, the last linear layer. Without one, or where
    the one called `head` was seen not to make the logits: why."""
    if isinstance(given := getattr(module, HEAD_GIVEN, None), str):
        return (given, module.get_submodule(given)), ""
    doubt = getattr(module, HEAD_DOUBT, "")
    if called := layer_called_head(module):
        return (called, module.get_submodule(called)), doubt
    if isinstance(seen := getattr(module, HEAD_MARK, None), str):
        return (seen, module.get_submodule(seen)), ""
    if doubt:
        return None, doubt
    linear = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.Linear)]
    return (linear[-1], "") if linear else (None, NO_HEAD)


def layer_called_head(module: nn.Module) -> str:
    """The first name of the layer that a module calls `head`, under which its leaves are known: it
    may have another besides. "" if there is none."""
    head = getattr(module, "head", None)
    return next((n for n, m in module.named_modules() if n and m is head), "")


def logits_of(out: Any) -> Tensor:
    """What a network returned, or the part of it called `logits`."""
    found: Tensor = out["logits"] if isinstance(out, Mapping) and "logits" in out else out
    return found
