"""Whether a CPU gains from convolutions with fewer multiplications, by Toom-Cook (Winograd).

    python benchmarks/fewer_products.py [--turns 60] [--out benchmarks/results/fewer-products.json]

The second convolution of `fedas_cnn` on MNIST (32 to 64 channels, windows of 5 by 5, 12 by 12
pixels) takes 400 products for 4 by 4 outputs of a pair of channels; here it takes 64. Inputs,
weights and outputs are multiplied by a fixed matrix along each side of an image, and between are 64
products of matrices; images lie as `[H, W, B, C]`, so that nothing is copied from one to the next.

Both ways are timed in turns in one thread, by its processor time: the layer's outputs, its outputs
and gradients, the network's outputs and its step of SGD. The errors are against float64, relative
to the length of the result. Nothing of the package uses this.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from idiolect import models
from idiolect.core import devices
from idiolect.engine import layers
from idiolect.engine.layers.conv import Conv2d
from idiolect.runs.environment import machine

TILE, WINDOW = 4, 5  # outputs of a side, and what each sees
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # and infinity, where polynomials are multiplied


@cache
def toom_cook() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What inputs, weights and outputs of one tile are multiplied by."""
    points = len(POINTS) + 1
    inputs, outputs = np.zeros((points, points)), np.zeros((TILE, points))
    weights = np.zeros((points, WINDOW))
    for i, at in enumerate(POINTS):
        others = [p for p in POINTS if p != at]
        inputs[i, :-1] = np.poly(others)[::-1]
        weights[i] = at ** np.arange(WINDOW) / np.prod(at - np.array(others))
        outputs[:, i] = at ** np.arange(TILE)
    inputs[-1] = np.poly(POINTS)[::-1]
    weights[-1, -1] = outputs[-1, -1] = 1
    return inputs, weights, outputs


@cache
def matrices(size: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor, Tensor]:
    """For inputs and outputs of both sides of an image, and for windows, there and back. Tiles
    count before points along the height and behind them along the width: then a row of tiles is one
    batch of products."""
    inputs, weights, outputs = toom_cook()
    points, tiles = len(inputs), (size - WINDOW + 1) // TILE
    cut, joined = np.zeros((tiles, points, size)), np.zeros((tiles * TILE, tiles, points))
    for t in range(tiles):
        cut[t, :, t * TILE : t * TILE + points] = inputs
        joined[t * TILE : (t + 1) * TILE, t] = outputs
    both = np.kron(weights, weights)
    return (
        (_single(cut.reshape(-1, size)), _single(cut.swapaxes(0, 1).reshape(-1, size))),
        (
            _single(joined.reshape(len(joined), -1)),
            _single(joined.swapaxes(1, 2).reshape(len(joined), -1)),
        ),
        _single(both),
        _single(both.T),
    )


def _single(matrix: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.float32))


def both_sides(high: Tensor, wide: Tensor, x: Tensor) -> Tensor:
    """`x [H, W, B, C]` multiplied along height and width."""
    h, w, b, c = x.shape
    rows = torch.mm(high, x.view(h, w * b * c)).view(len(high), w, b * c)
    return torch.bmm(wide.expand(len(high), *wide.shape), rows).view(len(high), len(wide), b, c)


def rows_first(x: Tensor) -> Tensor:
    return x.permute(2, 3, 0, 1).contiguous()


def batch_first(x: Tensor) -> Tensor:
    return x.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)


def products(rows: Tensor, u: Tensor) -> Tensor:
    """`[tiles, points, rows, channels]` of other channels."""
    out = rows.new_empty(*rows.shape[:3], u.shape[2])
    for one, there in zip(rows, out, strict=True):
        torch.bmm(one, u, out=there)
    return out


class FewProducts(Function):
    """`F.conv2d` of `x [B, C, H, H]` and `w [O, C, 5, 5]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        inputs, outputs, weights, _ = matrices(x.shape[2])
        points, tiles = len(weights), len(inputs[0]) // (len(POINTS) + 1)
        u = torch.mm(weights, w.reshape(-1, WINDOW * WINDOW).t()).view(points, *w.shape[:2])
        v = both_sides(*inputs, rows_first(x)).view(tiles, points, tiles * len(x), -1)
        m = products(v, u.transpose(1, 2)).view(len(inputs[0]), len(inputs[1]), len(x), -1)
        ctx.save_for_backward(u, v)
        ctx.size = x.shape[2]
        return batch_first(both_sides(*outputs, m)).add_(bias[:, None, None])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        u, v = ctx.saved_tensors
        inputs, outputs, _, back = matrices(ctx.size)
        m = both_sides(outputs[0].t(), outputs[1].t(), rows_first(g))
        m = m.view(*v.shape[:3], -1)
        dv = products(m, u).view(len(inputs[0]), len(inputs[1]), len(g), -1)
        du = torch.bmm(m[0].transpose(1, 2), v[0])
        for one, other in zip(m[1:], v[1:], strict=True):
            du.baddbmm_(one.transpose(1, 2), other)
        dw = torch.mm(back, du.flatten(1)).t().view(*u.shape[1:], WINDOW, WINDOW)
        dx = batch_first(both_sides(inputs[0].t(), inputs[1].t(), dv))
        return dx, dw, g.sum((0, 2, 3))


class FewProductsConv(Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = FewProducts.apply(x, self.weight, self.bias)
        return out


def networks() -> dict[str, nn.Module]:
    """The network with our layers, and with the second convolution the other way."""
    torch.manual_seed(0)
    ours = models.build({"name": "fedas_cnn"}, (1, 28, 28), 10)
    layers.install(ours, torch.device("cpu"))
    other = deepcopy(ours)
    second = [layer for layer in other.modules() if isinstance(layer, Conv2d)][1]
    second.__class__ = FewProductsConv
    return {"direct": ours, "fewer": other}


def step(net: nn.Module, x: Tensor, y: Tensor) -> None:
    params = list(net.parameters())
    grads = torch.autograd.grad(F.cross_entropy(net(x), y), params)
    with torch.no_grad():
        torch._foreach_add_(params, grads, alpha=-0.005)


def outputs_only(run: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with torch.no_grad():
        run(x)


def errors(layer: nn.Module, x: Tensor, g: Tensor) -> dict[str, float]:
    """Of outputs and gradients."""
    exact = nn.Conv2d(32, 64, WINDOW).double()
    exact.load_state_dict(layer.state_dict())
    found = []
    for conv, dtype in ((layer, torch.float32), (exact, torch.float64)):
        given = x.detach().to(dtype).requires_grad_()
        out = conv(given)
        results = (out, *torch.autograd.grad(out, (given, conv.weight), g.to(dtype)))
        found.append([r.detach().double() for r in results])
    names = ("outputs", "to_inputs", "to_weights")
    return {
        name: ((a - b).norm() / b.norm()).item() for name, a, b in zip(names, *found, strict=True)
    }


def in_turns(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, dict[str, float]]:
    """Milliseconds of processor time."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 3):
        for name, run in ways.items():
            began = time.thread_time()
            run()
            if turn >= 3:  # the first ones warm up
                times[name].append(1000 * (time.thread_time() - began))
    return {k: {"least": min(v), "median": statistics.median(v)} for k, v in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    devices.keep_freed_memory()
    nets, rows = networks(), []
    convs = {k: [m for m in net.modules() if isinstance(m, Conv2d)][1] for k, net in nets.items()}
    for batch in (10, 16, 128):
        x, y = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
        inner = torch.randn(batch, 32, 12, 12).relu().contiguous(memory_format=torch.channels_last)
        g = torch.randn(batch, 64, 8, 8).contiguous(memory_format=torch.channels_last)
        asked = inner.clone(memory_format=torch.channels_last).requires_grad_()

        def there_and_back(conv: nn.Module, x: Tensor = asked, g: Tensor = g) -> None:
            torch.autograd.grad(conv(x), (x, *conv.parameters()), g)

        kinds: dict[str, dict[str, Callable[[], object]]] = {
            "layer, outputs": {
                k: lambda c=c, x=inner: outputs_only(c, x) for k, c in convs.items()
            },
            "layer, with gradients": {k: lambda c=c: there_and_back(c) for k, c in convs.items()},
            "network, outputs": {k: lambda n=n, x=x: outputs_only(n, x) for k, n in nets.items()},
            "network, step": {k: lambda n=n, x=x, y=y: step(n, x, y) for k, n in nets.items()},
        }
        off = {k: errors(c, inner, g) for k, c in convs.items()}
        print(f"batch {batch}: errors", json.dumps(off))
        for kind, ways in kinds.items():
            found = in_turns(ways, given.turns)
            faster = {k: found["direct"][k] / found["fewer"][k] for k in ("least", "median")}
            rows.append({"batch": batch, "what": kind, "ms": found, "times_faster": faster})
            print(f"  {kind:22}", json.dumps(found), {k: round(v, 2) for k, v in faster.items()})
        rows.append({"batch": batch, "what": "errors", "relative": off})
    if given.out is not None:
        about = machine("cpu") | {"load": os.getloadavg()}
        given.out.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
