"""How a sound thing is spoiled: bytes, texts, values in a nested structure, tables, arrays."""

import copy
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

Draw = Any

# Things that broke programs before: not of the type, not of the size, not of this world.
STRANGE_TEXT = st.sampled_from(
    [
        *(
            "",
            " ",
            "\n",
            "\x00",
            "\x1b[31mred\x1b[0m",
            "\u202eabc",
            "é",
            "\ud83d\ude00",
            "a" * 5000,
        ),
        *("<script>alert(1)</script>", "<!--<script>", "=cmd|' /C calc'!A0", "+1", "-1", "@x"),
        *(r"\input{/etc/passwd}", "$x$", "%{x}", "{{7*7}}", "%s%n", "'; --", "../../etc/passwd"),
        *(
            "/etc/passwd",
            "/dev/zero",
            "~",
            "~nobody/x",
            "null",
            "true",
            "nan",
            ".inf",
            "1e400",
            "0x10",
        ),
        *(
            "2024-13-45",
            "2024-01-01",
            "!!python/object:os.system",
            "!!int x",
            "!!binary x",
            "*a",
            "&a",
        ),
        *(
            "010",
            "1:0",
            "1_000",
            "[",
            "{",
            "]",
            "a: b: c",
            "- ",
            "---",
            "...",
            "<<: *x",
            "? ",
            "0.5.1",
        ),
    ]
)
STRANGE_NUMBER = st.sampled_from(
    [-1, 0, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308, -1e-308, 1e39]
)
TEXT = st.one_of(STRANGE_TEXT, st.text(max_size=20))
PLAIN = st.one_of(st.none(), st.booleans(), STRANGE_NUMBER, st.integers(-5, 5), TEXT)
VALUE = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=4,
)


@st.composite
def spoiled_bytes(draw: Draw, content: bytes) -> bytes:
    """Flipped, cut, doubled, emptied, overwritten."""
    at = draw(st.integers(0, max(len(content) - 1, 0)))
    size = draw(st.integers(1, 64))
    return draw(
        st.sampled_from(
            [
                content[:at],
                content[at:],
                content[:at] + content[at + size :],
                content[:at] + b"\xff" * size + content[at + size :],
                content[:at] + b"\x00" * size + content[at + size :],
                content[:at] + bytes([content[at] ^ (1 << size % 8)]) + content[at + 1 :]
                if content
                else b"\x00",
                content[:at] + content[at : at + size] * 3 + content[at:],
                content + content,
                b"",
            ]
        )
    )


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a nested structure."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += paths_in(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:3]):
            found += paths_in(inner, (*path, i))
    return found


def put(value: Any, path: tuple[Any, ...], new: Any, remove: bool = False) -> Any:
    """A copy with another value, or none, at one place."""
    made = copy.deepcopy(value)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return made


@st.composite
def spoiled_structure(draw: Draw, value: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """The structure with one or two changes; the place of the last, and whether it was removed."""
    path: tuple[Any, ...] = ()
    gone = False
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        places = paths_in(value)
        if not places:
            break
        path, gone = draw(st.sampled_from(places)), draw(st.booleans())
        value = put(value, path, draw(VALUE), gone)
    return value, path, gone


@st.composite
def spoiled_json(draw: Draw, text: bytes) -> bytes:
    made, _, _ = draw(spoiled_structure(json.loads(text)))
    return json.dumps(made).encode("utf-8", "surrogatepass")


@st.composite
def spoiled_lines(draw: Draw, text: bytes) -> bytes:
    """JSON lines: one changed, dropped, doubled or moved."""
    lines = text.splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    how = draw(st.sampled_from(["change", "drop", "double", "move", "garbage"]))
    if how == "change":
        lines[at] = draw(spoiled_json(lines[at]))
    elif how == "drop":
        del lines[at]
    elif how == "double":
        lines.insert(at, lines[at])
    elif how == "move":
        lines.insert(0, lines.pop(at))
    else:
        lines.insert(at, draw(st.binary(max_size=30)))
    return b"\n".join(lines) + b"\n"


COLUMNS = st.sampled_from(
    [
        lambda n: pa.array([None] * n),
        lambda n: pa.array(["=x\x1b[31m"] * n),
        lambda n: pa.array([float("nan")] * n),
        lambda n: pa.array([float("inf")] * n),
        lambda n: pa.array([-1] * n),
        lambda n: pa.array([2**62] * n),
        lambda n: pa.array([0.5] * n),
        lambda n: pa.array([[1, 2]] * n),
        lambda n: pa.array([{"bytes": b"x"}] * n),
        lambda n: pa.array([b"\xff"] * n),
        lambda n: pa.array([True] * n),
        lambda n: pa.array(np.arange(n) % 2),
        lambda n: pa.array([None, *range(n - 1)] if n else []),
        lambda n: pa.array(["/etc/passwd"] * n),
        lambda n: pa.array(np.array(["2024-01-01"] * n, "datetime64[D]")),
    ]
)


@st.composite
def spoiled_table(draw: Draw, content: bytes) -> bytes:
    """A Parquet file with a column replaced, renamed or dropped, or rows missing or repeated."""
    table = pq.read_table(io.BytesIO(content))
    name = draw(st.sampled_from(table.column_names))
    at, n = table.column_names.index(name), len(table)
    how = draw(
        st.sampled_from(["value", "value", "value", "drop", "rename", "rows", "twice", "none"])
    )
    if how == "value":
        table = table.set_column(at, name, draw(COLUMNS)(n))
    elif how == "drop":
        table = table.drop_columns([name])
    elif how == "rename":
        new = draw(TEXT).encode("utf-8", "replace").decode()
        table = table.rename_columns([new if c == name else c for c in table.column_names])
    elif how == "rows":
        rows = draw(st.lists(st.integers(0, max(n - 1, 0)), max_size=n + 2))
        table = table.take(pa.array(rows, pa.int64()))
    elif how == "twice":
        table = table.append_column(name, table.column(at))
    else:
        table = table.slice(0, 0)
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()
