"""Summaries and the papers' protocols, against numbers worked out by hand."""

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.simulation import metrics

nan = np.nan


def table(
    before: list[list[float]],
    after: list[list[float]] | None = None,
    started: list[list[int]] | None = None,
    size: tuple[int, ...] = (10, 30),
    unseen: tuple[bool, ...] = (False, False),
    val: list[list[float]] | None = None,
    shared: list[list[float]] | None = None,
) -> dict[str, np.ndarray]:
    """Two clients by default; the first row is round 0."""
    grid = np.array(before, float)
    t, n = grid.shape
    number = np.repeat(np.arange(t), n)

    def column(values: list[list[float]] | None) -> np.ndarray:
        return np.full(t * n, nan) if values is None else np.array(values, float).ravel()

    return {
        "round": number,
        "client": np.tile(np.arange(n), t),
        "test_size": np.tile(size, t),
        "val_size": np.full(t * n, 0 if val is None else 5),
        "unseen": np.tile(unseen, t),
        "started": (number > 0) if started is None else column(started).astype(bool),
        "accuracy_before": grid.ravel(),
        "accuracy_after": column(after),
        "val_accuracy_before": column(val),
        "accuracy_global": column(shared),
    }


def test_stats_by_hand() -> None:
    got = metrics.stats(np.array([0.2, 0.6, nan]), np.array([10, 30, 99]))
    assert got == pytest.approx({"mean": 0.4, "pooled": 0.5, "std": 0.2, "p10": 0.24, "worst": 0.2})
    assert metrics.stats(np.array([nan]), np.array([1]))["mean"] is None


def test_best_last_and_last10() -> None:
    made = metrics.summarise(table([[0.9, 0.9], [0.2, 0.4], [0.6, 0.8], [0.5, 0.5]]))
    accuracy = made["accuracy"]
    assert (accuracy["best"]["round"], accuracy["last"]["round"]) == (2, 3)
    assert accuracy["best"]["mean"] == pytest.approx(0.7)
    assert accuracy["best"]["pooled"] == pytest.approx(0.75)
    assert made["selected_on"] == "test" and made["unseen"] is None
    assert accuracy["last10"]["mean"] == pytest.approx((0.3 + 0.7 + 0.5) / 3)  # not the start
    long = metrics.summarise(table([[k / 20, k / 20] for k in range(21)]))
    assert long["accuracy"]["last10"]["mean"] == pytest.approx(np.mean(np.arange(11, 21) / 20))


def test_rounds_that_were_not_evaluated_do_not_count() -> None:
    made = metrics.summarise(table([[0.1, 0.1], [nan, nan], [0.5, 0.7], [nan, nan]]))
    assert made["accuracy"]["last"]["round"] == 2
    assert made["protocol"]["value"] == pytest.approx(0.6)


def test_best_is_chosen_on_validation_where_there_is_any() -> None:
    made = metrics.summarise(
        table([[0, 0], [0.5, 0.5], [0.9, 0.9]], val=[[0, 0], [0.8, 0.8], [0.2, 0.2]])
    )
    assert made["selected_on"] == "validation"
    assert made["accuracy"]["best"]["round"] == 1
    assert made["accuracy"]["best"]["mean"] == pytest.approx(0.5)
    assert made["accuracy"]["best_on_test"]["mean"] == pytest.approx(0.9)
    assert made["protocol"]["value"] == pytest.approx(0.5)


def test_unseen_clients_are_reported_apart() -> None:
    made = metrics.summarise(table([[0.2, 0.8], [0.4, 0.6]], unseen=(False, True)))
    assert made["accuracy"]["last"]["mean"] == pytest.approx(0.4)
    assert made["unseen"]["last"]["mean"] == pytest.approx(0.6)
    assert (made["clients"], made["clients_unseen"]) == (2, 1)


def value(name: str, personal: bool = True, **columns: object) -> float | None:
    made = metrics.summarise(table(**columns), name, personal)  # type: ignore[arg-type]
    return made["protocol"]["value"]  # type: ignore[no-any-return]


def test_protocols_by_hand() -> None:
    before = [[0.0, 0.1], [0.2, 0.4], [0.6, 0.8]]
    after = [[nan, nan], [0.5, nan], [0.3, 0.7]]
    started = [[0, 0], [1, 0], [1, 1]]
    columns = {"before": before, "after": after, "started": started}
    assert value("default", **columns) == pytest.approx(0.7)
    assert value("spfl", **columns) == pytest.approx(0.7)
    # Round 2 tests both clients with what round 1 left: (10 * 0.2 + 30 * 0.4) / 40.
    assert value("feddwa", **columns) == pytest.approx(0.35)
    # Client 0 in round 1 (0.5), both in round 2 (0.6), averaged.
    assert value("pflego", **columns) == pytest.approx(0.55)
    # Client 1 never trained in round 1 and still holds its start (0.1): 0.2, then 0.6.
    assert value("fedas", **columns) == pytest.approx(0.6)
    # A model that was trained further and not tested is not the one it started from.
    columns["after"][2] = [nan, 0.5]
    assert value("fedas", **columns) == pytest.approx(0.5)


def test_fedas_counts_the_starting_point() -> None:
    columns = {"before": [[0.9, 0.9], [0.1, 0.1]], "after": [[nan, nan], [0.2, 0.2]]}
    assert value("fedas", **columns) == pytest.approx(0.9)


def test_plga_has_a_server_column_and_knows_who_has_no_personal_model() -> None:
    columns = {
        "before": [[0.2, 0.2], [0.4, 0.4]],
        "after": [[nan, nan], [0.8, 0.8]],
        "shared": [[0.1, 0.1], [0.3, 0.7]],
    }
    assert value("plga", True, **columns) == pytest.approx(0.4)
    assert value("plga", False, **columns) == pytest.approx(0.8)
    made = metrics.summarise(table(**columns), "plga")  # type: ignore[arg-type]
    assert made["protocol"]["server"] == pytest.approx(0.6)


def test_gain_and_harm() -> None:
    local, ours = table([[0.5, 0.5]]), table([[0.9, 0.4]])
    made = metrics.gain(ours, local)
    assert made is not None and made["mean"] == pytest.approx(0.15) and made["harmed"] == 0.5
    assert metrics.gain(ours, table([[0.5, 0.5]], size=(10, 31))) is None
    same = metrics.gain(local, table([[0.5 + 1e-9, 0.5]]))
    assert same is not None and same["harmed"] == 0


def test_unknown_protocol() -> None:
    with pytest.raises(UserError, match="did you mean 'feddwa'"):
        metrics.summarise(table([[0.1, 0.1]]), "fedwa")


def test_nothing_measured_is_none_not_nan() -> None:
    made = metrics.summarise(table([[nan, nan]]))
    assert made["accuracy"]["best"]["mean"] is None and made["protocol"]["value"] is None
