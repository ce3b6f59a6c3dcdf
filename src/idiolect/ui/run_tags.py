"""Words that people put to a run: tags.json in its folder. Runs themselves never read them."""

import json
from pathlib import Path

from idiolect.core import files
from idiolect.core.text import one_line
from idiolect.errors import UserError
from idiolect.ui.plain_files import opened

FILE = "tags.json"
MOST_TAGS, LONGEST_TAG = 20, 40  # of a run; characters


def read(run: Path) -> list[str]:
    """The tags of a run; none where there is no such file or it is not ours."""
    try:
        with opened(run / FILE) as file:
            found = json.loads(file.read(1 << 16))
    except (OSError, ValueError, RecursionError):
        return []
    words = found if isinstance(found, list) else []
    return [one_line(word)[:LONGEST_TAG] for word in words[:MOST_TAGS] if isinstance(word, str)]


def write(run: Path, text: str) -> list[str]:
    """Keep these tags, written with commas between: `baseline, first try`."""
    parts = [one_line("-".join(part.split())) for part in text.split(",")]
    tags = list(dict.fromkeys(part for part in parts if part))
    if len(tags) > MOST_TAGS or any(len(tag) > LONGEST_TAG for tag in tags):
        raise UserError(f"a run has at most {MOST_TAGS} tags of {LONGEST_TAG} characters")
    files.write_json(run / FILE, tags)
    return tags
