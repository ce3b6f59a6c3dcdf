"""Randomness keyed by what it is for, never by call order.

The same (seed, purpose, client, round, …) gives the same numbers whatever the engine, the grouping
of clients, the device count, the resume point or the deployment.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np


def rng(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """A generator of its own for one purpose at one place."""
    entropy = [seed, crc32(purpose.encode()), *where]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


def torch_seed(seed: int, purpose: str, *where: int) -> int:
    """A seed for torch's own generators (dropout masks)."""
    return int(rng(seed, purpose, *where).integers(2**62))
