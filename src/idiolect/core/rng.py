"""Randomness keyed by what it is for, never by call order.

The same (seed, purpose, client, round, …) gives the same numbers whatever the engine, the grouping
of clients, the device count, the resume point or the deployment.
"""

from zlib import crc32

import numpy as np

from idiolect.errors import UserError


def keyed(seed: int, *purpose: str | int) -> np.random.Generator:
    """A generator for one purpose at one place, e.g. `keyed(0, "shuffle", client, 3)`."""
    if type(seed) is not int or seed < 0:
        raise UserError(f"seed must be a whole number of at least 0, got {seed!r}")
    words = [crc32(p.encode()) if isinstance(p, str) else p for p in purpose]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *words])))


def torch_seed(seed: int, *purpose: str | int) -> int:
    """A seed for torch's own generators (dropout masks)."""
    return int(keyed(seed, *purpose).integers(2**62))
