"""How a client's samples are cut into batches."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from idiolect.core.batches import BatchPlan

PLANS: list[dict[str, Any]] = [
    {"batch_size": size, "epochs": epochs, **more}
    for size, epochs in product((1, 4, "full"), (1, 3))
    for more in ({}, {"steps": 5}, {"most": 2}, {"drop_last": True})
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("merge", [False, True])
def test_the_count_is_that_of_the_table(plan: dict[str, Any], merge: bool) -> None:
    made = BatchPlan(**plan)
    for n in range(1, 14):
        _, sizes = made.table(np.zeros(n, np.int64), 0, 0, 0, merge_single=merge)
        assert made.count(n, merge) == len(sizes)
