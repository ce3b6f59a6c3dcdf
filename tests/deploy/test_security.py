"""What an eavesdropper and a stranger get: nothing. With real processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from idiolect.deploy import credentials, superlink
from idiolect.deploy.processes import ChildProcesses
from idiolect.runs import checkpoint
from tests.deploy.another_user import BECOME_NOBODY, needs_root
from tests.deploy.federation_processes import (
    ROOT,
    LocalProcesses,
    federation,
    journal,
    needs_flower,
)

pytestmark = [needs_flower, pytest.mark.heavy]


class Tap:
    """A TCP proxy that keeps every byte it passes on."""

    def __init__(self, target: int):
        self.target, self.heard = target, bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = None
                with contextlib.suppress(OSError):
                    far = socket.create_connection(("127.0.0.1", self.target))
                if far is None:
                    near.close()
                    continue
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := a.recv(1 << 16):
                self.heard += piece
                b.sendall(piece)
        for end in (a, b):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()


@contextlib.contextmanager
def tapped(fed: LocalProcesses) -> Iterator[Tap]:
    tap = Tap(fed.port)
    try:
        yield tap
    finally:
        tap.close()


def parameters(run: Path) -> bytes:
    """Some bytes of the final model, as they were sent to every client to be tested."""
    saved = checkpoint.read(run / "checkpoint", checkpoint.rounds(run / "checkpoint")[0])
    assert saved is not None
    leaf = saved.tensors["server/model/body.1.weight"]
    return leaf.contiguous().numpy().tobytes()[:256]


def one_run(fed: LocalProcesses, tap: Tap, keys: bool) -> Path:
    fed.server(
        *("fedavg", "--clients", "2", "--rounds", "1", "--dtype", "float64", "--model", "mlp"),
        *("--out", "run"),
        keys=keys,
    )
    fed.client(0, keys=keys, port=tap.port)
    fed.client(1, keys=keys)
    if keys:
        strangers(fed)
    assert fed.finished() == 0, fed.story()
    return fed.folder / "run"


def strangers(fed: LocalProcesses) -> None:
    """A key nobody registered, and a registered client that claims to be another one."""
    address = (
        "--server",
        f"127.0.0.1:{fed.port}",
        "--data",
        "tests.deploy.client_data_function:load",
    )
    ca = ("--ca", "keys/ca.pem")
    key = ("--key", "elsewhere/clients/client_1")
    fed.run("stranger", "client", *address, *ca, *key, "--id", "1", "--state", "stranger")
    key = ("--key", "keys/clients/client_2")
    fed.run("impostor", "client", *address, *ca, *key, "--id", "1", "--state", "impostor")


def test_nothing_in_the_clear_and_strangers_see_no_model(tmp_path: Path) -> None:
    with federation(tmp_path) as fed, tapped(fed) as tap:
        fed.run("keys", "keys", "keys", "--clients", "3")
        fed.run("more", "keys", "elsewhere", "--clients", "2")
        assert (fed.finished("keys"), fed.finished("more")) == (0, 0)
        run = one_run(fed, tap, keys=True)
        refused = (tmp_path / "stranger" / "logs" / "supernode.log").read_text()
        assert "code: 2004" in refused and "SuperNode ID" not in refused
        heard = bytes(tap.heard)
    assert len(heard) > 20_000  # client 0 really talked through the tap
    assert parameters(run) not in heard
    for word in (b"safetensors", b"body.1.weight", b"fedavg", b"/v1/fleet"):
        assert word not in heard
    enrolled = [n["client"] for n in journal(run, "enrolled")]
    assert sorted(set(enrolled)) == [0, 1]
    impostor = [n for n in journal(run, "refused") if n["kind"] == "hello"]
    assert impostor and "does not belong to client 1" in impostor[0]["reason"]
    for who in ("stranger", "impostor"):
        assert not list((tmp_path / who).glob("*.safetensors"))
        assert "trained" not in (tmp_path / who / "logs" / "worker.log").read_text()


def test_the_same_tap_hears_everything_without_tls(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    with federation(tmp_path) as fed, tapped(fed) as tap:
        run = one_run(fed, tap, keys=False)
        heard = bytes(tap.heard)
    assert parameters(run) in heard
    assert b"body.1.weight" in heard and b"/v1/fleet" in heard


def test_the_proxy_shows_nothing_but_the_fleet(tmp_path: Path) -> None:
    with federation(tmp_path) as fed:
        fed.run("keys", "keys", "keys", "--clients", "1")
        assert fed.finished("keys") == 0
        fed.server("fedavg", "--clients", "1", "--out", "run", keys=True)
        fed.wait("the proxy", lambda: "listening on" in fed.out("server"))
        trust = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.pem"))
        for path in ("/v1/control/start-run", "/v1/control/register-node", "/docs",
                     "/v1/runtime/acquire-task", "/v1/fleet/../control/list-runs"):  # fmt: skip
            assert status(fed.port, path, trust) == 404, path
        assert status(fed.port, "/health", trust, "GET") in (200, 405)
        # The fleet's own paths need a registered key.
        assert status(fed.port, "/v1/fleet/pull-messages", trust) in (400, 401, 415, 422, 500)


def status(port: int, path: str, trust: ssl.SSLContext, method: str = "POST") -> int:
    url = f"https://127.0.0.1:{port}{path}"
    data = b"" if method == "POST" else None
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20, context=trust) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


ASK = """
trust = ssl.create_default_context(cadata=authority)
for path in ("control/list-runs", "control/start-run", "runtime/acquire-task", "fleet/get-run"):
    url = f"https://127.0.0.1:{port}/v1/{path}"
    head = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    request = urllib.request.Request(url, data=b"", headers=head, method="POST")
    try:
        with opener(urllib.request.HTTPSHandler(context=trust)).open(request, timeout=20) as found:
            print(found.status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@needs_root
def test_another_user_of_the_servers_machine_is_turned_away(tmp_path: Path) -> None:
    """Whoever has ca.pem and an account there reaches the loopback port, and gets nothing."""
    credentials.make_server(tmp_path / "keys", ["localhost", "127.0.0.1"])
    credentials.make_client(tmp_path / "keys", 0)
    keys = credentials.read(tmp_path / "keys")
    children = ChildProcesses(tmp_path / "logs")
    try:
        port, _ = superlink.start_superlink(children, tmp_path, keys)
        first = (
            "import ssl, sys, urllib.error, urllib.request, encodings.idna, http.client\n"
            "opener = urllib.request.build_opener\n"
            f"port, authority = {port}, open({str(keys.ca)!r}).read()\n"
        )
        statuses = {
            who: subprocess.run(
                [sys.executable, "-c", first + become + ASK],
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            ).stdout.split()
            for who, become in (("operator", ""), ("nobody", BECOME_NOBODY))
        }
    finally:
        children.end()
    assert statuses["nobody"] == ["403"] * 4
    assert statuses["operator"][0] == "200"  # otherwise this test could not fail
    assert "403" not in statuses["operator"]


def test_no_connection_leaves_the_machine(tmp_path: Path) -> None:
    """A whole federation in a network namespace that has a loopback interface and nothing else:
    every attempt to reach further, even a name lookup, is counted by the kernel."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    inside = [
        "unshare",
        "--net",
        "--map-root-user",
        sys.executable,
        "-m",
        "tests.deploy.in_network_namespace",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*inside, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=500
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("network namespaces are not allowed here")
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["finished"] == 0, told
    assert told["attempts"] == 0, told
    assert told["control"] > 0, told  # an attempt on purpose is seen
