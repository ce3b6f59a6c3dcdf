"""Every fast path against the oracle, on a GPU.

    python benchmarks/gpu_check.py [--out gpu-check.json] [METHOD ...]

For every method: the stacked engine (CUDA graphs, our kernels) equals the loop engine to 1e-9 in
float64 and a resumed run the uninterrupted one; in float32 and with TF32 products the distance is
stated, and bounded. Exits with 1 if anything is out of bounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idiolect import methods, models
from idiolect.engine.layers import conv
from idiolect.environment import machine
from idiolect.federation import Federation
from idiolect.rounds import Simulation
from idiolect.schedule import Stragglers

EXACT = 1e-9  # float64
SINGLE = 1e-5  # float32, after the rounds of training; or ten times what the loop loses
KERNEL = 1e-6  # one product in float32 by our kernels against float64
PYTORCH = 1e-5  # … by PyTorch's own
ROUNDS = 2
SIZES = (33, 70, 16, 50)


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


def final(name: str, data: Federation, resumed: bool = False, **options: Any) -> dict[str, Tensor]:
    """All state after the last round."""
    known = methods.REGISTRY[name].__dataclass_fields__
    wanted = {"lr": 0.01, "batch_size": 8, "epochs": 1, "tau": 5}
    method = methods.build({"name": name} | {k: v for k, v in wanted.items() if k in known})
    late = Stragglers(periods=(1, 2)) if method.asynchronous else None
    model = models.build({"name": "fedas_cnn", "hidden": 32}, data.shape, data.classes, 0)

    def make() -> Simulation:
        return Simulation(
            method,
            data,
            model,
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
    row = {
        "method": name,
        "float64": distance(loop, stacked),
        "resumed": distance(stacked, final(name, data, resumed=True, dtype="float64")),
        "float32": distance(loop, final(name, data, dtype="float32")),
        "loop_float32": distance(loop, final(name, data, engine="loop", dtype="float32")),
        "tf32": distance(loop, final(name, data, dtype="tf32")),
    }
    near = row["float32"] < max(SINGLE, 10 * row["loop_float32"])
    row["ok"] = row["float64"] < EXACT and row["resumed"] < EXACT and near
    return row | {"seconds": time.perf_counter() - began}


def check_kernels() -> list[dict[str, Any]]:
    """Every route of a convolution against float64, client by client."""
    torch.backends.cudnn.allow_tf32 = False
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
                gap = float((got.double() - true).norm() / true.norm())
                shape = f"{k}x{b} {c}->{o} {size}^2 {window}x{window}/{stride}+{padding}"
                row = {"map": map, "route": route, "shape": shape, "distance": gap}
                bound = KERNEL if route in ("fused", "columns") else PYTORCH
                rows.append(row | {"ok": gap < bound})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", default=sorted(methods.REGISTRY))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("this machine has no GPU", file=sys.stderr)
        return 2
    kernels = check_kernels()
    for row in kernels:
        print(f"{row['map']:<11}{row['route']:<9}{row['shape']:<32}{row['distance']:.1e}")
    data, rows = federation(), []
    print(f"{'method':<18}{'float64':>9}{'resumed':>9}{'float32':>9}{'(loop)':>9}{'tf32':>9}")
    for name in given.methods:
        row = check_method(name, data)
        rows.append(row)
        figures = (row[k] for k in ("float64", "resumed", "float32", "loop_float32", "tf32"))
        note = "" if row["ok"] else "  OUT OF BOUNDS"
        print(f"{name:<18}" + "".join(f"{v:>9.0e}" for v in figures) + note, flush=True)
    result = {"machine": machine("cuda"), "kernels": kernels, "methods": rows}
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["ok"] for row in kernels + rows) else 1


if __name__ == "__main__":
    sys.exit(main())
