"""Layers of K clients against PyTorch's own, client by client: values and derivatives of every
order that methods use. Our GPU kernels run here in Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from idiolect.engine import layers
from idiolect.engine.layers import conv, linear, norm, pool, pooled_conv
from idiolect.engine.layers.autotune import Autotuner
from idiolect.engine.layers.stack_function import fused

needs_triton = pytest.mark.skipif(fused() is None, reason="Triton is not installed")

SHAPES = [  # clients, batch, channels in and out, height, window, stride, padding, dilation
    (2, 3, 3, 5, 9, 3, 1, 0, 1),
    (3, 2, 4, 18, 8, 3, 2, 1, 1),
    (1, 2, 17, 33, 7, 2, 1, 1, 2),
    (2, 2, 3, 8, 10, 5, 3, 2, 1),
    (2, 2, 3, 70, 6, 5, 1, 2, 1),
]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 2, stride=2, bias=False),
        nn.Flatten(),
        nn.Linear(3, 4),
        nn.Tanh(),
        nn.Linear(4, 3, bias=False),
    ).double()


def derivatives(module: nn.Module, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Losses of three clients, their gradients, a gradient through a gradient (as Per-FedAvg takes)
    and one through per-sample gradients."""
    draw = torch.Generator().manual_seed(1)
    start = {
        n: 0.4 * torch.randn(3, *p.shape, generator=draw, dtype=torch.float64).to(dtype)
        for n, p in module.named_parameters()
    }
    x = torch.randn(3, 5, 2, 4, 4, generator=draw, dtype=torch.float64).to(dtype)
    y = torch.randint(0, 3, (3, 5), generator=draw)

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, p, (x,)), y)

    def ahead(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        g = grad(loss)(p, x, y)
        return loss({n: p[n] - 0.1 * g[n] for n in p}, x, y)

    def squares(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        def one(a: Tensor, b: Tensor) -> Tensor:
            return sum(v.square().sum() for v in grad(loss)(p, a[None], b[None]).values())

        return vmap(one)(x, y).sum()

    out = []
    for fn in (loss, ahead, squares):
        leaf = {n: v.clone().requires_grad_() for n, v in start.items()}
        values = vmap(fn)(leaf, x, y)
        out += [values, *torch.autograd.grad(values.sum(), list(leaf.values()))]
    return out


@pytest.mark.parametrize("route", ["each", "grouped"])
def test_installed_layers_have_pytorchs_values_and_derivatives(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = conv.ROUTES[route]
    for name in ("each", "grouped"):  # whatever a CPU would take
        monkeypatch.setitem(conv.ROUTES, name, chosen)
    ours = deepcopy(model())
    layers.install(ours, torch.device("cpu"))
    products = linear.StackedLinear if linear.onednn_is_faster() else nn.Linear
    assert {type(m) for m in ours.modules()} >= {conv.Conv2d, products, pool.PixelMaxPool2d}
    for a, b in zip(derivatives(model()), derivatives(ours), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@needs_triton
def test_on_a_gpu_pooling_is_ours_too() -> None:
    ours = deepcopy(model())
    layers.install(ours, torch.device("cuda"))
    assert {type(m) for m in ours.modules()} >= {conv.Conv2d, linear.StackedLinear, pool.MaxPool2d}
    for a, b in zip(derivatives(model()), derivatives(ours), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@needs_triton
def test_a_convolution_that_pools_has_every_derivative() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(
        *(nn.Conv2d(2, 17, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(17, 5, 2, bias=False), nn.MaxPool2d(2), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(5, 3)),
    )
    ours = deepcopy(plain)
    layers.install(ours, torch.device("cuda"))
    kinds = [type(m) for m in ours]
    assert kinds[:3] == [pooled_conv.PooledConv2d, nn.Identity, nn.Identity]
    assert kinds[3:6] == [pooled_conv.PooledConv2d, nn.Identity, nn.Tanh]
    assert ours[0].rectified and not ours[3].rectified
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in plain.named_parameters()]
    found = derivatives(ours, torch.float32)
    for a, b in zip(derivatives(plain.double()), found, strict=True):
        assert (a - b).norm() < 1e-5 * a.norm()


@needs_triton
def test_networks_that_count_on_planes_get_them() -> None:
    """`view` works on images that lie plane by plane only; group norms want them so."""
    plain = nn.Sequential(nn.Conv2d(2, 17, 3), nn.MaxPool2d(2), nn.GroupNorm(1, 17))
    layers.install(plain, torch.device("cuda"))
    assert plain[0].planes and not layers.lay_by_planes(plain)
    pooled = nn.Sequential(nn.Conv2d(2, 17, 3), nn.MaxPool2d(2))
    layers.install(pooled, torch.device("cuda"))
    x = torch.randn(3, 2, 8, 8)
    assert not pooled(x).is_contiguous()
    assert layers.lay_by_planes(pooled) and pooled(x).is_contiguous()


def test_batch_norms_of_a_stack() -> None:
    """Values, gradients and running statistics are PyTorch's, however the images lie."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.BatchNorm2d(3), nn.Tanh(), nn.BatchNorm2d(3, momentum=0.3)).double()
    ours = deepcopy(plain)
    layers.install(ours, torch.device("cuda"))
    assert type(ours[0]) is norm.StackedBatchNorm2d
    leaves = {n: torch.rand(2, *p.shape).double() for n, p in plain.state_dict().items()}
    leaves = {n: v for n, v in leaves.items() if "tracked" not in n}
    x, found = 3 + torch.randn(2, 4, 3, 5, 6, dtype=torch.float64), []
    for layer in (plain, ours, ours):
        for one in (layer[0], layer[2]):
            one.num_batches_tracked = None
        p = {n: v.clone().requires_grad_("running" not in n) for n, v in leaves.items()}
        y = vmap(lambda p, x, m=layer: functional_call(m, p, (x,)).square().sum())(p, x)
        weights = [v for v in p.values() if v.requires_grad]
        running = [v for v in p.values() if not v.requires_grad]
        found.append([y, *running, *torch.autograd.grad(y.sum(), weights)])
        x = x.movedim(2, -1).contiguous().movedim(-1, 2)
    for true, one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, true)
        torch.testing.assert_close(other, true)


@needs_triton
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 11, 3, 4), (1, 3, 8, 9, 10)])
def test_kernels_of_batch_norms(shape: tuple[int, ...], filled: bool) -> None:
    torch.manual_seed(0)
    x, g = (fused().side_by_side(5 + torch.randn(*shape)) for _ in range(2))
    w, b = torch.randn(shape[0], shape[2]), torch.randn(shape[0], shape[2])
    weight = None
    if filled:
        weight = (torch.arange(shape[1]) < 2).float().expand(shape[0], -1) / 2
        g = g * (weight > 0)[:, :, None, None, None]
    for one, other in zip(
        norm.ours(x, w, b, weight, 1e-5), norm.plain(x, w, b, weight, 1e-5), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    _, mean, var = norm.plain(x, w, b, weight, 1e-5)
    args = (x, g.contiguous(), w, weight, mean, var, 1e-5)
    for one, other in zip(norm.our_back(*args), norm.plain_back(*args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert norm.ours(x, w, b, weight, 1e-5)[0].stride() == x.stride()


@pytest.mark.parametrize("clients", [1, 3])
def test_batch_norms_leave_out_samples_that_fill_up_a_batch(clients: int) -> None:
    """Values, gradients and running statistics are those of the real samples alone."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.BatchNorm2d(3), nn.Tanh(), nn.BatchNorm2d(3, momentum=0.3)).double()
    ours = deepcopy(plain)
    layers.install(ours, torch.device("cuda"))
    assert layers.can_leave_out_filling(ours) and not layers.can_leave_out_filling(plain)
    for one in (plain[0], plain[2], ours[0], ours[2]):
        one.num_batches_tracked = None
    start = {n: torch.rand(clients, *p.shape).double() for n, p in plain.state_dict().items()}
    x = 3 + torch.randn(clients, 5, 3, 4, 2, dtype=torch.float64)
    sizes = torch.tensor([5, 2, 3])[:clients]
    weight = (torch.arange(5) < sizes[:, None]).double() / sizes[:, None]
    p, q = ({n: v.clone() for n, v in start.items()} for _ in range(2))
    for leaves in (p, q):
        for n, v in leaves.items():
            v.requires_grad_("running" not in n)

    def loss(p: dict[str, torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (functional_call(ours, p, (x,)).square().sum((1, 2, 3)) * w).sum()

    found = vmap(layers.with_filling(loss))(p, weight, x, weight)
    true = []
    for k, size in enumerate(sizes.tolist()):
        out = functional_call(plain, {n: v[k] for n, v in q.items()}, (x[k, :size],))
        true.append(out.square().sum((1, 2, 3)).mean())
    torch.testing.assert_close(found, torch.stack(true))
    wanted = [n for n in p if p[n].requires_grad]
    gradients = (
        torch.autograd.grad(sum(value), [leaves[n] for n in wanted])
        for value, leaves in ((found, p), (true, q))
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    for n in p:
        torch.testing.assert_close(p[n], q[n])


def test_a_batch_norm_that_sees_other_samples_says_so() -> None:
    ours = nn.Sequential(nn.BatchNorm2d(3))
    layers.install(ours, torch.device("cuda"))
    with pytest.raises(TypeError, match="coupled=True"):
        layers.with_filling(ours)(torch.rand(4, 3, 2, 2), torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_unusual_layers_are_left_alone(device: str) -> None:
    kept = nn.ModuleList(
        [
            nn.Conv2d(4, 4, 3, groups=2),
            nn.Conv2d(4, 4, 3, padding="same"),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
            nn.MaxPool2d(3, 2),
            nn.MaxPool2d(2, padding=1),
            nn.MaxPool2d((2, 1)),
            nn.MaxPool2d(2, ceil_mode=True),
        ]
    )
    before = [type(m) for m in kept]
    layers.install(kept, torch.device(device))
    assert [type(m) for m in kept] == before


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_of_a_convolution(shape: tuple[int, ...]) -> None:
    k, b, c, o, size, window, stride, padding, dilation = shape
    torch.manual_seed(0)
    x = torch.randn(k, b, c, size, size + 1, requires_grad=True)
    w = torch.randn(k, o, c, window, window, requires_grad=True)
    bias = torch.randn(k, o)
    how = ((stride,) * 2, (padding,) * 2, (dilation,) * 2)
    true = conv.Each.outputs(x, w, bias, how)
    g = torch.randn_like(true)
    to_x, to_w = torch.autograd.grad(true, (x, w), g)
    x, w = x.detach(), w.detach()
    near = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(conv.Fused.outputs(x, w, bias, how), true, **near)
    torch.testing.assert_close(conv.Fused.to_weights(x, g, w.shape[3:], how), to_w, **near)
    torch.testing.assert_close(conv.Fused.to_inputs(g, w, x.shape[3:], how), to_x, **near)
    x.requires_grad_()
    w.requires_grad_()
    bias.requires_grad_()
    true = F.max_pool2d(conv.Each.outputs(x, w, bias, how).flatten(0, 1), 2).unflatten(0, (k, b))
    g = torch.randn_like(true)
    for rectified in (False, True):
        ours, where = pooled_conv.PooledOutputs.apply(x, w, bias, how, rectified)
        pair = (ours, true.relu() if rectified else true)
        torch.testing.assert_close(*pair, **near)
        assert torch.equal(where > 3, ours <= 0) if rectified else where.max() < 4
        grads = (torch.autograd.grad(y, (x, w, bias), g, retain_graph=True) for y in pair)
        for a, e in zip(*grads, strict=True):
            torch.testing.assert_close(a, e, **near)


@needs_triton
@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(3, 70, 5), (10, 200, 130), (20, 33, 40)])
def test_kernel_of_a_skinny_product(batch: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, batch, inputs), torch.randn(2, outputs, inputs)
    bias = torch.randn(2, outputs)
    true = torch.stack([F.linear(*args) for args in zip(x, w, bias, strict=True)])
    torch.testing.assert_close(linear.skinny(x, w, bias), true, rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(3, 70, 5), (10, 200, 130), (20, 33, 40)])
def test_kernel_of_a_step(batch: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    w = torch.randn(2, outputs, inputs)
    g, x = torch.randn(2, batch, outputs), torch.randn(2, batch, inputs)
    true, ours = w.clone(), w.clone()
    linear.plain_step(true, g, x)
    linear.fused_step(ours, g, x)
    torch.testing.assert_close(true, w - torch.einsum("kbo,kbi->koi", g, x))
    torch.testing.assert_close(ours, true, rtol=1e-5, atol=1e-5)


@needs_triton
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "side"), [((2, 3, 4, 6), 2), ((3, 2, 7, 10), 3)])
def test_pooling_breaks_ties_as_pytorch_does(
    shape: tuple[int, ...], side: int, format: torch.memory_format
) -> None:
    x = torch.randint(0, 3, shape).double().to(memory_format=format).requires_grad_()
    true, ours = F.max_pool2d(x, side), pool.WindowMax.apply(x, side)[0]
    assert torch.equal(true, ours)
    g = torch.randn_like(true)
    assert torch.equal(torch.autograd.grad(true, x, g)[0], torch.autograd.grad(ours, x, g)[0])


@needs_triton
def test_pooling_passes_on_nan() -> None:
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    x[0, 0, 0, 0] = x[0, 0, 3, 3] = torch.nan
    true = F.max_pool2d(x, 2)
    torch.testing.assert_close(pool.WindowMax.apply(x, 2)[0], true, equal_nan=True)
    one, how = torch.ones(1, 1, 1, 1, 1), ((1, 1), (0, 0), (1, 1))
    ours, where = pooled_conv.PooledOutputs.apply(x[None], one, None, how, False)
    torch.testing.assert_close(ours[0], true, equal_nan=True)
    assert where.flatten().tolist() == [0, 3, 3, 3]


class Clock:
    """Stands in for CUDA events: a way takes as long as it says."""

    now = 0.0

    def __init__(self, timing: bool):
        self.at = 0.0

    def record(self) -> None:
        self.at = Clock.now

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: Clock) -> float:
        return other.at - self.at


@pytest.mark.parametrize("tf32", [False, True])
def test_a_route_that_loses_digits_is_for_tf32_only(
    tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    args = (torch.zeros(7, 2, 3, 8, 8), torch.zeros(7, 2, 4, 6, 6), torch.Size((3, 3)), None)
    assert conv.candidates("to_weights", args) == ["grouped"] * tf32 + ["fused"]
    double = tuple(a.double() if isinstance(a, Tensor) else a for a in args)
    assert conv.candidates("to_weights", double) == ["grouped"]


def test_the_fastest_way_is_measured_once_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    calls = []

    def way(name: str, span: float) -> Callable[[], None]:
        def run() -> None:
            calls.append(name)
            Clock.now += span

        return run

    ways = {"slow": way("slow", 2.0), "fast": way("fast", 1.0), "far": way("far", 9.0)}
    assert Autotuner().fastest("case", ways, ()) == "fast"
    assert calls.count("slow") == calls.count("fast") > 2 == calls.count("far")
    calls.clear()
    assert Autotuner().fastest("case", ways, ()) == "fast"  # another process
    assert not calls
    assert Autotuner().fastest("case", {"slow": ways["slow"]}, ()) == "slow"  # the other is gone
    (tmp_path / "idiolect" / "routes.json").write_text("{not JSON")
    assert Autotuner().fastest("case", ways, ()) == "fast"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("side", "size"), [(2, (4, 6)), (3, (7, 5))])
def test_pooling_of_a_stack_on_a_cpu_is_pytorchs_to_the_bit(
    dtype: torch.dtype, side: int, size: tuple[int, int]
) -> None:
    plain = nn.MaxPool2d(side)
    ours = nn.Sequential(deepcopy(plain))
    layers.install(ours, torch.device("cpu"))
    assert type(ours[0]) is pool.PixelMaxPool2d
    x = torch.randint(-2, 3, (4, 3, 2, *size)).to(dtype)  # with ties
    x[0, 0, 0, 0, 0] = torch.nan

    def values(net: nn.Module) -> list[Tensor]:
        leaf = x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()  # as grouped ones
        out = vmap(net)(leaf)
        assert out.is_contiguous()  # `view` may follow in a network
        g = torch.arange(out.numel(), dtype=dtype).view_as(out).requires_grad_()
        (back,) = torch.autograd.grad(out, leaf, g, create_graph=True)
        (again,) = torch.autograd.grad(back, g, torch.ones_like(back))
        return [out, back, again, net(x[1])]

    for a, b in zip(values(plain), values(ours), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_relu_after_pooling_is_pooling_after_relu() -> None:
    plain = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.ReLU())
    ours = deepcopy(plain)
    layers.install(ours, torch.device("cpu"))
    assert [type(m) for m in ours] == [pool.PixelMaxPool2d, nn.ReLU, nn.Flatten, nn.ReLU]
    x = torch.randint(-2, 3, (3, 2, 4, 4)).double().requires_grad_()  # with ties
    a, b = plain(x), ours(x)
    g = torch.randn_like(a)
    assert torch.equal(a, b)
    assert torch.equal(torch.autograd.grad(a, x, g)[0], torch.autograd.grad(b, x, g)[0])
