"""What peers do with a job, beside our rows of it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from idiolect.bench import peers
from idiolect.bench.job import Job, Row
from idiolect.errors import UserError


class AgainstPeers:
    """Runs the peers it is given; what they do, and which of them fail, goes into the result."""

    def __init__(
        self,
        result: dict[str, Any],
        asked: Mapping[str, Path],
        device: str,
        rounds: int | None,
        folder: Path,
        say: Callable[[str], None],
    ):
        self.result, self.device, self.rounds = result, device, rounds
        self.folder, self.say = folder, say
        self.paths = dict(asked)
        self.done: dict[Any, Row | None] = {}
        if asked:
            result |= {"peers": [], "failed": []}
        for peer, path in asked.items():
            try:
                peers.check(peer, path)
            except UserError as error:
                result["failed"].append(str(error))
                del self.paths[peer]

    def add(self, one: Job, ours: list[Row], whose: tuple[str, str]) -> None:
        """A peer's result in our rows of the job; that of a second peer in copies of them."""
        if whose[0] not in self.paths:
            return
        work = (whose, id(one.federation), str(one.method))  # whatever our own precision
        if work not in self.done:
            self.done[work] = self._run(one, whose)
        theirs = self.done[work]
        if theirs is None:
            return
        for row in ours:
            compared = _compared(row, theirs, self.device)
            if "peer" in row:
                self.result["rows"].append(row | compared)
            else:
                row |= compared

    def _run(self, one: Job, whose: tuple[str, str]) -> Row | None:
        self.say(f"{self.result['name']}: {' '.join(whose)} …")
        rounds = one.peer_rounds if self.rounds is None else self.rounds
        path = self.paths[whose[0]]
        try:
            theirs = peers.run(one, whose, path, self.device, rounds, self.folder)
        except UserError as error:
            self.result["failed"].append(str(error))
            return None
        self.result["peers"].append(one.label | theirs)
        return theirs


def _compared(ours: Row, theirs: Row, device: str) -> Row:
    """What a peer's result adds to our row: how many times longer it takes."""
    row = {
        "peer": f"{theirs['peer']} {theirs['algorithm']}",
        "peer_s": theirs["seconds"],
        "ratio": theirs["seconds"] / ours["seconds"],
    }
    if "curve" in ours:  # after as many rounds as the peer did, or at the last test before
        done = [a for t, a in ours["curve"] if t <= theirs["rounds"]]
        row |= {"peer_accuracy": theirs["accuracy"], "accuracy_then": done[-1] if done else None}
    if device == "cpu":
        row["cpu_ratio"] = theirs["cpu_s"] / ours["cpu_s"]
    return row
