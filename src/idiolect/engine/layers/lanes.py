"""Work beside the main line of a captured step.

The way from the loss back to the first layer is one kernel after another, and few clients leave
most of a GPU idle meanwhile. Gradients of weights lie beside that way: nobody waits for them before
the step ends. In a lane they become a branch of the CUDA graph, with less priority than the way.
Outside of a capture the host is what is slow, and a lane is the main line.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

LANES = 4
MAX_VALUES_KEPT = 1 << 26  # that a lane reads: they stay in memory until the step ends


class Lanes:
    """The lanes of one step."""

    def __init__(self) -> None:
        self._open: set[torch.cuda.Stream] = set()
        self._kept: list[Any] = []

    def run(self, lane: int, work: Callable[..., Any], *given: torch.Tensor) -> Any:
        """`work(*given)`, after all that was started in the lane and, up to now, on the main line.
        Its results are for the same lane only, until `join`."""
        capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        if not capturing or sum(one.numel() for one in given) > MAX_VALUES_KEPT:
            return work(*given)
        main = torch.cuda.current_stream()
        side = _stream(torch.cuda.current_device(), lane % LANES)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            found = work(*given)
        self._open.add(side)
        # The main line would write into memory that is freed before the lane has read it.
        self._kept.append((given, found))
        return found

    def join(self) -> None:
        """Go on with the main line when all lanes are done."""
        for side in self._open:
            torch.cuda.current_stream().wait_stream(side)
        self._open.clear()
        self._kept.clear()


@cache
def _stream(device: int, lane: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
