"""Moving tensors between host memory and a device, and how much memory is free there."""

import ctypes
import platform
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

MAX_KEPT_BYTES = 2 << 30  # of freed memory, from one round to the next
_CGROUP = Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of <malloc.h>


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device; for the CPU, of RAM."""
    if device.type != "cuda":
        return _free_ram()
    left, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(left) + unused


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what a step of training frees for the next step, where it is glibc.
    It would give large blocks back to the system, which then fills every page with zeros
    again: up to a fifth of the time of a round on a CPU, or none, as blocks happen to lie. The
    largest still go back: small blocks would settle where they were, and the next round would ask
    for new memory, without end."""
    if (library := _glibc()) is not None:
        for what, size in ((_M_MMAP_THRESHOLD, 128), (_M_TRIM_THRESHOLD, 2047), (_M_TOP_PAD, 64)):
            library.mallopt(what, size << 20)


def return_freed_memory() -> None:
    """Give the system what the C library keeps, if it is much; what lies between blocks in use
    might never be used again."""
    library = _glibc()
    if library is None or not hasattr(library, "mallinfo2"):  # before 2.33
        return
    library.mallinfo2.restype = _Malloced
    if library.mallinfo2().fordblks > MAX_KEPT_BYTES:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


class _Malloced(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    ]


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """`x` on the device, without waiting for the copy. The copy starts from pinned memory, which
    its allocator reserves until the copy is done; ordinary memory could be reused before that."""
    if device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def to_host_later(x: Tensor) -> Callable[[], Tensor]:
    """Start copying `x` to the host and go on; calling the result waits for the copy."""
    if x.device.type != "cuda":
        return lambda: x
    on_host = pinned_buffer(x.shape, x.dtype)
    on_host.copy_(x, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(x.device))

    def wait() -> Tensor:
        done.synchronize()
        return on_host

    return wait


def gather(store: Tensor, rows: Tensor, out: Tensor) -> None:
    """Copy some rows of a tensor in host memory into `out`. If `out` is on a GPU, the copy is under
    way on the current stream when this returns."""
    if out.device.type != "cuda":
        torch.index_select(store, 0, rows, out=out)
        return
    between = pinned_buffer(out.shape, out.dtype)
    torch.index_select(store, 0, rows, out=between)
    out.copy_(between, non_blocking=True)


def pinned_buffer(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Host memory for copies to and from a GPU that nobody waits for. It is pinned, so its
    allocator does not hand it out again before the copies are done."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=torch.cuda.is_available())


def _free_ram() -> int:
    known = [_number(Path("/proc/meminfo"), "MemAvailable")]
    try:  # a container may have less
        limit = int((_CGROUP / "memory.max").read_text())
        cache = _number(_CGROUP / "memory.stat", "inactive_file", unit=1) or 0
        known.append(limit - int((_CGROUP / "memory.current").read_text()) + cache)
    except (OSError, ValueError):
        pass
    found = [n for n in known if n is not None]
    return min(found) if found else 4 << 30  # unknown: assume little


def _number(file: Path, name: str, unit: int = 1024) -> int | None:
    """A number from a file of `name value` lines."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.split()[0].rstrip(":") == name]
    return unit * int(found[0]) if found else None
