"""Child processes and the environment that Flower's programs run in.

Telemetry, the update check and installing an app's dependencies at run time are switched off.
"""

import contextlib
import ctypes
import importlib.util
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from idiolect.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PORT_TAKEN = "address already in use"  # what Flower's programs say of a port that is not free
BAD_SETTINGS = 2  # exit code of a child that cannot start with what it was given
SECONDS_TO_END = 8.0  # for a child that was asked to end, before it is killed


def needs_flower() -> None:
    """Say how to install Flower if it is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise UserError(
            "Flower is not installed; install the extra: pip install 'idiolect[deploy]'"
        )


def environment(home: Path, **more: str) -> dict[str, str]:
    """Variables for Flower's programs: a folder for its files, no telemetry, our programs first on
    the path."""
    home.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", ""),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


class ChildProcesses:
    """Processes that write to log files and end with this process, however it ends."""

    def __init__(self, logs: Path):
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {}
        self._log_starts: dict[str, int] = {}  # where the output of the running child begins
        self._log_ends: dict[str, int] = {}  # how far it has been read, by `new_lines`

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._commands[name] = (command, env)
        with (self.logs / f"{name}.log").open("ab") as out:
            self._log_starts[name] = out.tell()
            self.children[name] = subprocess.Popen(
                [str(Path(sys.executable).parent / command[0]), *command[1:]],
                env=dict(env),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                preexec_fn=_end_with_parent,
            )

    def restart(self, name: str) -> None:
        self.start(name, *self._commands[name])

    def exit_code(self, name: str) -> int | None:
        """None while it runs."""
        return self.children[name].poll()

    def log(self, name: str) -> str:
        """What a child has written since it was started."""
        with contextlib.suppress(OSError), (self.logs / f"{name}.log").open("rb") as file:
            file.seek(self._log_starts[name])
            return file.read().decode(errors="replace")
        return ""

    def new_lines(self, name: str) -> list[str]:
        """The whole lines that a child has written since the last call."""
        path = self.logs / f"{name}.log"
        start = max(self._log_ends.get(name, 0), self._log_starts.get(name, 0))
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(start)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._log_ends[name] = start + len(whole)
            return whole.decode(errors="replace").splitlines()
        return []

    def tail(self, name: str, lines: int = 3) -> str:
        """The last lines of a child's log, for an error message."""
        written = [line.strip() for line in self.log(name).splitlines() if line.strip()]
        return " | ".join(written[-lines:])

    def end(self) -> None:
        """Terminate all children; kill those that do not go."""
        for child in self.children.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + SECONDS_TO_END
        for child in self.children.values():
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _end_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, Linux


def end_with(pid: int) -> None:
    """End this process once another one is gone (Linux). Flower's programs start the experiment in
    a process of its own, which outlives a server that is killed and would keep its run locked."""

    def wait() -> None:
        with contextlib.suppress(ProcessLookupError):  # it is gone already
            gone = select.poll()
            gone.register(os.pidfd_open(pid), select.POLLIN)
            gone.poll()
        os._exit(1)

    threading.Thread(target=wait, name="end with the server", daemon=True).start()


def check_listens(host: str, port: int) -> None:
    """Say why nobody could listen there, before anything is begun."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family):
            pass
    except OSError as error:
        reason = f"{error.strerror or error}; choose --host and --port"
        raise UserError(f"cannot listen on {host}:{port}: {reason}") from None


def free_port() -> int:
    """A port that is free now; another process may take it before a child listens on it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
