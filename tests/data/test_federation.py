"""Federation: own data, its checks, and what a model sees of it."""

import numpy as np
import pytest
import torch

from idiolect.data import Federation
from idiolect.errors import UserError


def client(n=6, m=3, shape=(4,), classes=3, dtype=np.float32, seed=0):
    draw = np.random.default_rng(seed)
    return {
        "x_train": draw.normal(size=(n, *shape)).astype(dtype),
        "y_train": np.arange(n) % classes,
        "x_test": draw.normal(size=(m, *shape)).astype(dtype),
        "y_test": np.arange(m) % classes,
    }


def test_from_arrays_keeps_every_sample_with_its_client():
    clients = [client(seed=1), client(n=2, m=1, seed=2)]
    fed = Federation.from_arrays(clients, names=["north", "south"])
    assert (fed.n_clients, fed.classes, fed.shape) == (2, 3, (4,))
    assert fed.sizes("train").tolist() == [6, 2]
    assert fed.sizes("val").tolist() == [0, 0]
    for i, given in enumerate(clients):
        for part, rows in (("train", fed.train[i]), ("test", fed.test[i])):
            assert np.array_equal(fed.x[rows].numpy(), given[f"x_{part}"])
            assert np.array_equal(fed.y[rows].numpy(), given[f"y_{part}"])
    assert fed.names == ("north", "south")


def test_tensors_validation_part_and_unseen():
    given = client()
    given = {k: torch.as_tensor(v) for k, v in given.items()}
    given |= {"x_val": given["x_test"], "y_val": given["y_test"]}
    fed = Federation.from_arrays([given, client(), client()], classes=5, unseen=[2])
    assert fed.sizes("val").tolist() == [3, 0, 0]
    assert (fed.classes, fed.unseen, fed.seen) == (5, (2,), (0, 1))


def test_inputs_scale_bytes_and_normalise():
    x = np.full((2, 3, 2, 2), 51, np.uint8)
    given = {"x_train": x, "y_train": [0, 1], "x_test": x, "y_test": [0, 1]}
    fed = Federation.from_arrays([given], mean=0.1, std=(0.5, 1.0, 2.0))
    out = fed.inputs(fed.train[0])
    assert fed.mean == (0.1, 0.1, 0.1)
    torch.testing.assert_close(out[0, :, 0, 0], torch.tensor([0.2, 0.1, 0.05]))
    assert fed.inputs(fed.test[0], torch.float64).dtype == torch.float64


def test_numpy_scalars_are_numbers():
    fed = Federation.from_arrays(
        [client(), client()], classes=np.int64(4), mean=np.float32(0.5), unseen=np.array([1])
    )
    assert (fed.classes, fed.mean, fed.unseen) == (4, (0.5,) * 4, (1,))
    assert type(fed.classes) is int and type(fed.mean[0]) is float
    one = torch.tensor([0])
    rows = Federation(torch.zeros(1, 2), one, (one,), (), (one,), classes=1, mean=0.5, std=2)
    assert (rows.mean, rows.std) == ((0.5, 0.5), (2.0, 2.0))


def test_double_precision_is_kept():
    fed = Federation.from_arrays([client(dtype=np.float64)])
    assert fed.x.dtype == torch.float64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x_train": np.full((6, 4), np.nan, np.float32)}, "client 1.*NaN.*x_train"),
        ({"x_test": np.full((3, 4), np.inf, np.float32)}, "client 1.*NaN.*x_test"),
        ({"y_train": np.full(6, -1)}, "client 1.*label -1"),
        ({"y_test": np.full(3, 9)}, "client 1.*label 9.*outside 0..2"),
        ({"y_test": np.full(3, 0.5)}, "client 1.*whole numbers"),
        ({"y_test": np.zeros(2, int)}, "client 1.*3 samples.*2 labels"),
        ({"x_test": np.zeros((3, 5), np.float32)}, r"client 1.*\[5\].*\[4\]"),
        ({"x_test": np.zeros((3, 4), np.uint8)}, "client 1.*uint8"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)}, "client 1.*training"),
        ({"x_test": np.zeros((0, 4)), "y_test": np.zeros(0, int)}, "client 1.*testing"),
        ({"x_tset": np.zeros(1)}, "client 1.*x_tset"),
        ({"x_val": np.zeros((1, 4), np.float32)}, "client 1.*both"),
    ],
)
def test_bad_clients_are_named(change, words):
    with pytest.raises(UserError, match=words) as caught:
        Federation.from_arrays([client(), {**client(), **change}], classes=3)
    assert "\n" not in str(caught.value)


def test_missing_array_is_named():
    given = client()
    del given["y_test"]
    with pytest.raises(UserError, match="client 0: 'y_test' is missing"):
        Federation.from_arrays([given])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"names": ["a"]}, "2 different names"),
        ({"names": ["a", "a"]}, "2 different names"),
        ({"unseen": [5]}, "below 2"),
        ({"unseen": [0, 1]}, "none is left"),
        ({"std": 0.0}, "positive"),
        ({"mean": (0.1, 0.2)}, "2 values"),
        ({"mean": float("nan")}, "finite"),
        ({"mean": "half"}, "mean must be a number or one per channel"),
        ({"classes": 0}, "at least 1"),
        ({"classes": 2.5}, "classes must be a whole number, got 2.5"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(UserError, match=words):
        Federation.from_arrays([client(), client()], **options)


def test_no_clients():
    with pytest.raises(UserError, match="no samples"):
        Federation.from_arrays([])


def test_one_sample_for_testing_none_says_the_fix():
    with pytest.raises(UserError, match=r"client 0 has 1 sample: none left for testing; raise"):
        Federation(
            x=torch.zeros(2, 3),
            y=torch.zeros(2, dtype=torch.int64),
            train=(torch.tensor([0]),),
            val=(),
            test=(torch.empty(0, dtype=torch.int64),),
            classes=2,
        )


def test_rows_outside_the_table():
    one = torch.tensor([0])
    with pytest.raises(UserError, match="client 0: test has row numbers outside"):
        Federation(torch.zeros(2, 3), one.repeat(2), (one,), (), (one + 7,), classes=2)


def test_one_class_one_sample_client_is_legal():
    fed = Federation.from_arrays([client(n=1, m=1)])
    assert fed.sizes("train").tolist() == [1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y_train": np.arange(6) / 2}, "client 1: y_train must be whole numbers"),
        ({"y_train": np.arange(6) * 1j}, "client 1: y_train must be whole numbers"),
        ({"y_train": np.ma.masked_equal(np.arange(6), 5)}, "client 1: y_train has masked values"),
        ({"y_train": list("abcabc")}, "client 1: y_train must be numbers, got words"),
        ({"y_train": np.array([None] * 6)}, "client 1: y_train must be numbers, got objects"),
        ({"y_train": np.datetime64("2026-01-01") + np.arange(6)}, "y_train must be numbers, got d"),
        (
            {"y_train": np.full(6, 2**64 - 1, np.uint64)},
            "client 1: y_train has 18446744073709551615",
        ),
        ({"x_train": np.ones((6, 4)) * 1e300}, "client 1: a value in x_train is too large"),
        ({"x_train": np.ones((6, 4)) * 1j}, "client 1: x_train must be .* got complex"),
        ({"x_train": np.ma.masked_less(np.ones((6, 4)), 2)}, "client 1: x_train has masked"),
        ({"x_train": np.ones(6)}, r"client 1: x_train must be \[M, D\].*got of shape \[6\]"),
        ({"x_train": 3.0}, r"client 1: x_train must be \[M, D\]"),
        ({"x_train": [[1, 2], [3]]}, "client 1: x_train is no array"),
        ({"x_train": torch.ones(6, 4).to_sparse()}, "client 1: x_train must be a dense tensor"),
        ({"x_train": np.ones((6, 4), np.longdouble)}, "client 1: x_train must be numbers"),
    ],
)
def test_what_was_accepted_in_silence_is_refused(change, words):
    with pytest.raises(UserError, match=words) as caught:
        usual = client(dtype=np.float64)
        Federation.from_arrays([usual, {**usual, **change}], classes=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"names": "ab"}, "names must be a list"),
        ({"unseen": 1}, "unseen must be a list, got 1"),
        ({"unseen": [0.5]}, "unseen must be a whole number, got 0.5"),
        ({"unseen": [None]}, "unseen must be a whole number"),
        ({"mean": [[0.1] * 4]}, "mean must be a number or one per channel"),
        ({"mean": object()}, "mean must be a number or one per channel"),
        ({"std": 1e-300}, "std must be positive"),
        ({"std": 1e-40}, "too large for float32"),
        ({"classes": 10**12}, "at most 1000000"),
    ],
)
def test_odd_options(options, words):
    with pytest.raises(UserError, match=words):
        Federation.from_arrays([client(), client()], **options)


@pytest.mark.parametrize("clients", [None, 3, "ab", [None], [[1, 2]], {"x_train": 1}])
def test_clients_that_are_none(clients):
    with pytest.raises(UserError, match=r"clients must be a list|client 0 must map"):
        Federation.from_arrays(clients)


def test_a_label_that_makes_a_million_classes():
    with pytest.raises(UserError, match="number them from 0"):
        Federation.from_arrays([{**client(), "y_train": np.full(6, 10**15)}])


def test_samples_without_values_and_things_that_are_no_tensors():
    with pytest.raises(UserError, match="x must be"):
        Federation.from_arrays([client(shape=(0,))])
    one = torch.tensor([0])
    for x, y, rows in (([[0.0]], one, [one]), (one[None] * 1.0, [0], [one]), (one, one, 3)):
        with pytest.raises(UserError, match="must be"):
            Federation(x, y, rows, (), rows, classes=1)


def test_other_byte_orders_are_read():
    other = {k: v.astype(v.dtype.newbyteorder(">")) for k, v in client().items()}
    assert torch.equal(Federation.from_arrays([other]).x, Federation.from_arrays([client()]).x)
