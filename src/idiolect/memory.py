"""How much memory there is."""

from __future__ import annotations

from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")


def free(device: torch.device) -> int:
    """Bytes that can still be allocated on a device; for the CPU, of RAM."""
    if device.type != "cuda":
        return _free_ram()
    left, _ = torch.cuda.mem_get_info(device)
    for segment in torch.cuda.memory_snapshot():  # kept by PyTorch and not in use
        of_a_graph = segment.get("segment_pool_id", (0, 0)) != (0, 0)
        if segment["device"] == _number(device) and not of_a_graph:
            left += segment["total_size"] - segment["allocated_size"]
    return left


def _number(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _free_ram() -> int:
    known = [_field(Path("/proc/meminfo"), "MemAvailable")]
    try:  # a container may have less
        limit = int((_CGROUP / "memory.max").read_text())
        cache = _field(_CGROUP / "memory.stat", "inactive_file", unit=1) or 0
        known.append(limit - int((_CGROUP / "memory.current").read_text()) + cache)
    except (OSError, ValueError):
        pass
    found = [n for n in known if n is not None]
    return min(found) if found else 4 << 30  # no way to ask: assume little


def _field(file: Path, name: str, unit: int = 1024) -> int | None:
    """A number from a file of `name value` lines."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.split()[0].rstrip(":") == name]
    return unit * int(found[0]) if found else None
