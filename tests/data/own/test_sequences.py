"""Texts, lists, categories and inputs apart, from files of a user's own."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from idiolect.core.task import IGNORED
from idiolect.data import Federation
from idiolect.errors import UserError
from tests.data.own import files


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    said = ["ab", "abc!", "b", "a b a", "cab", "bc"] * 2
    rows = [f'{"xy"[k % 2]},"{text}",{("up", "down")[k % 3 > 0]}' for k, text in enumerate(said)]
    path = tmp_path / "lines.csv"
    path.write_text("\n".join(["who,text,mood", *rows]) + "\n")
    return path


def test_texts_become_padded_tokens(lines: Path) -> None:
    fed = Federation.from_files(lines, client="who", label="mood", input="text", tokens="chars")
    assert fed.x.dtype == torch.int64 and fed.shape == (5,) and fed.form.padded
    assert fed.form.codes == (7,)  # padding, unknown, space, !, a, b, c
    assert fed.x[0].tolist() == [4, 5, 0, 0, 0] and fed.x[1].tolist() == [4, 5, 6, 3, 0]
    few = Federation.from_files(
        lines, client="who", label="mood", input="text", tokens="words", vocabulary=2, length=2
    )
    assert few.shape == (2,) and int(few.x.max()) == 3 and bool((few.x == 1).any())


def test_the_next_token_is_the_target(lines: Path) -> None:
    fed = Federation.from_files(lines, client="who", task="next-token", input="text", length=3)
    assert fed.classes == 7 and fed.form.steps == 3
    first = (fed.x[1].tolist(), fed.y[1].tolist())  # abc! -> a b c
    assert first == ([4, 5, 6], [5, 6, 3])
    assert fed.y[0].tolist() == [5, IGNORED, IGNORED] and fed.x[0].tolist() == [4, 0, 0]
    texts = [len(t) for t in ["ab", "abc!", "b", "a b a", "cab", "bc"] * 2]
    assert len(fed.x) == sum(-(-(n - 1) // 3) for n in texts)  # a text of one letter has no next
    assert int((fed.y != IGNORED).sum()) == sum(n - 1 for n in texts)  # every step once


def test_lists_are_filled_up_and_labelled_step_by_step(tmp_path: Path) -> None:
    words = [[1, 2], [3, 1, 2], [2], [1, 1]] * 3
    tags = [["n", "v"], ["n", "n", "v"], ["v"], ["n", "n"]] * 3
    table = pa.table({"client": list("ab") * 6, "words": words, "tags": tags})
    pq.write_table(table, tmp_path / "t.parquet")
    how = {"task": "sequence", "label": "tags", "input": "words"}
    with pytest.raises(UserError, match=r"different lengths; set data\.length"):
        Federation.from_files(tmp_path / "t.parquet", **how)
    fed = Federation.from_files(tmp_path / "t.parquet", length=3, **how)
    assert fed.classes == 2 and fed.x[0].tolist() == [1, 2, 0]
    assert fed.y[0].tolist() == [0, 1, IGNORED] and fed.info["class_names"] == ["n", "v"]


def test_categories_keep_their_codes(tmp_path: Path) -> None:
    path = files.table(tmp_path / "trees.csv")
    fed = Federation.from_files(path, client="site", label="kind", standardize=True)
    assert fed.form.codes == (0, 0, 3)
    assert fed.mean is not None and fed.mean[2] == 0 and fed.std is not None and fed.std[2] == 1
    table = pa.table({"x": [10, 20, 10, 30] * 3, "y": [0, 1] * 6, "client": list("ab") * 6})
    pq.write_table(table, tmp_path / "n.parquet")
    named = Federation.from_files(tmp_path / "n.parquet", categories="x")
    assert named.form.codes == (3,) and named.x[:4, 0].tolist() == [0, 1, 0, 2]
    with pytest.raises(UserError, match=r"data\.categories names 'z'"):
        Federation.from_files(tmp_path / "n.parquet", categories="z")


def test_inputs_apart(lines: Path, tmp_path: Path) -> None:
    fed = Federation.from_files(
        lines, label="mood", client="who", tokens="chars", form="dict", input=["text"]
    )
    assert [(one.name, one.shape, one.whole) for one in fed.form.fields] == [("text", (5,), True)]
    arrays = {"a": np.zeros((6, 2, 3), np.float32), "b": np.arange(6), "y": np.arange(6) % 2}
    np.savez(tmp_path / "n.npz", client=list("ab") * 3, **arrays)
    apart = Federation.from_files(tmp_path / "n.npz", input=["a", "b"], form="tuple")
    assert apart.shape == (7,) and [one.shape for one in apart.form.fields] == [(2, 3), ()]
    assert apart.form.codes == (0, 6) and not apart.form.by_name
    with pytest.raises(UserError, match=r"data\.form=dict or tuple"):
        Federation.from_files(tmp_path / "n.npz", input=["a", "b"])
    with pytest.raises(UserError, match="are for tables"):
        Federation.from_files(tmp_path / "n.npz", input="a", tokens="chars")
    with pytest.raises(UserError, match="one input"):
        Federation.from_files(files.images(tmp_path / "photos"), form="dict")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "next-token", "input": ["text", "mood"]}, "reads one column"),
        ({"tokens": "chars", "label": "mood"}, "needs a network of your own"),
        ({"task": "sequence", "label": "mood", "input": "text"}, "must hold lists"),
        ({"tokens": "letters", "label": "mood"}, "data.tokens"),
        ({"task": "next-token", "input": "text", "metric": "rmse"}, "use perplexity"),
    ],
)
def test_mistakes(lines: Path, options: dict[str, object], words: str) -> None:
    lines.write_text(lines.read_text().replace("who,", "client,"))
    extra = lines.read_text().replace("mood\n", "mood,age\n").replace("up\n", "up,1\n")
    lines.write_text(extra.replace("down\n", "down,2\n"))
    with pytest.raises(UserError, match=words):
        Federation.from_files(lines, **options)
