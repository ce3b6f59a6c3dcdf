"""docs/trust.md names tests; they exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(?P<file>[\w/]+\.py)?(?:::(?P<test>\w+))?`")


def test_every_test_that_is_named_exists() -> None:
    file, named = "", 0
    for found in NAMED.finditer((ROOT / "docs" / "trust.md").read_text(encoding="utf-8")):
        file = found["file"] or file
        if found["test"]:
            named += 1
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {found['test']}(" in text, found[0]
    assert named > 40
