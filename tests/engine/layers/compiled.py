"""Compiles our GPU kernels as their launches would, on a machine that needs no GPU, and prints how
they move data. Run by `test_compiled.py`, in a process without Triton's interpreter."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from idiolect.engine.layers import (
    triton_kernels,
    triton_loss,
    triton_norm,
    triton_pool,
    triton_steps,
)

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {torch.float32: "*fp32", torch.int8: "*i8", torch.int64: "*i64"}


def unguarded(code: str) -> int:
    """Products by tensor cores that may read shared memory before other threads' writes are there:
    those must be followed by a fence, then by a barrier."""
    fenced, guarded, found = True, True, 0
    for line in code.splitlines():
        if re.search(r"\b(st\.shared|stmatrix)", line):
            fenced = guarded = False
        elif "fence.proxy.async" in line:
            fenced = True
        elif "bar.sync" in line:
            guarded |= fenced
        elif "wgmma.mma_async" in line:
            found += not guarded
    return found


class Launch:
    """Stands in for a kernel: compiles what would have been launched."""

    def __init__(self, kernel: Any, seen: dict[str, Any]):
        self.kernel, self.seen = kernel, seen

    def __getitem__(self, grid: Any) -> Any:
        return self.compile

    def compile(self, *args: Any, **options: Any) -> None:
        signature, constants, known = {}, {}, {}
        for at, (param, value) in enumerate(zip(self.kernel.params, args, strict=True)):
            if param.is_constexpr:
                signature[param.name], constants[(at,)] = "constexpr", value
                continue
            signature[param.name] = POINTERS[value.dtype] if isinstance(value, Tensor) else "i32"
            # What Triton tells the compiler: pointers are aligned, sizes may divide by 16.
            divides = isinstance(value, Tensor) or value % 16 == 0
            if divides and not param.do_not_specialize:
                known[(at,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, known)
        code = triton.compile(source, target=HOPPER, options=options).asm["ptx"]
        name = self.kernel.__name__ + (" tf32" if "tf32" in args else "")
        pooled = {p.name: value for p, value in zip(self.kernel.params, args, strict=True)}
        name += " pooled" if pooled.get("POOLED") else ""
        self.seen[name] = {
            "wide_loads": len(re.findall(r"ld\.global[^\n]*\.v4|cp\.async\.c[^\n]* 0x10", code)),
            "stores": len(re.findall(r"st\.global", code)),
            "wide_stores": len(re.findall(r"st\.global[^\n]*\.v4", code)),
            "matrix_products": len(re.findall(r"mma", code)),
            "unguarded": unguarded(code),
        }


def main() -> None:
    seen: dict[str, Any] = {}
    for room, names in (
        (triton_kernels, ("_outputs", "_to_weights")),
        (triton_steps, ("_step", "_take_away", "_sums")),
        (triton_loss, ("_loss",)),
        (triton_norm, ("_normalise", "_back")),
        (triton_pool, ("_pool", "_move")),
    ):
        for name in names:
            setattr(room, name, Launch(getattr(room, name), seen))
    k, b = 20, 16  # the second convolution of `pfllib-round`
    x = torch.empty(k, b, 32, 14, 14, device="meta")
    w = torch.empty(k, 64, 32, 5, 5, device="meta")
    how = ((1, 1), (0, 0), (1, 1))
    for precision in ("tf32x3", "tf32"):
        y = triton_kernels.outputs(x, w, torch.empty(k, 64, device="meta"), how, precision)
        triton_kernels.to_weights(x, y, w.shape[3:], how, precision)
        bias = torch.empty(k, 64, device="meta")
        best, where = triton_kernels.pooled_outputs(x, w, bias, how, precision, True)
        triton_kernels.weight_parts(x, best, w.shape[3:], how, precision, where)
    weights = torch.empty(k, 512, 1600, device="meta")
    g, inputs = (torch.empty(k, b, n, device="meta") for n in (512, 1600))
    triton_steps.product(weights, g, inputs)
    triton_steps.take_away(w, torch.empty(3, *w.shape, device="meta"))
    rows = (one.movedim(2, -1).flatten(1, -2) for one in (best, where))
    triton_steps.sums(*rows)
    labels = torch.empty(k, b, device="meta")
    triton_loss.to_outputs(torch.empty(k, b, 10, device="meta"), labels, labels)
    images = triton_kernels.side_by_side(torch.empty(k, b, 32, 15, 15, device="meta"))
    ones, shares = torch.empty(k, 32, device="meta"), torch.empty(k, b, device="meta")
    triton_norm.normalise(images, ones, ones, shares, 1e-5)
    triton_norm.back(images, images, ones, shares, ones, ones, 1e-5)
    small, where = triton_pool.pool(y, 2)
    triton_pool.unpool(where, small, y.shape[-2:], 2)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
