"""Values that a reader would change in silence: empty words, huge numbers, bytes, line breaks."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idiolect.data import Federation
from idiolect.errors import UserError

IID = {"name": "iid", "clients": 2}


def csv(folder: Path, head: str, *lines: str) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join((head, *lines)) + "\n")
    return path


def npz(folder: Path, **arrays: Any) -> Path:
    given = {"x": np.ones((20, 2)), "y": np.arange(20) % 2, **arrays}
    np.savez(folder / "t.npz", **given)
    return folder / "t.npz"


@pytest.mark.parametrize("column", ["label", "soil"])
def test_an_empty_word_is_a_missing_value_and_no_category(tmp_path: Path, column: str) -> None:
    lines = [f"{i},clay,{'ab'[i % 2]}" for i in range(20)]
    lines[7] = "7,clay," if column == "label" else "7,,a"
    with pytest.raises(UserError, match=rf"empty cells, by column: {column} \(1\); fill them"):
        Federation.from_files(csv(tmp_path, "size,soil,label", *lines), split=IID)


@pytest.mark.parametrize("labels", [[2**63, 2**63 + 2048], [2.0**53, 2.0**53 + 1], [1e20, 1e21]])
def test_labels_that_run_together_are_no_classes(tmp_path: Path, labels: list[float]) -> None:
    """Arrow reads whole numbers beyond int64 as fractions."""
    lines = [f"{i},{labels[i % 2]!r}" for i in range(20)]
    with pytest.raises(UserError, match=r"the label has fractions of 2\^53 or more"):
        Federation.from_files(csv(tmp_path, "size,label", *lines), split=IID)


def test_clients_that_run_together_are_refused(tmp_path: Path) -> None:
    path = npz(tmp_path, client=np.array([2.0**53, 2.0**53 + 2] * 10))
    with pytest.raises(UserError, match=r"the client has fractions of 2\^53"):
        Federation.from_files(path)


def test_whole_numbers_beyond_int64_do_not_become_negative(tmp_path: Path) -> None:
    huge = np.full(20, 2**64 - 1, np.uint64)
    where = "numbers must be below 2\\^63"
    with pytest.raises(UserError, match=f"x has 18446744073709551615, and {where}"):
        Federation.from_files(npz(tmp_path, x=huge[:, None]), split=IID)
    pq.write_table(pa.table({"a": huge, "label": np.arange(20) % 2}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match=f"column a has .* {where}"):
        Federation.from_files(tmp_path / "t.parquet", split=IID)
    one = {"x_train": huge[:, None], "y_train": np.arange(20) % 2}
    client = one | {key.replace("train", "test"): value for key, value in one.items()}
    with pytest.raises(UserError, match=f"client 0: x_train has .* {where}"):
        Federation.from_arrays([client])


def test_bytes_are_the_words_that_they_spell(tmp_path: Path) -> None:
    birds = np.array(["heron", "möwe"] * 10)
    bytewise = np.char.encode(birds, "utf-8")
    fed = Federation.from_files(npz(tmp_path, y=bytewise, client=bytewise))
    assert fed.info["class_names"] == ["heron", "möwe"] and fed.names == ("heron", "möwe")
    with pytest.raises(UserError, match="the label has bytes that are no UTF-8 text"):
        Federation.from_files(npz(tmp_path, y=np.char.encode(birds, "latin-1")), split=IID)


def test_a_text_may_have_line_breaks_wherever_arrow_cuts_the_file(tmp_path: Path) -> None:
    """Arrow reads a megabyte at a time, and took the rest of a cell for a row."""
    text = "\n".join(f"line {k}, and" for k in range(9))
    lines = [f'"{text}",{i % 2}' for i in range(20_000)]
    path = csv(tmp_path, "text,label", *lines)
    assert path.stat().st_size > 2 << 20
    fed = Federation.from_files(path, split=IID, tokens="words", length=4)
    assert len(fed.x) == 20_000 and fed.info["class_names"] == ["0", "1"]


def test_two_columns_of_one_name_are_said(tmp_path: Path) -> None:
    path = csv(tmp_path, "size,size,label", *(f"{i},{i},{i % 2}" for i in range(20)))
    with pytest.raises(UserError, match="has two columns of one name; rename one"):
        Federation.from_files(path, split=IID)


def test_endings_in_capitals_are_tables_of_a_folder_too(tmp_path: Path) -> None:
    for part, rows in (("train", 12), ("test", 8)):
        text = "".join(f"{i},{i % 2}\n" for i in range(rows))
        (tmp_path / f"{part}.{'CSV' if part == 'test' else 'csv'}").write_text(
            "size,label\n" + text
        )
    fed = Federation.from_files(tmp_path, split=IID)
    assert int(fed.sizes("train").sum()) == 12 and int(fed.sizes("test").sum()) == 8


@pytest.mark.parametrize("odd", ["?", "1,5", "3 %", "1,200", "unknown"])
def test_a_quantity_with_a_word_in_it_is_no_category(tmp_path: Path, odd: str) -> None:
    """One word made categories of a column of numbers."""
    lines = [f'"{odd if i % 4 == 0 else i / 2}",{i % 2}' for i in range(40)]
    path = csv(tmp_path, "size,label", *lines)
    with pytest.raises(UserError, match=r"column size looks like numbers, but '.*' is none; write"):
        Federation.from_files(path, split=IID)
    fed = Federation.from_files(path, split=IID, categories="size")
    assert fed.form.codes == (31,)


def test_decimal_commas_are_no_categories(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("size\tlabel\n" + "".join(f"{i},5\t{i % 2}\n" for i in range(20)))
    with pytest.raises(UserError, match="looks like numbers, but '0,5' is none"):
        Federation.from_files(path, split=IID)


@pytest.mark.parametrize(
    "words", [["10115", "20095"], ["12", "12a", "12b", "14b"], ["1.2.3", "1.2.4"], ["x", "y", "7"]]
)
def test_words_that_are_categories_stay_what_they_are(tmp_path: Path, words: list[str]) -> None:
    table = {"code": [words[i % len(words)] for i in range(24)], "label": np.arange(24) % 2}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    fed = Federation.from_files(tmp_path / "t.parquet", split=IID)
    assert fed.form.codes == (len(words),)
