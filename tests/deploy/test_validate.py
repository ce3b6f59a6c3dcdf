"""What a client says of itself must make sense."""

from __future__ import annotations

import pytest

from idiolect.core.form import Form
from idiolect.deploy import validate


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": 3}, "not among 0..2"),
        ({"client": True}, "not among"),
        ({"client": [1]}, "not among"),
        ({"sizes": {"train": 0, "val": 0, "test": 1}}, "no samples"),
        ({"sizes": {"train": 1 << 31, "val": 0, "test": 1}}, "not sample counts"),
        ({"shape": [1 << 20, 1 << 20]}, "is not one"),
        ({"sizes": {"train": 1.5, "val": 0, "test": 1}}, "not sample counts"),
        ({"shape": [0]}, "is not one"),
        ({"shape": []}, "shape is missing"),
        ({"classes": 0}, "is not a count"),
        ({"name": "x" * 81}, "too long"),
        ({"name": "\x1b[2Jward"}, "not printable"),
        ({"fresh": 1}, "fresh"),
        ({"labels": None}, "labels"),
    ],
)
def test_hello_must_make_sense(change: dict[str, object], words: str) -> None:
    good = {
        "client": 1,
        "sizes": {"train": 5, "val": 0, "test": 2},
        "shape": [1, 8, 8],
        "classes": 3,
        "name": "ward",
        "labels": "",
        "fresh": True,
        "task": "classification",
        "metric": "accuracy",
        "better": "higher",
        "form": Form().as_plain(),
    }
    assert validate.wrong_hello(good, 3) is None
    reason = validate.wrong_hello(good | change, 3)
    assert reason is not None and words in reason
