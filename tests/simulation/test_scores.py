"""What clients scored, read while a GPU may still be computing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from idiolect.core import devices
from idiolect.simulation.scores import Scores

SIZES = {"test": np.array([4, 2, 0]), "val": np.array([1, 0, 0])}


def scores() -> Scores:
    return Scores(SIZES)


def test_figures_are_per_sample_and_nan_where_there_is_none() -> None:
    one = scores()
    one.write("after", "test", [0, 2], torch.tensor([3.0, 0.0]), torch.tensor([2.0, 0.0]))
    one.write("before", "val", [0], torch.tensor([1.0]), torch.tensor([0.5]))
    np.testing.assert_array_equal(one.columns["accuracy_after"], [0.75, np.nan, np.nan])
    np.testing.assert_array_equal(one.columns["loss_after"], [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(one.columns["val_accuracy_before"], [1, np.nan, np.nan])
    one.copy("after", "before", [0])
    assert one.columns["loss_before"][0] == 0.5
    assert np.isnan(one.columns["accuracy_global"]).all()


def test_nothing_is_waited_for_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def coming(x: torch.Tensor):  # type: ignore[no-untyped-def]
        def wait() -> torch.Tensor:
            waited.append(float(x[0, 0]))
            return x

        return wait

    monkeypatch.setattr(devices, "to_host_later", coming)
    one = scores()
    zero = torch.zeros(1)
    one.write("after", "test", [1], torch.tensor([1.0]), zero)
    first = one.snapshot()
    one.write("after", "test", [1], torch.tensor([2.0]), zero)
    second = one.snapshot()
    assert not waited
    assert first()["accuracy_after"][1] == 0.5
    assert waited == [1.0]  # the later test is not
    assert second()["accuracy_after"][1] == 1
    assert first()["accuracy_after"][1] == 0.5 and waited == [1.0, 2.0]


def test_snapshots_are_read_in_any_order() -> None:
    one = scores()
    snaps = []
    for hits in (1.0, 2.0):
        one.write("global", "test", [0], torch.tensor([hits]), torch.zeros(1))
        snaps.append(one.snapshot())
    assert [s()["accuracy_global"][0] for s in reversed(snaps)] == [0.5, 0.25]


def test_restored_scores_forget_what_was_under_way_and_snapshots_do_not() -> None:
    one = scores()
    one.write("after", "test", [0], torch.tensor([3.0]), torch.zeros(1))
    saved = {k: torch.from_numpy(v.copy()) for k, v in one.columns.items()}
    other = scores()
    other.write("after", "test", [0], torch.tensor([1.0]), torch.zeros(1))
    before = other.snapshot()
    other.restore(saved)
    assert before()["accuracy_after"][0] == 0.25
    assert other.columns["accuracy_after"][0] == 0.75
