"""Data of a user's own, spoiled: tables, arrays, images in folders, and what is said about them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image

from tests.fuzz import federations
from tests.fuzz.cases import Case
from tests.fuzz.mutations import TEXT, Draw, spoiled_bytes, spoiled_table

CSV_ROWS = 18
TABLE = ("--set", "data.client=site", "--set", "data.label=kind")
TEXTS = ("--set", "data.client=speaker", "--set", "data.input=text")
NEXT = ("--task", "next-token", "--set", "data.client=speaker", "--set", "data.input=text")
PRICE = ("--task", "regression", "--set", "data.client=site", "--set", "data.label=warmth")
LISTS = ("--set", "data.input=words")
# Every sound way to read a file: the file, its options, and a network for a run.
WAYS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("trees.csv", TABLE, "linear"),
    ("trees.csv", (*TABLE, "--set", "data.standardize=true"), "tabular"),
    ("trees.csv", PRICE, "linear"),
    ("trees.tsv", TABLE, "linear"),
    ("trees.parquet", TABLE, "tabular"),
    ("lines.csv", (*TEXTS, "--set", "data.label=mood", "--set", "data.tokens=words"), "gru"),
    ("lines.csv", (*NEXT, "--set", "data.length=6"), "gru"),
    ("tagged.parquet", (*LISTS, "--set", "data.label=tags", "--task", "sequence"), "gru"),
    ("tagged.parquet", (*LISTS, "--set", "data.label=right"), "linear"),
    ("arrays.npz", (), "linear"),
    ("labels.npz", ("--task", "multilabel"), "linear"),
    ("tokens.npz", ("--task", "next-token"), "gru"),
    ("photos/", (), "linear"),
    ("hub/", ("--split", "iid", "--clients", "2"), "linear"),
)
CELLS = st.one_of(
    st.sampled_from(["", "nan", "NaN", "inf", "-inf", "1e400", "-1", "0.5", "null", '"', '""']),
    st.sampled_from(["\x00", ",", "\t", "2024-01-01", "true", "0x10", "1_000", "é", "a" * 300]),
    TEXT.map(lambda text: text.replace("\r", "")),
)
OPTION_KEYS = (
    *("data.client", "data.label", "data.input", "data.part", "data.categories", "data.tokens"),
    *("data.vocabulary", "data.length", "data.form", "data.standardize", "data.task"),
    *("data.metric", "data.nothing", "split.test_share", "split.min_size", "split.unseen"),
)
OPTION_VALUES = st.one_of(
    st.sampled_from(["site", "kind", "text", "warmth", "[site, warmth]", "[]", "[kind, kind]"]),
    st.sampled_from(["x", "y", "words", "tags", "chars", "dict", "tuple", "true", "null", "0"]),
    st.sampled_from(["regression", "multilabel", "next-token", "sequence", "auc", "rmse", "-1"]),
    st.sampled_from(["1", "3", "0.5", "1000000000000", "[1, 2]", "{a: 1}", "2024-01-01", ".nan"]),
)


def write(folder: Path) -> None:
    """The sound files."""
    (folder / "hub").mkdir(parents=True)
    draw = np.random.default_rng(0)
    rows = [
        (f"s{i % 3}", ("alder", "birch")[i % 2], f"{20 + i % 7 + 0.5}", str(i % 5), "clay")
        for i in range(CSV_ROWS)
    ]
    head = ("site", "kind", "warmth", "wet", "soil")
    for suffix, between in (("csv", ","), ("tsv", "\t")):
        text = "\n".join(between.join(row) for row in (head, *rows)) + "\n"
        (folder / f"trees.{suffix}").write_text(text)
    columns = {name: [row[k] for row in rows] for k, name in enumerate(head)}
    pq.write_table(pa.table(columns | {"warmth": draw.normal(size=18)}), folder / "trees.parquet")
    said = ("the sea is calm", "we sail", "count to nine, then stop")
    lines = [f's{i % 3},"{said[i % 3]} {i}",{("up", "down")[i % 2]}' for i in range(CSV_ROWS)]
    (folder / "lines.csv").write_text("\n".join(["speaker,text,mood", *lines]) + "\n")
    words = [draw.integers(0, 5, 4).tolist() for _ in range(12)]
    tagged = {"client": list("abc") * 4, "words": words, "tags": words, "right": [0, 1] * 6}
    pq.write_table(pa.table(tagged), folder / "tagged.parquet")
    client = np.array(list("abc") * 4)
    for name, arrays in array_files().items():
        given = {k: federations.array(v) for k, v in arrays.items()}
        np.savez(folder / name, client=client, **given)
    for site in ("north", "south"):
        for kind, level in (("dark", 40), ("light", 200)):
            place = folder / "photos" / site / kind
            place.mkdir(parents=True)
            for i in range(3):
                Image.fromarray(np.full((6, 5), level + i, np.uint8)).save(place / f"{i}.png")
    for part in ("train", "test"):
        table = pa.table({"x": draw.normal(size=8), "label": [0, 1] * 4})
        pq.write_table(table, folder / "hub" / f"{part}.parquet")


def array_files() -> dict[str, dict[str, Any]]:
    """The arrays of the .npz files, as `federations.array` makes them."""
    whole = {"shape": [12], "dtype": "int64"}
    return {
        "arrays.npz": {"x": {"shape": [12, 4], "dtype": "float32"}, "y": whole},
        "labels.npz": {
            "x": {"shape": [12, 4], "dtype": "float32"},
            "y": {"shape": [12, 2], "dtype": "uint8", "below": 2},
        },
        "tokens.npz": {"x": {"shape": [12, 5], "dtype": "int64"}},
    }


@st.composite
def own_files(draw: Draw) -> Case:
    """One file of a sound way to read data, spoiled; or one option of it; or none."""
    name, options, network = draw(st.sampled_from(WAYS))
    words = _command(draw, name, options, network)
    how = draw(st.sampled_from(["file"] * 6 + ["option"] * 3 + ["sound"]))
    if how == "sound":
        return Case("own", words, bad=False)
    if how == "option":
        key, value = draw(st.sampled_from(OPTION_KEYS)), draw(st.one_of(OPTION_VALUES, TEXT))
        words += ("--set", f"{key}={value}".replace("\x00", "").encode("utf-8", "replace").decode())
        return Case("own", words, bad=True if key == "data.nothing" else None)
    content, bad = draw(_spoiled(name))
    return Case("own", words, content, bad=bad)


def _command(draw: Draw, name: str, options: tuple[str, ...], network: str) -> tuple[str, ...]:
    """Mostly a look at the data, at times a short run, which must not touch what is there."""
    if draw(st.integers(0, 4)):
        return ("data", "inspect", f"own/{name}", *options)
    short = ("--rounds", "1", "--model", network, "--out", "kept" if draw(st.booleans()) else "r")
    return ("run", "fedavg", "--data", f"own/{name}", *options, *short)


@st.composite
def _spoiled(draw: Draw, name: str) -> tuple[dict[str, Any], bool | None]:
    from tests.fuzz.places import sound

    base = sound() / "own"
    if name.endswith("/"):
        inside = sorted(str(f.relative_to(base)) for f in (base / name).rglob("*") if f.is_file())
        name = draw(st.sampled_from(inside))
        if draw(st.integers(0, 3)) == 0:
            return {
                f"own/{name}": draw(st.sampled_from([None, "pipe:", "folder:", "link:."]))
            }, None
    content = (base / name).read_bytes()
    if draw(st.integers(0, 3)) == 0:
        return {f"own/{name}": draw(spoiled_bytes(content))}, None
    if name.endswith((".csv", ".tsv")):
        return {f"own/{name}": draw(spoiled_text(content.decode(), name))}, None
    if name.endswith(".parquet"):
        return {f"own/{name}": draw(spoiled_table(content))}, None
    if name.endswith(".npz"):
        made, bad = draw(spoiled_arrays(name))
        return {f"own/{name}": made}, bad
    return {f"own/{name}": draw(spoiled_image())}, None


@st.composite
def spoiled_text(draw: Draw, text: str, name: str) -> bytes:
    """Cells, rows and headings of a table that are not what they should be."""
    between = "\t" if name.endswith(".tsv") else ","
    lines = [line.split(between) for line in text.splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.integers(0, len(lines) - 1))
        column = draw(st.integers(0, len(lines[row]) - 1)) if lines[row] else 0
        kinds = ["cell", "cell", "cell", "ragged", "drop", "double", "column", "one class", "empty"]
        how = draw(st.sampled_from(kinds))
        if how == "cell" and lines[row]:
            lines[row][column] = draw(CELLS)
        elif how == "ragged":
            lines[row] = [*lines[row][: draw(st.integers(0, 3))], draw(CELLS)]
        elif how == "drop":
            del lines[row]
        elif how == "double":
            lines.insert(row, list(lines[row]))
        elif how == "column":
            value = draw(CELLS)
            lines = [[value if k == column and i else c for k, c in enumerate(line)]
                     for i, line in enumerate(lines)]  # fmt: skip
        elif how == "one class":
            lines = [lines[0], *[list(lines[min(1, len(lines) - 1)]) for _ in lines[1:]]]
        else:
            lines = lines[: draw(st.integers(0, 2))]
        if not lines:
            break
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    start = draw(st.sampled_from(["", "", "", "\ufeff"]))
    made = start + end.join(between.join(line) for line in lines)
    coding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "latin-1"]))
    return made.encode(coding, "replace")


@st.composite
def spoiled_arrays(draw: Draw, name: str) -> tuple[bytes, bool | None]:
    """An .npz with one array of another type, shape or value, or without it."""
    arrays: dict[str, Any] = array_files()[name] | {"client": {"shape": [12], "dtype": "int64"}}
    key = draw(st.sampled_from(sorted(arrays)))
    how = draw(st.sampled_from(["dtype", "shape", "fill", "gone"]))
    bad: bool | None = None
    if how == "gone":
        del arrays[key]
        bad = True if key == "x" else None
    elif how == "dtype":
        names = ["float64", "complex64", "U3", "bool", "uint64", "datetime64[s]", "int8", ">f4"]
        arrays[key]["dtype"] = draw(st.sampled_from([*names, "float16", "S2"]))
        bad = True if arrays[key]["dtype"] in ("complex64", "datetime64[s]") else None
    elif how == "shape":
        arrays[key]["shape"] = draw(st.lists(st.integers(0, 13), max_size=4))
    else:
        fills = ["nan", "inf", "1e300", "-1", "1000000000000", "0.5", "-100"]
        arrays[key] |= {"fill": draw(st.sampled_from(fills)), "at": draw(st.integers(0, 30))}
    out = io.BytesIO()
    np.savez(out, **{k: federations.array(v) for k, v in arrays.items()})
    return out.getvalue(), bad


@st.composite
def spoiled_image(draw: Draw) -> bytes:
    """An image of another size, mode or format, or none at all."""
    mode = draw(st.sampled_from(["L", "RGB", "RGBA", "1", "I;16", "P"]))
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    out = io.BytesIO()
    kind = draw(st.sampled_from(["PNG", "GIF", "TIFF", "BMP"]))
    try:
        Image.new(mode, size).save(out, kind)
    except (OSError, ValueError, KeyError):
        return b"GIF89a"
    return out.getvalue()


TASKS = ("classification", "multilabel", "regression", "next-token", "sequence")
TARGETS = {
    "classification": {"shape": [], "dtype": "int64"},
    "multilabel": {"shape": [2], "dtype": "float32", "below": 2},
    "regression": {"shape": [1], "dtype": "float64"},
    "next-token": {"shape": [4], "dtype": "int64"},
    "sequence": {"shape": [4], "dtype": "int64"},
}


@st.composite
def task_federations(draw: Draw) -> Case:
    """Federations of every task and form of input, given to the library, with odd parts."""
    task = draw(st.sampled_from(TASKS))
    form = draw(st.sampled_from(["plain", "plain", "dict", "tuple"]))
    steps = task in ("next-token", "sequence")
    kind = "int64" if steps else draw(st.sampled_from(["float32", "int64", "uint8"]))

    def inputs(rows: int) -> Any:
        x = {"shape": [rows, 4], "dtype": kind, "seed": rows}
        other = {"shape": [rows], "dtype": "float32"}
        return x if form == "plain" else {"form": form, "a": x, "b": other}

    def client() -> dict[str, Any]:
        made: dict[str, Any] = {}
        for part in ("train", "test"):
            rows = draw(st.integers(1, 5))
            target = dict(TARGETS[task])
            made[f"x_{part}"] = inputs(rows)
            made[f"y_{part}"] = target | {"shape": [rows, *target["shape"]], "seed": rows + 1}
        return made

    clients = [client() for _ in range(draw(st.integers(1, 3)))]
    metrics = [*[""] * 12, "auc", "perplexity", "rmse", "accuracy", "macro_f1", "x"]
    spec: dict[str, Any] = {"clients": clients, "options": {"task": task}, "form": form}
    spec["metric"] = draw(st.sampled_from(metrics))
    spec["method"] = draw(st.sampled_from([*["fedavg", "local", "fedper"] * 2, "fedproto"]))
    spec["simulate"] = {}
    if draw(st.integers(0, 7)) == 0:
        words = ["flip", "noise", "crop:1", "noise:-1", "nothing", "", "a.py:f"]
        spec["simulate"]["augment"] = draw(st.sampled_from(words))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        _spoil(draw, draw(st.sampled_from(clients)))
    return Case("federation", spec=spec)


def _spoil(draw: Draw, client: dict[str, Any]) -> None:
    key = draw(st.sampled_from(sorted(client)))
    array = client[key]
    if "form" in array:
        array = array[draw(st.sampled_from(["a", "b"]))]
    how = draw(st.sampled_from(["dtype", "shape", "fill", "tensor"]))
    if how == "dtype":
        names = ["float64", "complex64", "U1", "bool", "uint64", "int8", "uint8", "float16"]
        array["dtype"] = draw(st.sampled_from(names))
    elif how == "shape":
        array["shape"] = draw(st.lists(st.integers(0, 5), max_size=3))
    elif how == "fill":
        fills = ["nan", "inf", "-1", "-100", "1000000000000", "0.5", "16777217"]
        array |= {"fill": draw(st.sampled_from(fills)), "at": draw(st.integers(0, 9))}
    else:
        array["tensor"] = True
