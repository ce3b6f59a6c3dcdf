"""Files with a method, a split or a model of one's own, as `idiolect new` writes them, spoilt."""

import re

from hypothesis import strategies as st

from idiolect.cli.first_drafts import DRAFTS
from tests.fuzz.cases import Case
from tests.fuzz.mutations import Draw
from tests.fuzz.places import TINY

WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9.]+|[(){}\[\],:=]")
OTHER = ("None", "1", "-1", "0.5", "x", "()", "[]", "{}", "'a'", "self", "int", "(", ")", ":", "")
LINES = ("raise ValueError('no')", "return None", "return", "1 / 0", "import nothing_there",
         "pass", "assert False", "@property", "raise SystemExit(3)", "x: int = 'a'",
         "del self")  # fmt: skip
NAME = "Halfway"


@st.composite
def own_plugins(draw: Draw) -> Case:
    """A short run by a file in which a word or a line or two are others."""
    kind = draw(st.sampled_from(sorted(DRAFTS)))
    text = DRAFTS[kind][0].format(name=NAME, file="halfway", test="test_halfway.py")
    changes = draw(st.integers(0, 2))
    for _ in range(changes):
        text = draw(_spoilt(text))
    named = f"halfway.py:{draw(st.sampled_from([NAME] * 9 + ['Method', 'nothing', 'np']))}"
    words = {
        "method": ("run", named, *TINY),
        "split": ("run", "fedavg", *TINY[:-2], "--split", named),
        "model": ("run", "fedavg", *TINY[:4], *TINY[-2:], "--model", named),
    }[kind]
    sound = not changes and named.endswith(NAME)
    return Case(
        "command", (*words, "--out", "r"), {"halfway.py": text}, bad=False if sound else None
    )


@st.composite
def _spoilt(draw: Draw, text: str) -> str:
    found = list(WORD.finditer(text))
    lines = text.split("\n")
    how = draw(st.sampled_from(["word"] * 3 + ["line", "line", "new", "cut"]))
    if how == "word" and found:
        at = draw(st.sampled_from(found))
        return text[: at.start()] + draw(st.sampled_from(OTHER)) + text[at.end() :]
    number = draw(st.integers(0, len(lines) - 1))
    if how == "cut":
        return "\n".join(lines[:number])
    if how == "new":
        indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
        lines.insert(number, indent + draw(st.sampled_from(LINES)))
    else:
        del lines[number]
    return "\n".join(lines)
