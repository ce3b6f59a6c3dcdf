"""Two small files by which the proxy and the experiment, two processes, tell each other what an
answer may weigh, and which one was turned away."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idiolect.core import files

ALLOWED, TURNED_AWAY = "answer_bytes.json", "turned_away.jsonl"


class ProxyNotes:
    """The notes in a federation's folder."""

    def __init__(self, folder: Path):
        self._allowed, self._turned_away = folder / ALLOWED, folder / TURNED_AWAY
        self._bytes = self.allowed()
        self._read = self._turned_away.stat().st_size if self._turned_away.exists() else 0

    def allow(self, answer: int) -> None:
        """The experiment: answers may have that many bytes. Never less than before, because an
        earlier request may still be answered."""
        if answer > self._bytes:
            self._bytes = answer
            files.write_json(self._allowed, answer)

    def allowed(self) -> int:
        """The proxy: bytes an answer may have now; 0 before there was a request."""
        try:
            return int(json.loads(self._allowed.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return 0

    def turn_away(self, message: str, node: int, reason: str) -> None:
        """The proxy: this answer was not passed on."""
        line = json.dumps({"message": message, "node": node, "reason": reason})
        with self._turned_away.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def turned_away(self) -> Iterator[tuple[str, int, str]]:
        """The experiment: message, node and reason of what was turned away since the last look."""
        if not self._turned_away.exists() or self._turned_away.stat().st_size == self._read:
            return
        with self._turned_away.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                about: dict[str, Any] = json.loads(line)
                yield about["message"], about["node"], about["reason"]
