"""Programs that become another user: the interpreter of a test may be readable by its user only,
so a child imports what it needs and then gives up its rights."""

from __future__ import annotations

import os

import pytest

NOBODY = 65534
BECOME_NOBODY = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"

needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="only root may start a process of another user"
)
