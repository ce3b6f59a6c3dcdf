"""Flower's SuperLink on this machine: start it, register the clients' keys, submit a run.

It listens on the loopback interface, where only processes of this user are answered; sites reach it
through `proxy.py` only.
"""

import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idiolect.core import files
from idiolect.deploy import loopback_guard, processes
from idiolect.deploy.credentials import Credentials
from idiolect.deploy.processes import ChildProcesses
from idiolect.errors import UserError

SECONDS_TO_START = 180.0  # a busy machine is slow to import
PORT_ATTEMPTS = 5  # a free port may be taken before the SuperLink listens on it
CONNECTION = "idiolect"  # name of this SuperLink in Flower's config.toml

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


def start_superlink(
    children: ChildProcesses, folder: Path, keys: Credentials | None
) -> tuple[int, Path]:
    """Start a SuperLink on the loopback interface; returns its port and Flower's home folder."""
    home = folder / "home"
    loopback_guard.check_kernel()
    command = [Path(sys.executable).name, "-m", "idiolect.deploy.private_superlink"]
    command += ["--host", "127.0.0.1"]
    command += ["--database", str(folder / "superlink.db")]
    command += ["--disable-runtime-dependency-installation"]
    if keys is None:
        command += ["--insecure"]
    else:
        command += ["--ssl-ca-certfile", str(keys.ca), "--ssl-certfile", str(keys.cert)]
        command += ["--ssl-keyfile", str(keys.key), "--enable-supernode-auth"]
    env = processes.environment(home, IDIOLECT_SERVER=str(os.getpid()))
    for attempt in range(1, PORT_ATTEMPTS + 1):
        port = processes.free_port()
        children.start("superlink", [*command, "--port", str(port)], env)
        try:
            _wait_healthy(children, port, keys)
        except UserError:
            if attempt == PORT_ATTEMPTS or processes.PORT_TAKEN not in children.log("superlink"):
                raise
        else:
            break
    _write_connection(home, port, keys)
    return port, home


def _write_connection(home: Path, port: int, keys: Credentials | None) -> None:
    how = "insecure = true" if keys is None else f'root-certificates = "{keys.ca.resolve()}"'
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "127.0.0.1:{port}"\n{how}\n',
        encoding="utf-8",
    )


def _wait_healthy(children: ChildProcesses, port: int, keys: Credentials | None) -> None:
    scheme = "http" if keys is None else "https"
    context = None if keys is None else ssl.create_default_context(cafile=str(keys.ca))
    end = time.monotonic() + SECONDS_TO_START
    url = f"{scheme}://127.0.0.1:{port}/health"
    while True:
        answered = False
        with contextlib.suppress(OSError, urllib.error.URLError):
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=5, context=context):
                answered = True
        ended = children.exit_code("superlink") is not None
        if ended or (not answered and time.monotonic() > end):
            raise UserError(f"Flower's superlink did not start: {children.tail('superlink')}")
        if answered:
            return
        time.sleep(0.2)


def register_nodes(home: Path, folder: Path, keys: Credentials) -> dict[str, int]:
    """Register every public key; returns node id -> client id."""
    file = folder / "nodes.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for client, path in keys.clients.items():
        public = path.read_text(encoding="utf-8").split()[1]
        if known.get(str(client), {}).get("key") == public:
            continue
        command = ["supernode", "register", str(path), CONNECTION, "--format", "json"]
        answer = _flwr(home, command)
        try:
            node = str(answer["node-id"])
        except KeyError:
            raise UserError(f"the key {path} could not be registered: {answer}") from None
        known[str(client)] = {"key": public, "node": node}
        files.write_json(file, known)
    return {about["node"]: int(c) for c, about in known.items() if int(c) in keys.clients}


def submit(home: Path, folder: Path, run: Path) -> None:
    """Start the experiment as a Flower run."""
    app = folder / "app"
    app.mkdir(exist_ok=True)
    (app / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (app / "idiolect_federation.py").write_text(APP, encoding="utf-8")
    setting = f"run={json.dumps(str(run.resolve()))}"
    answer = _flwr(home, ["run", str(app), CONNECTION, "--run-config", setting, "--format", "json"])
    if not answer.get("success"):
        raise UserError(f"Flower did not start the run: {answer}")


def _flwr(home: Path, command: Sequence[str]) -> dict[str, Any]:
    program = str(Path(sys.executable).parent / "flwr")
    done = subprocess.run(
        [program, *command],
        env=processes.environment(home),
        capture_output=True,
        text=True,
        timeout=SECONDS_TO_START,
    )
    found = done.stdout.find("{")
    with contextlib.suppress(ValueError):
        return dict(json.loads(done.stdout[found:])) if found >= 0 else {}
    return {"error": " ".join((done.stdout + done.stderr).split())[-300:]}
