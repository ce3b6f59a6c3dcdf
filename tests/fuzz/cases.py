"""A case: files and a command (or arrays for the library), and what is known about them."""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Content = bytes | str | None  # of a file; `link:…`, `pipe:` and `folder:` are what they say


@dataclass(frozen=True)
class Case:
    """`kind` names the place it is played in (see `places.py`); `bad`: the input is known to be bad
    (True), known to be good (False), or nothing is known (None)."""

    kind: str
    words: tuple[str, ...] = ()
    files: dict[str, Content] = field(default_factory=dict)
    spec: Any = None
    bad: bool | None = None

    def as_json(self) -> str:
        files = {name: _written(content) for name, content in self.files.items()}
        body = {"kind": self.kind, "words": self.words, "files": files, "spec": self.spec}
        return json.dumps(body | {"bad": self.bad}, indent=1)

    @classmethod
    def read(cls, path: Path) -> "Case":
        body = json.loads(path.read_text())
        files = {name: _bytes(content) for name, content in body["files"].items()}
        return cls(body["kind"], tuple(body["words"]), files, body["spec"], body["bad"])


def _written(content: Content) -> Any:
    if isinstance(content, bytes):
        try:
            text = content.decode("ascii")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(content).decode()}
        return {"ascii": text}
    return content


def _bytes(content: Any) -> Content:
    if isinstance(content, dict):
        if "ascii" in content:
            return str(content["ascii"]).encode()
        return base64.b64decode(content["base64"])
    return content if isinstance(content, str) else None
