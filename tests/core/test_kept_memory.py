"""What the C library does with freed memory."""

import ctypes
import platform
from typing import Any

import pytest
import torch

from idiolect.core import devices


class Library:
    """One that notes what it is told, and has so many bytes to give back."""

    def __init__(self, free: int = 0) -> None:
        self.told: list[tuple[int, int]] = []
        self.trimmed = 0
        self.free = free
        self.mallinfo2 = lambda: devices._Malloced(fordblks=self.free)

    def mallopt(self, what: int, value: int) -> None:
        self.told.append((what, value))

    def malloc_trim(self, pad: int) -> None:
        self.trimmed += 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    def opened(name: str, library: Any) -> Any:
        monkeypatch.setattr(platform, "libc_ver", lambda: (name, "2.36"))
        monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
        devices._glibc.cache_clear()
        return library

    yield opened
    monkeypatch.undo()
    devices._glibc.cache_clear()


@pytest.mark.parametrize(("name", "told"), [("glibc", 3), ("", 0)])
def test_only_glibc_is_told(name: str, told: int, opened: Any) -> None:
    library = opened(name, Library())
    devices.keep_freed_memory.__wrapped__()
    assert len(library.told) == told
    assert all(0 < value < 2**31 for _, value in library.told)  # it takes an int


def test_much_freed_memory_goes_back(opened: Any) -> None:
    few, much = Library(devices.MAX_KEPT_BYTES), Library(devices.MAX_KEPT_BYTES + 1)
    for library in (opened("glibc", few), opened("", much)):
        devices.return_freed_memory()
        assert library.trimmed == 0
    opened("glibc", much)
    devices.return_freed_memory()
    assert much.trimmed == 1
    opened("glibc", object())  # an old one, which cannot tell
    devices.return_freed_memory()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_freed_blocks_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Really: blocks between small ones that stay."""

    def resident() -> int:
        with open("/proc/self/statm") as about:
            return int(about.read().split()[1]) * 4096

    devices.keep_freed_memory()
    monkeypatch.setattr(devices, "MAX_KEPT_BYTES", 64 << 20)
    blocks = [torch.ones(4 << 20) for _ in range(20)]  # 16 MiB each
    between = [torch.ones(1 << 10)]
    blocks += [torch.ones(4 << 20) for _ in range(20)]
    full = resident()
    blocks.clear()
    devices.return_freed_memory()
    assert resident() < full - (400 << 20) and between
