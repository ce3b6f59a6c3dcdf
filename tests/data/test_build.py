"""From config sections to a federation, and its description."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from idiolect.data import build, describe, list_datasets, list_splits
from idiolect.errors import UserError


def test_digits_are_read_from_the_decoded_copy(tmp_path, monkeypatch):
    """scikit-learn takes a second to import: only where there is no copy yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = """
import sys
from idiolect.data import build
fed = build({"name": "digits"}, {"name": "iid", "clients": 2}, seed=0)
print(int(fed.x.sum()), "sklearn" in sys.modules)
"""
    told = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (one.stdout.split() for one in told)
    assert first[0] == second[0] and (first[1], second[1]) == ("True", "False")


def test_build_on_the_embedded_digits():
    fed = build({"name": "digits"}, {"name": "iid", "clients": 4, "val_share": 0.1}, seed=3)
    assert fed.shape == (1, 8, 8) and fed.classes == 10
    assert int(fed.x.max()) == 255
    assert sum(int(fed.sizes(p).sum()) for p in ("train", "val", "test")) == 1797
    assert fed.info["split"]["clients"] == 4 and fed.info["seed"] == 3
    again = build({"name": "digits"}, {"name": "iid", "clients": 4, "val_share": 0.1}, seed=3)
    other = build({"name": "digits"}, {"name": "iid", "clients": 4, "val_share": 0.1}, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(fed.val, again.val, strict=True))
    assert not torch.equal(fed.train[0], other.train[0])


def test_numpy_scalars_are_numbers():
    split = {"name": "dirichlet", "clients": np.int64(3), "alpha": np.float32(0.5)}
    fed = build({"name": "digits"}, split, seed=np.int64(2))
    assert json.loads(json.dumps(describe(fed)))["info"]["seed"] == 2


def test_describe_is_json_and_counts_every_sample():
    fed = build({"name": "digits"}, {"name": "shards", "clients": 5, "unseen": 2}, seed=0)
    told = json.loads(json.dumps(describe(fed)))
    assert told["n_clients"] == 5 and len(told["unseen"]) == 2
    for i, row in enumerate(told["clients"]):
        assert row["train"] == sum(row["histogram"]["train"].values()) == len(fed.train[i])
        assert row["classes"] == len(row["histogram"]["train"])
        assert row["unseen"] == (i in fed.unseen)


def test_lists_are_json():
    names = [d["name"] for d in json.loads(json.dumps(list_datasets()))]
    assert names[0] == "digits" and "tiny_imagenet" in names
    listed = {s["name"]: s for s in json.loads(json.dumps(list_splits()))}
    alpha = next(f for f in listed["dirichlet"]["options"] if f["name"] == "alpha")
    assert alpha["default"] == 0.1 and alpha["type"] == "float" and alpha["doc"]
    assert all(f["doc"] for s in listed.values() for f in s["options"])


@pytest.mark.parametrize(
    ("data", "split", "seed", "words"),
    [
        ({"name": "digitss"}, {"name": "iid"}, 0, "did you mean 'digits'"),
        ({"name": "digits", "normalise": "x"}, {"name": "iid"}, 0, "did you mean 'normalize'"),
        ({"name": "digits", "normalize": "fedass"}, {"name": "iid"}, 0, "did you mean 'fedas'"),
        ({"name": "digits", "normalize": "spfl"}, {"name": "iid"}, 0, "not published for digits"),
        ({"name": "digits", "rows": [10, 2]}, {"name": "iid"}, 0, "expected 10 and 2"),
        ({"name": "digits", "rows": 10}, {"name": "iid"}, 0, "data.rows must be"),
        ({"name": "digits"}, {"name": "dirichelet"}, 0, "did you mean 'dirichlet'"),
        ({"name": "digits"}, {"name": "dirichlet", "alfa": 1}, 0, "did you mean 'alpha'"),
        ({"name": "digits"}, {"name": "dirichlet", "alpha": "a"}, 0, "must be a number"),
        ({"name": "digits"}, {"name": "iid", "clients": 2.5}, 0, "must be a whole number"),
        ({"name": "digits"}, {"name": "iid", "clients": None}, 0, "needs split.clients"),
        ({"name": "digits"}, {"name": "iid", "clients": 2000}, 0, "1797 samples; lower"),
        ({"name": "digits"}, {"name": "iid"}, -1, "seed"),
        ({"name": "digits"}, {"name": "natural"}, 0, "femnist, omniglot, or your own"),
        ({}, {"name": "iid"}, 0, "data needs a name"),
        ({"name": "digits"}, {}, 0, "split needs a name"),
    ],
)
def test_mistakes_in_sections_are_one_line(data, split, seed, words):
    with pytest.raises(UserError, match=words) as caught:
        build(data, split, seed)
    assert "\n" not in str(caught.value)


def test_normalize_choices():
    half = build({"name": "digits", "normalize": "fedas"}, {"name": "iid"}, 0)
    none = build({"name": "digits", "normalize": "pflego"}, {"name": "iid"}, 0)
    assert half.mean == half.std == (0.5,)
    assert none.mean is None and none.std is None
