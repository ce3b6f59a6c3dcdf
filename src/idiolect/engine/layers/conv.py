"""Convolutions of K clients at once, each with its own weights, by the fastest of several routes.

A convolution is linear in the inputs and in the weights, so three maps are all there is: outputs,
and the gradients of inputs and weights; each is the others' derivative, to any order. They work on
stacks `x [K, B, C, H, W]`, `w [K, O, C, h, w]`; `vmap` over clients, and over samples inside
clients, only makes the stack longer.

Routes: `each` calls PyTorch's convolution client by client, `grouped` once with K groups, `fused`
our own kernel (`triton_kernels.py`; float32 on a GPU). On a GPU every map of every shape is timed
once and the fastest route kept; on a CPU `each` is for large inputs, `grouped` for small ones.
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect.engine.layers import steps_inside
from idiolect.engine.layers.autotune import AUTOTUNER, about
from idiolect.engine.layers.stack_function import (
    Stacked,
    fused,
    fused_steps,
    in_transform,
    precision,
    same_for_all,
)

Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # stride, padding, dilation


class Conv2d(nn.Conv2d):
    """The plain layer, by the routes below."""

    planes = False  # whether the layers around it want images plane by plane in memory

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:  # one sample without a batch axis
            return self.forward(x[None]).squeeze(0)
        if not x.is_cuda and not in_transform():  # one client
            w = _pixels(self.weight)
            return F.conv2d(_pixels(x), w, self.bias, self.stride, self.padding, self.dilation)
        if same_for_all(self.weight, x):
            return super().forward(x)
        how = (self.stride, self.padding, self.dilation)
        bias = None if self.bias is None else self.bias[None]
        stack = x[None] if self.planes else laid(x[None])
        out: Tensor = Outputs.apply(stack, self.weight[None], bias, how).squeeze(0)
        return out.contiguous() if self.planes else out


class Conv1d(nn.Conv1d):
    """The same on images of one row."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        plain = type(layer) is nn.Conv1d and layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return self.forward(x[None]).squeeze(0)
        if same_for_all(self.weight, x) or not (x.is_cuda or in_transform()):
            return super().forward(x)
        how = ((1, *self.stride), (0, *self.padding), (1, *self.dilation))
        bias = None if self.bias is None else self.bias[None]
        rows, w = x[None].unsqueeze(-2), self.weight[None].unsqueeze(-2)
        out: Tensor = Outputs.apply(rows, w, bias, how).squeeze(0).squeeze(-2)
        return out


class Outputs(Stacked):
    """`[K, B, O, oh, ow]`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
        return fastest("outputs", x, w, bias, how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, ctx.how = inputs
        ctx.inside = steps_inside.of(w, bias)
        ctx.save_for_backward(x, w, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w, bias = ctx.saved_tensors
        to_x, to_w, to_bias, _ = ctx.needs_input_grad
        g = g if x.is_contiguous() else laid(g)
        found = to_images(g, w, x, ctx.how) if to_x else None  # this is waited for
        to_w = to_w and not steps(ctx.inside[0], w, x, g, ctx.how)
        to_bias = to_bias and not steps_inside.takes_sum(ctx.inside[1], bias, g)
        return (
            found,
            ToWeights.apply(x, g, w.shape[3:], ctx.how) if to_w else None,
            g.sum((1, 3, 4)) if to_bias else None,
            None,
        )


def to_images(g: Tensor, w: Tensor, x: Tensor, how: Geometry) -> Tensor:
    """Gradient of the inputs x; plane by plane in memory where x is, as other layers expect."""
    found: Tensor = ToInputs.apply(g, w, x.shape[3:], how)
    return found.contiguous() if x.is_contiguous() else found


def steps(inside: Any, w: Tensor, x: Tensor, g: Tensor, how: Geometry) -> bool:
    """Whether the gradient of the weights was handed over as a step: if our kernel is the fastest
    to make it, in parts that are subtracted without being added up before."""
    size, by = w.shape[3:], precision()
    if not steps_inside.wanted(inside) or _route("to_weights", (x, g, size, how)) != "fused":
        return False
    step = partial(fused_steps().take_away, w.detach())
    inside.add_found(w, step, lambda x, g: fused().weight_parts(x, g, size, how, by), x, g)
    return True


def laid(x: Tensor) -> Tensor:
    """A stack of images as our kernels read it best, laid out once for all maps that need it."""
    ours = x.is_cuda and x.dtype == torch.float32 and fused() is not None
    if not ours or x.shape[2] < fused().MIN_CHANNELS_SIDE_BY_SIDE:
        return x
    out: Tensor = fused().side_by_side(x)
    return out


def output_size(x: Tensor, w: Tensor, how: Geometry) -> torch.Size:
    """Height and width of the outputs."""
    given = zip(x.shape[3:], w.shape[3:], *how, strict=True)
    return torch.Size([(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in given])


class ToInputs(Stacked):
    """Gradient of the inputs `[K, B, C, *size]`."""

    @staticmethod
    def forward(g: Tensor, w: Tensor, size: torch.Size, how: Geometry) -> Tensor:
        return fastest("to_inputs", g, w, size, how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, w, _, ctx.how = inputs
        ctx.save_for_backward(g, w)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        g, w = ctx.saved_tensors
        to_g, to_w, *_ = ctx.needs_input_grad
        return (
            Outputs.apply(v, w, None, ctx.how) if to_g else None,
            ToWeights.apply(v, g, w.shape[3:], ctx.how) if to_w else None,
            None,
            None,
        )


class ToWeights(Stacked):
    """Gradient of the weights `[K, O, C, *size]`."""

    @staticmethod
    def forward(x: Tensor, g: Tensor, size: torch.Size, how: Geometry) -> Tensor:
        return fastest("to_weights", x, g, size, how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, g, _, ctx.how = inputs
        ctx.save_for_backward(x, g)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        x, g = ctx.saved_tensors
        to_x, to_g, *_ = ctx.needs_input_grad
        return (
            ToInputs.apply(g, v, x.shape[3:], ctx.how) if to_x else None,
            Outputs.apply(x, v, None, ctx.how) if to_g else None,
            None,
            None,
        )


class Each:
    """Client by client; on a CPU with the channels of a pixel side by side, which is up to three
    times faster there."""

    @staticmethod
    def outputs(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
        stride, padding, dilation = how
        biases = [None] * len(x) if bias is None else bias
        given = zip(x, w, biases, strict=True)
        return _pile(
            [F.conv2d(_pixels(a), _pixels(b), c, stride, padding, dilation) for a, b, c in given]
        )

    @staticmethod
    def to_inputs(g: Tensor, w: Tensor, size: torch.Size, how: Geometry) -> Tensor:
        x = _pixels(g.new_empty(g.shape[1], w.shape[2], *size))  # only its shape counts
        given = zip(g, w, strict=True)
        return _pile([_backward(_pixels(a), x, _pixels(b), how, 1, 0) for a, b in given])

    @staticmethod
    def to_weights(x: Tensor, g: Tensor, size: torch.Size, how: Geometry) -> Tensor:
        w = _pixels(g.new_empty(g.shape[2], x.shape[2], *size))
        given = zip(x, g, strict=True)
        return torch.stack([_backward(_pixels(b), _pixels(a), w, how, 1, 1) for a, b in given])


def _pixels(x: Tensor) -> Tensor:
    """With the channels of a pixel side by side, where PyTorch's convolutions like it so."""
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return x.to(memory_format=torch.channels_last)  # with one channel too, unlike contiguous()
    return x


def _pile(parts: list[Tensor]) -> Tensor:
    """One stack; a single part stays as it lies."""
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


class Grouped:
    """All clients in one convolution with K groups."""

    @staticmethod
    def outputs(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
        flat = None if bias is None else bias.flatten()
        y = F.conv2d(_side(x), w.flatten(0, 1), flat, *how, groups=len(x))
        return _stack(y, len(x))

    @staticmethod
    def to_inputs(g: Tensor, w: Tensor, size: torch.Size, how: Geometry) -> Tensor:
        x = g.new_empty(g.shape[1], len(g) * w.shape[2], *size)
        return _stack(_backward(_side(g), x, w.flatten(0, 1), how, len(g), 0), len(g))

    @staticmethod
    def to_weights(x: Tensor, g: Tensor, size: torch.Size, how: Geometry) -> Tensor:
        w = g.new_empty(len(g) * g.shape[2], x.shape[2], *size)
        return _backward(_side(g), _side(x), w, how, len(g), 1).unflatten(0, (len(g), -1))


class Fused:
    """Our own kernels."""

    @staticmethod
    def outputs(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
        return fused().outputs(x, w, bias, how, precision())

    @staticmethod
    def to_inputs(g: Tensor, w: Tensor, size: torch.Size, how: Geometry) -> Tensor:
        return fused().to_inputs(g, w, size, how, precision())

    @staticmethod
    def to_weights(x: Tensor, g: Tensor, size: torch.Size, how: Geometry) -> Tensor:
        return fused().to_weights(x, g, size, how, precision())


MAX_CLIENTS = 2**16 - 1  # of a stack, for our kernels: blocks of a grid in depth
MAX_VALUES = 2**31 - 2**12  # of a client: they are counted in 32 bits, some blocks beyond the last
MIN_VALUES_CLIENT_BY_CLIENT = 1 << 16  # of one client, from which a CPU is faster that way
ROUTES: dict[str, Any] = {"each": Each, "grouped": Grouped, "fused": Fused}


def fastest(map: str, *args: Any) -> Tensor:
    """The map by its fastest route."""
    out: Tensor = getattr(ROUTES[_route(map, args)], map)(*args)
    return out


def _route(map: str, args: tuple[Any, ...]) -> str:
    if args[0].is_cuda:
        shapes = [about(a.shape) if isinstance(a, Tensor) else a for a in args]
        key = (map, args[0].dtype, precision(), *shapes)
        known = {name: getattr(ROUTES[name], map) for name in candidates(map, args)}
        return AUTOTUNER.fastest(key, known, args)
    large = args[0][0].numel() >= MIN_VALUES_CLIENT_BY_CLIENT
    return "each" if len(args[0]) == 1 or large else "grouped"


def candidates(map: str, args: tuple[Any, ...]) -> list[str]:
    """The routes that can do it."""
    names = ["grouped", "each"] if len(args[0]) <= 4 else ["grouped"]
    if args[0].dtype != torch.float32 or fused() is None or not countable(*_images(map, args)):
        return names
    if map == "to_weights" and precision() != "tf32":
        # PyTorch's own, grouped, may lose digits: 9e-4 off on an H200, with TF32 forbidden.
        names.remove("grouped")
    return [*names, "fused"]


def countable(*stacks: Sequence[int]) -> bool:
    """Whether our kernels can count the clients of stacks of these shapes, and a client's values
    in each."""
    return all(s[0] <= MAX_CLIENTS and prod(s[1:]) <= MAX_VALUES for s in stacks)


def output_shape(x: Tensor, w: Tensor, how: Geometry) -> tuple[int, ...]:
    return *x.shape[:2], w.shape[1], *output_size(x, w, how)


def _images(map: str, args: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the stacks of images that the map reads and writes, or reads."""
    one, other, size, how = args
    if map == "outputs":
        return one.shape, output_shape(one, other, how)
    return one.shape, (*one.shape[:2], other.shape[2], *size) if map == "to_inputs" else other.shape


def _side(x: Tensor) -> Tensor:
    """`[K, B, C, ...]` -> `[B, K C, ...]`: the clients' channels side by side."""
    return x.transpose(0, 1).flatten(1, 2)


def _stack(x: Tensor, k: int) -> Tensor:
    return x.unflatten(1, (k, -1)).transpose(0, 1)


def _backward(g: Tensor, x: Tensor, w: Tensor, how: Geometry, groups: int, which: int) -> Tensor:
    wanted = (which == 0, which == 1, False)
    stride, padding, dilation = how
    given = (stride, padding, dilation, False, (0, 0), groups, wanted)
    out: Tensor = torch.ops.aten.convolution_backward(g, x, w, None, *given)[which]
    return out
