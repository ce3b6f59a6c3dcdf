"""Files like the run's own, after the run: words keep the numbers that they had in training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idiolect.data import Federation
from idiolect.data.given_samples import to_predict, with_newcomer
from idiolect.errors import UserError

HEAD = "site,colour,size,text,kind"
ROWS = [
    f"s{k % 2},{('red', 'blue', 'green')[k % 3]},{k / 8},{('a b c', 'c d', 'b')[k % 3]},"
    f"{('yes', 'no')[k % 2]}"
    for k in range(24)
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("\n".join([HEAD, *ROWS]))


def run_data(**options: Any) -> Federation:
    how = {"client": "site", "label": "kind", "input": ["colour", "size"], **options}
    return Federation.from_files("t.csv", **how)


def test_a_part_of_the_table_is_what_it_was_in_training() -> None:
    """Only green rows: alone, green would be the first and only colour, and yes the only kind."""
    for options in (
        {},
        {"standardize": True},
        {"input": "text", "tokens": "words"},
        {"form": "dict"},
    ):
        fed = run_data(**options)
        chosen = [k for k in range(24) if k % 3 == 2 and k % 2 == 0]
        Path("green.csv").write_text("\n".join([HEAD, *(ROWS[k] for k in chosen)]))
        given, labelled = to_predict(fed, Path("green.csv"))
        assert labelled and torch.equal(given.x, fed.x[chosen]) and given.form == fed.form
        assert torch.equal(given.y, fed.y[chosen])
        inputs = given.inputs(given.test[0], torch.float32)
        torch.testing.assert_close(inputs, fed.inputs(torch.tensor(chosen), torch.float32))


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_labels_that_do_not_count_from_0_are_numbered_once(ending: str) -> None:
    """Of a table they were taken for names again: 3 and 2 became 1 and 0, or were refused."""
    Path("n.csv").write_text(
        "site,size,label\n" + "".join(f"s,{k}.5,{k % 3 + 1}\n" for k in range(24))
    )
    fed = Federation.from_files("n.csv", client="site")
    assert fed.info["class_names"] == ["1", "2", "3"]
    Path("new.csv").write_text("size,label\n1.5,3\n2.5,2\n")
    np.savez("new.npz", x=np.array([[1.5], [2.5]], np.float32), y=[3, 2])
    given, labelled = to_predict(fed, Path(f"new.{ending}"))
    assert labelled and given.y.tolist() == [2, 1]


def test_labels_and_clients_may_be_missing_and_columns_may_move() -> None:
    Path("new.csv").write_text("size,colour\n1.5,green\n2,red\n")
    given, labelled = to_predict(run_data(), Path("new.csv"))
    assert not labelled and given.x.tolist() == [[1.0, 1.5], [2.0, 2.0]]
    Path("whole.csv").write_text("size,colour\n1,green\n2,red\n")  # as whole numbers
    assert to_predict(run_data(), Path("whole.csv"))[0].x.dtype == torch.float32


def test_words_that_look_like_numbers_stay_words() -> None:
    rows = [f"s{k % 2},{('7', '8', 'none')[k % 3]},{k / 8},{k % 2}" for k in range(24)]
    Path("t.csv").write_text("\n".join(["site,colour,size,kind", *rows]))
    Path("new.csv").write_text("colour,size\n8,1.5\n")  # Arrow reads a column of numbers
    assert to_predict(run_data(), Path("new.csv"))[0].x.tolist() == [[1.0, 1.5]]


def test_the_next_token_of_later_texts() -> None:
    fed = Federation.from_files("t.csv", client="site", input="text", task="next-token", length=4)
    Path("new.csv").write_text("text\nc d z\n")
    given, labelled = to_predict(fed, Path("new.csv"))
    assert labelled and given.shape == fed.shape and given.classes == fed.classes
    unknown = [1] * int((given.y == 1).sum())
    assert unknown == [1]  # z was never seen


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("colour,size\npurple,1.5\n", "column colour has 'purple', which the run's data"),
        ("colour,size,kind\nred,1.5,perhaps\n", "the label has 'perhaps', which the run's data"),
        ("colour\nred\n", "has no column 'size'"),
        ("colour,size\nred,warm\n", "words in a column where the run's data has numbers"),
    ],
)
def test_what_was_never_seen_is_one_line(text: str, told: str) -> None:
    Path("new.csv").write_text(text)
    with pytest.raises(UserError, match=told) as error:
        to_predict(run_data(), Path("new.csv"))
    assert "new.csv" in str(error.value)


def test_a_newcomer_from_a_table() -> None:
    fed = run_data()
    rows = [row.replace("s0", "s9").replace("s1", "s9") for row in ROWS[:8]]
    Path("new.csv").write_text("\n".join([HEAD, *rows]))
    joined = with_newcomer(fed, Path("new.csv"), "s9")
    assert (len(joined.train[2]), len(joined.test[2])) == (6, 2)
    both = torch.cat([joined.train[2], joined.test[2]])
    order = lambda x: sorted(x.tolist())  # noqa: E731
    assert order(joined.x[both]) == order(fed.x[:8])
    parts = [f"{row},{'test' if k > 4 else 'train'}" for k, row in enumerate(rows)]
    Path("parts.csv").write_text("\n".join([f"{HEAD},part", *parts]))
    joined = with_newcomer(fed, Path("parts.csv"), "s9")
    assert (len(joined.train[2]), len(joined.test[2])) == (5, 3)
    Path("none.csv").write_text("colour,size\nred,1.5\n")
    with pytest.raises(UserError, match="has no labels, which training needs"):
        with_newcomer(fed, Path("none.csv"), "s9")


def test_images_in_folders() -> None:
    draw = np.random.default_rng(0)
    for place in ("run/s0/cat", "run/s0/dog", "run/s1/cat", "run/s1/dog", "new/dog"):
        Path(place).mkdir(parents=True)
        for k in range(4):
            pixels = draw.integers(0, 255, (6, 6), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(place) / f"{k}.png")
    fed = Federation.from_files("run")
    given, labelled = to_predict(fed, Path("new"))
    assert labelled and set(given.y.tolist()) == {1} and given.x.shape == (4, 1, 6, 6)


def test_other_runs_take_npz() -> None:
    x, y = np.zeros((4, 2), np.float32), np.arange(4) % 2
    clients = [{"x_train": x, "y_train": y, "x_test": x, "y_test": y}]
    with pytest.raises(UserError, match=r"give \.npz"):
        to_predict(Federation.from_arrays(clients), Path("t.csv"))
