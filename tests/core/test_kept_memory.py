"""Telling the C library to keep freed memory."""

import ctypes
import platform
from typing import Any

import pytest

from idiolect.core.devices import keep_freed_memory


@pytest.mark.parametrize(("library", "told"), [("glibc", 3), ("", 0)])
def test_only_glibc_is_told(library: str, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, what: int, value: int) -> None:
            calls.append((what, value))

    def opened(name: Any) -> Library:
        return Library()

    monkeypatch.setattr(platform, "libc_ver", lambda: (library, "2.36"))
    monkeypatch.setattr(ctypes, "CDLL", opened)
    keep_freed_memory.__wrapped__()
    assert len(calls) == told
    assert all(0 < value < 2**31 for _, value in calls)  # it takes an int
