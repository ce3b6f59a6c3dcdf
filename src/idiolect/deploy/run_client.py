"""`idiolect client`: a SuperNode and a worker as child processes, started again when they end."""

import json
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from idiolect.deploy import processes
from idiolect.deploy.credentials import write_private
from idiolect.deploy.messages import printable
from idiolect.deploy.processes import ChildProcesses
from idiolect.errors import UserError

SECONDS_BEFORE_RESTART = 3.0
# A client that was killed and comes back is refused until its old connection has lapsed (60 s).
MAX_SECONDS_REFUSED = 100.0
MAX_STARTS = 4  # of a worker that ends before it is ready: then the reason is told, and that is it
# What a person at the site should see: warnings of the worker, and what Flower could not transfer.
SHOWN = {
    "worker": re.compile(r"(?:WARNING|ERROR|CRITICAL) (.*)"),
    "supernode": re.compile(r"(Failed to (?:send|receive) message .*)"),
}
# The server died while it sent this site a message. The worker would look for its parts for more
# than an hour, and the SuperNode then send every answer too late.
CUT_OFF = re.compile(r"Run ID \d+ is not in `RUNNING` status\. Ignoring message")


def start_supernode(
    children: ChildProcesses,
    settings: dict[str, Any],
    server: str,
    ca: Path | None,
    key: Path | None,
    worker: str,
) -> None:
    """Start a SuperNode and, unless Flower is to do it, the worker that answers its messages."""
    home = Path(settings["state"]) / "flower"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    port = processes.free_port()
    settings["runtime"] = f"127.0.0.1:{port}"
    command = ["flower-supernode", "--superlink", server, "--host", "127.0.0.1"]
    command += ["--port", str(port)]
    command += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    if key is not None:
        command += ["--auth-supernode-private-key", str(key)]
    if worker == "idiolect":
        secret = home / "secret"  # shared by SuperNode and worker
        if not secret.exists():
            write_private(secret, secrets.token_hex(32).encode())
        settings["secret"] = str(secret)
        command += ["--isolation", "process", "--superexec-auth-secret-file", settings["secret"]]
    env = processes.environment(home, IDIOLECT_SITE=json.dumps(settings))
    if worker == "idiolect":
        program = [Path(sys.executable).name, "-m", "idiolect.deploy.worker"]
        children.start("worker", program, env)
    children.start("supernode", command, env)


def run_client(children: ChildProcesses, start: Callable[[], None]) -> None:
    """Start the children and restart those that end, until an error that a restart cannot mend.

    The state is on disk, so a restart loses nothing. A SuperNode whose port was taken needs another
    one, which the worker must know too: `start` then starts both.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    start()
    ready, starts, refused_since = False, 1, 0.0
    while True:
        time.sleep(0.5)
        for name in children.children:
            lines = children.new_lines(name)
            _show(name, lines)
            if name == "supernode" and any(map(CUT_OFF.search, lines)):
                _tell("the server ended while it sent a message: supernode and worker start anew")
                children.end()
                start()
                break
            code = children.exit_code(name)
            if code is None:
                continue
            if name == "worker":
                _check_worker(children, code, "ready:" in children.log("worker"), starts)
                starts = 1 if "ready:" in children.log("worker") else starts + 1
            if name == "supernode":
                log = children.log("supernode")
                if processes.PORT_TAKEN in log:
                    _tell("the supernode's port was taken: it is started on another")
                    children.end()
                    start()
                    break
                refused = "code: 2004" in log and "SuperNode ID" not in log
                refused_since = (refused_since or time.monotonic()) if refused else 0.0
                if refused and time.monotonic() - refused_since > MAX_SECONDS_REFUSED:
                    raise UserError(
                        "the server does not know this client's key (or another process uses it); "
                        "copy the .pub file to the server's keys/clients, start the server again"
                    )
            _tell(f"{name} ended with code {code} and is started again")
            time.sleep(SECONDS_BEFORE_RESTART)
            children.restart(name)
        if not ready and "worker" in children.children and "ready:" in children.log("worker"):
            ready = True
            _tell(children.tail("worker", 1))


def _check_worker(children: ChildProcesses, code: int, was_ready: bool, starts: int) -> None:
    """Stop where another start of the worker would end as this one did."""
    if code == processes.BAD_SETTINGS:
        raise UserError(children.tail("worker", 1).removeprefix("error: "))
    if not was_ready and starts >= MAX_STARTS:
        raise UserError(
            f"the worker ended {starts} times before it was ready, last with code {code}: "
            f"{children.tail('worker', 1)} (see {children.logs / 'worker.log'})"
        )


def _show(name: str, lines: list[str]) -> None:
    """Bring what concerns a person from a child's log to the terminal."""
    for line in lines:
        if name in SHOWN and (found := SHOWN[name].search(line)):
            _tell(f"{name}: {printable(found[1])}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
