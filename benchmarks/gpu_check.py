"""Every fast path against the oracle, on a GPU.

    python benchmarks/gpu_check.py [--out gpu-check.json] [METHOD ...]

For every method: the stacked engine (CUDA graphs, our kernels) equals the loop engine to 1e-9 in
float64 and a resumed run the uninterrupted one; in float32 the distance is bounded, with TF32
products stated. Every route of a convolution, of a linear layer and its step, of batch norms and of
max-pooling is held against PyTorch's own, and products in TF32 too. Captured steps, whose branches
run at the same time, give the bits of steps that are launched kernel by kernel, again and again.
Exits with 1 if anything is out of bounds.

Float32 runs train a network without corners (tanh and mean-pooling). ReLU and max-pooling have a
gradient that jumps: where two values lie within rounding of each other, rounding decides which of
them learns, and the run ends 1e-4 away, by whichever engine. PFLEGO and FedRecon take plain SGD on
the server there: the first step of Adam is the sign of the gradient, rounding or not.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import methods, models
from idiolect.bench import measured_on
from idiolect.bench.job import random_federation
from idiolect.data import Federation
from idiolect.engine.layers import conv, linear, norm, pool
from idiolect.engine.layers.pooled_conv import PooledOutputs
from idiolect.engine.layers.stack_function import fused, fused_steps, precision
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.simulation import Simulation

EXACT = 1e-9  # float64
SINGLE = 1e-5  # float32, after the rounds of training; or ten times what the loop loses
KERNEL = 1e-6  # one product in float32 by our kernels against float64
PYTORCH = 1e-5  # … by PyTorch's own
TF32 = 2e-3  # … where both may round operands to TF32
ROUNDS = 2
SIZES = (33, 70, 16, 50)
STEPS, REPEATS = 8, 10  # of captured steps


def federation() -> Federation:
    draw = torch.Generator().manual_seed(0)

    def part(n: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 5, (n,), generator=draw)
        x = torch.randn(n, 3, 16, 16, generator=draw) + y[:, None, None, None] / 2
        return x, y

    clients = []
    for n in SIZES:
        (x, y), (tx, ty) = part(n), part(20)
        clients.append({"x_train": x, "y_train": y, "x_test": tx, "y_test": ty})
    return Federation.from_arrays(clients, classes=5)


def network(data: Federation, smooth: bool) -> nn.Module:
    model = models.build({"name": "fedas_cnn", "hidden": 32}, data.shape, data.classes, 0)
    body = model.body
    assert isinstance(body, nn.Sequential)
    for at, layer in enumerate(body):
        if smooth and isinstance(layer, nn.ReLU):
            body[at] = nn.Tanh()
        if smooth and isinstance(layer, nn.MaxPool2d):
            body[at] = nn.AvgPool2d(layer.kernel_size)
    return model


def final(
    name: str, data: Federation, resumed: bool = False, smooth: bool = False, **options: Any
) -> dict[str, Tensor]:
    """All state after the last round."""
    known = methods.REGISTRY[name].__dataclass_fields__
    wanted: dict[str, Any] = {"lr": 0.01, "batch_size": 8, "epochs": 1, "tau": 5}
    if smooth:
        wanted["server"] = "sgd"
    method = methods.build({"name": name} | {k: v for k, v in wanted.items() if k in known})
    late = Stragglers(periods=(1, 2)) if method.asynchronous else None

    def make() -> Simulation:
        return Simulation(
            method,
            data,
            network(data, smooth),
            rounds=ROUNDS,
            device="cuda",
            participation=0.8,
            stragglers=late,
            **options,
        )

    gc.collect()
    one = make()
    for t in range(ROUNDS):
        one.step()
        if resumed and t == 0:
            state = one.state()
            one = make()
            one.restore(*state)
    return one.state()[0]


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest value of its tensor."""
    assert a.keys() == b.keys()
    gaps = [0.0]
    for name, true in a.items():
        if true.is_floating_point() and true.numel() and not name.startswith("metrics"):
            gap = (true.double() - b[name].double()).abs().max()
            gaps.append(float(gap / true.double().abs().max().clamp_min(1e-3)))
    return max(gaps)


def check_method(name: str, data: Federation) -> dict[str, Any]:
    began = time.perf_counter()
    loop = final(name, data, engine="loop", dtype="float64")
    stacked = final(name, data, dtype="float64")
    resumed = final(name, data, resumed=True, dtype="float64")

    def smooth(**options: Any) -> dict[str, Tensor]:
        return final(name, data, smooth=True, **options)

    true = smooth(engine="loop", dtype="float64")
    row = {
        "method": name,
        "float64": distance(loop, stacked),
        "resumed": distance(stacked, resumed),
        "float32": distance(true, smooth(dtype="float32")),
        "loop_float32": distance(true, smooth(engine="loop", dtype="float32")),
        "tf32": distance(true, smooth(dtype="tf32")),
    }
    near = row["float32"] < max(SINGLE, 10 * row["loop_float32"])
    row["ok"] = row["float64"] < EXACT and row["resumed"] < EXACT and near
    return row | {"seconds": time.perf_counter() - began}


def compared(
    map: str, route: str, shape: str, got: Tensor, true: Tensor, bound: float
) -> dict[str, Any]:
    gap = float((got.double() - true).norm() / true.norm())
    if precision() == "tf32":
        shape, bound = f"{shape} tf32", max(bound, TF32)
    return {"map": map, "route": route, "shape": shape, "distance": gap, "ok": gap <= bound}


def check_convolutions() -> list[dict[str, Any]]:
    """Every route against float64, client by client."""
    rows = []
    for k, b, c, o, size, window, stride, padding in (
        (20, 16, 3, 32, 32, 5, 1, 0),
        (7, 16, 32, 64, 14, 5, 1, 0),
        (1, 33, 32, 64, 14, 3, 1, 1),
        (5, 4, 16, 100, 9, 3, 2, 1),
    ):
        draw = torch.Generator("cuda").manual_seed(0)
        x = torch.randn(k, b, c, size, size, device="cuda", generator=draw, dtype=torch.float64)
        w = torch.randn(k, o, c, window, window, device="cuda", generator=draw, dtype=torch.float64)
        bias = torch.randn(k, o, device="cuda", generator=draw, dtype=torch.float64)
        how = ((stride, stride), (padding, padding), (1, 1))
        y = conv.Each.outputs(x, w, bias, how)
        g = torch.randn(y.shape, device="cuda", generator=draw, dtype=torch.float64)
        cases: dict[str, tuple[Any, ...]] = {
            "outputs": (x, w, bias, how),
            "to_inputs": (g, w, x.shape[3:], how),
            "to_weights": (x, g, w.shape[3:], how),
        }
        for map, args in cases.items():
            true = getattr(conv.Each, map)(*args)
            single = tuple(a.float() if isinstance(a, Tensor) else a for a in args)
            for route in conv.candidates(map, single):
                got = getattr(conv.ROUTES[route], map)(*single)
                shape = f"{k}x{b} {c}->{o} {size}^2 {window}x{window}/{stride}+{padding}"
                bound = KERNEL if route == "fused" else PYTORCH
                rows.append(compared(map, route, shape, got, true, bound))
        true = F.max_pool2d(y.flatten(0, 1), 2).unflatten(0, (k, b))
        single = (x.float(), w.float(), bias.float(), how)
        got = PooledOutputs.apply(*single, False)[0]
        rows.append(compared("pooled", "fused", shape, got, true, KERNEL))
        got, where = PooledOutputs.apply(*single, True)
        rows.append(compared("rectified", "fused", shape, got, true.relu(), KERNEL))
        g = torch.randn(got.shape, device="cuda", generator=draw, dtype=torch.float64)
        every = pool.Back.apply(where, g, y.shape[3:], 2)
        true = conv.Each.to_weights(x, every, w.shape[3:], how)
        parts = fused().weight_parts(single[0], g.float(), w.shape[3:], how, precision(), where)
        rows.append(compared("windows", "fused", shape, parts.sum(0), true, KERNEL))
        lines = (one.movedim(2, -1).flatten(1, -2) for one in (g.float(), where))
        sums = fused_steps().sums(*(one.contiguous() for one in lines)).sum(0)
        rows.append(compared("sums", "fused", shape, sums, every.sum((1, 3, 4)), KERNEL))
    return rows


def check_products() -> list[dict[str, Any]]:
    """Both routes of a linear layer's outputs, and of its step of SGD, against float64."""
    rows = []
    for k, b, i, o in (
        (100, 16, 3136, 512),
        (50, 10, 12544, 128),
        (20, 10, 512, 10),
        (3, 64, 33, 70),
    ):
        draw = torch.Generator("cuda").manual_seed(0)
        x = torch.randn(k, b, i, device="cuda", generator=draw, dtype=torch.float64)
        w = torch.randn(k, o, i, device="cuda", generator=draw, dtype=torch.float64)
        bias = torch.randn(k, o, device="cuda", generator=draw, dtype=torch.float64)
        true = linear.plain(x, w, bias)
        for route, bound in (("plain", PYTORCH), ("skinny", KERNEL)):
            got = getattr(linear, route)(x.float(), w.float(), bias.float())
            rows.append(compared("linear", route, f"{k}x{b} {i}->{o}", got, true, bound))
        g = torch.randn(k, b, o, device="cuda", generator=draw, dtype=torch.float64)
        linear.plain_step(true := w.clone(), g, x)
        for route, bound in (("plain", PYTORCH), ("fused", KERNEL)):
            getattr(linear, f"{route}_step")(got := w.float(), g.float(), x.float())
            rows.append(compared("step", route, f"{k}x{b} {i}->{o}", got, true, bound))
    return rows


def check_norms() -> list[dict[str, Any]]:
    """Batch norms by our kernels against PyTorch's operations in float64, filling included."""
    rows = []
    for shape in ((20, 20, 32, 15, 15), (60, 20, 64, 6, 6), (3, 5, 11, 3, 4)):
        draw = torch.Generator("cuda").manual_seed(0)
        x, g = (
            fused().side_by_side(torch.randn(shape, device="cuda", generator=draw).double())
            for _ in range(2)
        )
        w, b = torch.rand(2, shape[0], shape[2], device="cuda", generator=draw).double().unbind()
        real = (torch.arange(shape[1], device="cuda") < 4).double().expand(shape[0], -1)
        for weight in (None, real / 4):
            up = g if weight is None else g * real[:, :, None, None, None]
            true, mean, var = norm.plain(x, w, b, weight, 1e-5)
            true_back = norm.plain_back(x, up, w, weight, mean, var, 1e-5)
            single = [None if v is None else v.float() for v in (x, w, b, weight, up, mean, var)]
            got = norm.ours(*single[:4], 1e-5)[0]
            back = norm.our_back(single[0], single[4], single[1], *single[3:4], *single[5:], 1e-5)
            told = "x".join(map(str, shape)) + ("" if weight is None else " filled")
            rows.append(compared("norm", "fused", told, got, true, PYTORCH))
            rows += [
                compared("norm back", "fused", told, a, e, PYTORCH)
                for a, e in zip(back, true_back, strict=True)
            ]
    return rows


def check_pooling() -> list[dict[str, Any]]:
    """Values and gradients are PyTorch's to the bit, ties included."""
    rows = []
    for size, side in ((2, 28), (3, 10)):
        draw = torch.Generator("cuda").manual_seed(0)
        x = torch.randint(0, 9, (7, 5, side, side), device="cuda", generator=draw).float()
        x.requires_grad_()
        true, got = F.max_pool2d(x, size), pool.WindowMax.apply(x, size)[0]
        weights = torch.randn(true.shape, device="cuda", generator=draw)
        (up,) = torch.autograd.grad((true * weights).sum(), x)
        (ours,) = torch.autograd.grad((got * weights).sum(), x)
        shape = f"{side}^2 by {size}"
        rows.append(compared("pooled", "fused", shape, got.detach(), true.detach().double(), 0))
        rows.append(compared("unpooled", "fused", shape, ours, up.double(), 0))
    return rows


def check_captured() -> list[dict[str, Any]]:
    """A branch that did not wait for what it reads would give other bits, at least at times."""
    rows = []
    for clients, batch in ((20, 16), (4, 16), (1, 16)):
        sizes = np.full(clients, batch * 12)
        data = random_federation(sizes, (3, 32, 32), train_share=0.9)
        method = methods.build({"name": "fedavg", "batch_size": batch, "lr": 0.01})
        model = models.build({"name": "fedas_cnn"}, data.shape, data.classes, 0)
        sim = Simulation(method, data, model, rounds=3, device="cuda", dtype="tf32")
        sim.step()
        (step,) = sim.engine.captured_steps.captured
        graph, start = step.graphs[clients], {n: v.clone() for n, v in step.state.params.items()}
        assert graph is not None

        def after(one: Any, step: Any = step, start: dict[str, Tensor] = start) -> Tensor:
            for n, v in start.items():
                step.state.params[n].copy_(v)
            step.counter.zero_()
            for _ in range(STEPS):
                one()
            return torch.cat([v.flatten() for v in step.state.params.values()])

        true = after(partial(step.body, clients))
        gap = max(float((after(graph.replay) - true).abs().max()) for _ in range(REPEATS))
        row = {"map": "captured", "route": "step", "shape": f"{clients}x{batch} fedas_cnn"}
        rows.append(row | {"distance": gap, "ok": gap == 0})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", default=sorted(methods.REGISTRY))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("this machine has no GPU", file=sys.stderr)
        return 2
    kernels = []
    for allowed in (True, False):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
        kernels += check_convolutions() + check_products()
    kernels += check_norms() + check_pooling() + check_captured()
    for row in kernels:
        figures = f"{row['map']:<11}{row['route']:<11}{row['shape']:<37}{row['distance']:.1e}"
        print(figures + ("" if row["ok"] else "  OUT OF BOUNDS"))
    data, rows = federation(), []
    print(f"{'method':<18}{'float64':>9}{'resumed':>9}{'float32':>9}{'(loop)':>9}{'tf32':>9}")
    for name in given.methods:
        row = check_method(name, data)
        rows.append(row)
        figures = (row[k] for k in ("float64", "resumed", "float32", "loop_float32", "tf32"))
        note = "" if row["ok"] else "  OUT OF BOUNDS"
        print(f"{name:<18}" + "".join(f"{v:>9.0e}" for v in figures) + note, flush=True)
    result = {"machine": measured_on("cuda"), "kernels": kernels, "methods": rows}
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["ok"] for row in kernels + rows) else 1


if __name__ == "__main__":
    sys.exit(main())
