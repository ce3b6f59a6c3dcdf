"""Ending a run cleanly and continuing one, from the page."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from idiolect.errors import UserError
from idiolect.runs.interruption import ask_to_stop


class RunControl:
    """Starts and stops the processes of runs below the runs directory."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs  # what resumed runs print, one file each
        self.started: dict[Path, subprocess.Popen[bytes]] = {}

    def stop(self, run: Path) -> None:
        """Ask a going run to end after its round, with its checkpoint."""
        ask_to_stop(run)

    def resume(self, run: Path) -> None:
        """Continue an unfinished run in a process of its own, which outlives the page."""
        going = self.started.get(run)
        if going is not None and going.poll() is None:
            raise UserError(f"{run.name} is already being continued")
        self.logs.mkdir(parents=True, exist_ok=True)
        with self._log(run).open("wb") as log:
            self.started[run] = subprocess.Popen(
                self.words(run),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def words(self, run: Path) -> list[str]:
        """The program that continues a run. -P: a folder `idiolect` among runs is not it."""
        return [sys.executable, "-P", "-m", "idiolect", "resume", str(run)]

    def problem(self, run: Path) -> str:
        """The last line of a continued run that failed; nothing if it did not."""
        going = self.started.get(run)
        if going is None or going.poll() in (None, 0, 130):
            return ""
        lines = self._log(run).read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {going.returncode}"

    def _log(self, run: Path) -> Path:
        return self.logs / f"{sha256(str(run).encode()).hexdigest()[:16]}.log"
