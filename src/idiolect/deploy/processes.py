"""SuperLink and SuperNode as child processes with safe defaults, ended together with their parent.

Off by default, and not to be switched on from here: telemetry, the update check, installing an
app's dependencies at run time. SuperLink and SuperNode listen on the loopback interface; only the
door (server) is open to others, where it was told to listen.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from idiolect.deploy.credentials import Credentials
from idiolect.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
AGAIN = 3.0  # seconds before a child that ended is started again
# A client that was killed and comes back is refused until its old connection has lapsed (60 s).
REFUSED_FOR = 100.0
STARTS_WITHIN = 180.0  # seconds; a busy machine is slow to import
TAKEN, TRIES = "address already in use", 5  # what they say when a port went to somebody else

APP = '''"""Written by `idiolect server`: the installed package does everything."""

from idiolect.deploy import apps

server = apps.server
client = apps.client
'''
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "idiolect-federation"
version = "1.0.0"
description = "An Idiolect experiment"
license = "Apache-2.0"
dependencies = ["flwr==1.41.0"]

[tool.flwr.app]
publisher = "idiolect"

[tool.flwr.app.components]
serverapp = "idiolect_federation:server"
clientapp = "idiolect_federation:client"

[tool.flwr.app.config]
run = ""
"""


def needs_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise UserError(
            "Flower is not installed; install the extra: pip install 'idiolect[deploy]'"
        )


def environment(home: Path, **more: str) -> dict[str, str]:
    """Flower's environment: its own folder, no phoning home, our programs first on the path."""
    home.mkdir(parents=True, exist_ok=True)
    own = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": own + os.pathsep + os.environ.get("PATH", ""),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


class Family:
    """Child processes: they write to log files and die with this process, however it dies."""

    def __init__(self, logs: Path):
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self._how: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {}
        self._begin: dict[str, int] = {}  # where a child's part of its log begins

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._how[name] = (command, env)
        with (self.logs / f"{name}.log").open("ab") as out:
            self._begin[name] = out.tell()
            self.children[name] = subprocess.Popen(
                [str(Path(sys.executable).parent / command[0]), *command[1:]],
                env=dict(env),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                preexec_fn=_die_with_parent,
            )

    def again(self, name: str) -> None:
        self.start(name, *self._how[name])

    def ended(self, name: str) -> int | None:
        return self.children[name].poll()

    def log(self, name: str) -> str:
        """What a child has written since it was started."""
        with contextlib.suppress(OSError), (self.logs / f"{name}.log").open("rb") as file:
            file.seek(self._begin[name])
            return file.read().decode(errors="replace")
        return ""

    def tail(self, name: str, lines: int = 3) -> str:
        """The last lines of a child's log, for an error message."""
        told = [line.strip() for line in self.log(name).splitlines() if line.strip()]
        return " | ".join(told[-lines:])

    def end(self) -> None:
        for child in self.children.values():
            if child.poll() is None:
                child.terminate()
        end = time.monotonic() + 8
        for child in self.children.values():
            try:
                child.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, Linux


def free_port() -> int:
    """One that is free now; it may be taken when a child, seconds later, has come to listen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_superlink(family: Family, folder: Path, keys: Credentials | None) -> tuple[int, Path]:
    """A SuperLink on the loopback interface; its port and Flower's home folder."""
    home = folder / "home"
    command = ["flower-superlink", "--host", "127.0.0.1"]
    command += ["--database", str(folder / "superlink.db")]
    command += ["--disable-runtime-dependency-installation"]
    if keys is None:
        command += ["--insecure"]
    else:
        command += ["--ssl-ca-certfile", str(keys.ca), "--ssl-certfile", str(keys.cert)]
        command += ["--ssl-keyfile", str(keys.key), "--enable-supernode-auth"]
    for tried in range(1, TRIES + 1):
        port = free_port()
        family.start("superlink", [*command, "--port", str(port)], environment(home))
        try:
            _wait_healthy(family, "superlink", port, keys)
        except UserError:
            if tried == TRIES or TAKEN not in family.log("superlink"):
                raise
        else:
            break
    _write_connection(home, port, keys)
    return port, home


def _write_connection(home: Path, port: int, keys: Credentials | None) -> None:
    how = "insecure = true" if keys is None else f'root-certificates = "{keys.ca.resolve()}"'
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = "127.0.0.1:{port}"\n{how}\n',
        encoding="utf-8",
    )


def _wait_healthy(family: Family, name: str, port: int, keys: Credentials | None) -> None:
    scheme = "http" if keys is None else "https"
    context = None if keys is None else ssl.create_default_context(cafile=str(keys.ca))
    end = time.monotonic() + STARTS_WITHIN
    url = f"{scheme}://127.0.0.1:{port}/health"
    while True:
        answered = False
        with contextlib.suppress(OSError, urllib.error.URLError):
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=5, context=context):
                answered = True
        if family.ended(name) is not None or (not answered and time.monotonic() > end):
            raise UserError(f"Flower's {name} did not start: {family.tail(name)}")
        if answered:
            return
        time.sleep(0.2)


def register_nodes(home: Path, folder: Path, keys: Credentials) -> dict[str, int]:
    """Enrol every public key; node id -> client id."""
    place = folder / "nodes.json"
    known: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
    for client, path in keys.clients.items():
        shown = path.read_text(encoding="utf-8").split()[1]
        if known.get(str(client), {}).get("key") == shown:
            continue
        command = ["supernode", "register", str(path), "own", "--format", "json"]
        answer = _flwr(home, command)
        try:
            node = str(answer["node-id"])
        except KeyError:
            raise UserError(f"the key {path} could not be enrolled: {answer}") from None
        known[str(client)] = {"key": shown, "node": node}
        place.write_text(json.dumps(known, indent=1))
    return {about["node"]: int(c) for c, about in known.items() if int(c) in keys.clients}


def submit(home: Path, folder: Path, run: Path) -> str:
    """Start the experiment as a Flower run; its id."""
    app = folder / "app"
    app.mkdir(exist_ok=True)
    (app / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (app / "idiolect_federation.py").write_text(APP, encoding="utf-8")
    setting = f"run={json.dumps(str(run.resolve()))}"
    answer = _flwr(home, ["run", str(app), "own", "--run-config", setting, "--format", "json"])
    if not answer.get("success"):
        raise UserError(f"Flower did not start the run: {answer}")
    return str(answer["run-id"])


def _flwr(home: Path, command: Sequence[str]) -> dict[str, Any]:
    program = str(Path(sys.executable).parent / "flwr")
    done = subprocess.run(
        [program, *command],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=STARTS_WITHIN,
    )
    found = done.stdout.find("{")
    with contextlib.suppress(ValueError):
        return dict(json.loads(done.stdout[found:])) if found >= 0 else {}
    return {"error": " ".join((done.stdout + done.stderr).split())[-300:]}


def start_client(
    family: Family,
    settings: dict[str, Any],
    server: str,
    ca: Path | None,
    key: Path | None,
    worker: str,
) -> None:
    """A SuperNode and, beside it, the worker that answers its messages."""
    home = Path(settings["state"]) / "flower"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    port = free_port()
    settings["runtime"] = f"127.0.0.1:{port}"
    command = ["flower-supernode", "--superlink", server, "--host", "127.0.0.1"]
    command += ["--port", str(port)]
    command += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    if key is not None:
        command += ["--auth-supernode-private-key", str(key)]
    if worker == "idiolect":
        secret = home / "secret"
        if not secret.exists():
            handle = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(32))
        settings["secret"] = str(secret)
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    env = environment(home, IDIOLECT_SITE=json.dumps(settings))
    if worker == "idiolect":
        program = [Path(sys.executable).name, "-m", "idiolect.deploy.worker"]
        family.start("worker", program, env)
    family.start("supernode", command, env)


def stay(family: Family, start: Callable[[], None]) -> None:
    """As long as it makes sense: what ends is started again, the state is on disk. A SuperNode
    whose port was taken needs another, and so does its worker: both are started anew."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    start()
    shown, refused = False, 0.0  # since when the server has been refusing this key
    while True:
        time.sleep(0.5)
        for name in family.children:
            code = family.ended(name)
            if code is None:
                continue
            if name == "worker" and code == 2:
                raise UserError(family.tail("worker", 1).removeprefix("error: "))
            if name == "supernode":
                said = family.log("supernode")
                if TAKEN in said:
                    print(
                        "the supernode's port was taken: it is started on another", file=sys.stderr
                    )
                    family.end()
                    start()
                    break
                met = "code: 2004" in said and "SuperNode ID" not in said
                refused = (refused or time.monotonic()) if met else 0.0
                if refused and time.monotonic() - refused > REFUSED_FOR:
                    raise UserError(
                        "the server does not know this client's key (or another process uses it); "
                        "copy the .pub file to the server's keys/clients, start the server again"
                    )
            print(f"{name} ended with code {code} and is started again", file=sys.stderr)
            time.sleep(AGAIN)
            family.again(name)
        if not shown and "worker" in family.children and "ready:" in family.log("worker"):
            shown = True
            print(family.tail("worker", 1), file=sys.stderr, flush=True)
