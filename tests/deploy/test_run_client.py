"""A client starts its processes again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from idiolect.deploy import processes, run_client
from idiolect.errors import UserError
from tests.deploy.federation_processes import needs_flower


def test_a_supernode_without_a_port_starts_anew_with_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker knows the port too, so both are started again, by what chooses it."""
    monkeypatch.setattr(run_client.signal, "signal", lambda *_: None)
    children, workers = processes.ChildProcesses(tmp_path), []

    def start() -> None:
        if workers:
            assert workers[0].poll() is not None  # the first one has been ended
            raise KeyboardInterrupt
        python = Path(sys.executable).name
        children.start("worker", [python, "-c", "import time; time.sleep(600)"], {})
        workers.append(children.children["worker"])
        words = f"raise SystemExit('[Errno 98] bind: {processes.PORT_TAKEN}')"
        children.start("supernode", [python, "-c", words], {})

    with pytest.raises(KeyboardInterrupt):
        run_client.run_client(children, start)
    assert capsys.readouterr().err.count("port was taken") == 1


def program(children: processes.ChildProcesses, code: str) -> Callable[[], None]:
    command = [Path(sys.executable).name, "-c", code]
    return lambda: children.start("worker", command, {})


def test_worker_that_never_gets_ready_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_client.signal, "signal", lambda *_: None)
    monkeypatch.setattr(run_client, "SECONDS_BEFORE_RESTART", 0.0)
    children = processes.ChildProcesses(tmp_path)
    with pytest.raises(UserError, match=r"ended 4 times before it was ready, .*code 1: no memory"):
        run_client.run_client(children, program(children, "raise SystemExit('no memory')"))


def test_warnings_of_the_worker_reach_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Among them what the server says of the site's answers."""
    monkeypatch.setattr(run_client.signal, "signal", lambda *_: None)
    children = processes.ChildProcesses(tmp_path)
    code = (
        "print('10:00 INFO round 1: trained')\n"
        "print('10:01 WARNING the server says: your fit was refused')\n"
        f"raise SystemExit({processes.BAD_SETTINGS})"
    )
    with pytest.raises(UserError):
        run_client.run_client(children, program(children, code))
    shown = capsys.readouterr().err
    assert shown.splitlines() == ["worker: the server says: your fit was refused"]


def test_a_message_that_was_cut_off_has_both_processes_start_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server died while it sent it: the worker would wait for the rest for an hour."""
    monkeypatch.setattr(run_client.signal, "signal", lambda *_: None)
    children, begun = processes.ChildProcesses(tmp_path), []

    def start() -> None:
        if begun:
            assert all(child.poll() is not None for child in begun)
            raise KeyboardInterrupt
        python = Path(sys.executable).name
        children.start("worker", [python, "-c", "import time; time.sleep(600)"], {})
        # What SuperNode 1.41.0 writes, in full.
        words = "Run ID 59 is not in `RUNNING` status. Ignoring message a2ec."
        code = f"import time; print({words!r}, flush=True); time.sleep(600)"
        children.start("supernode", [python, "-c", code], {})
        begun.extend(children.children.values())

    with pytest.raises(KeyboardInterrupt):
        run_client.run_client(children, start)
    assert capsys.readouterr().err.count("start anew") == 1


@needs_flower
def test_what_a_cut_off_message_is_told_by() -> None:
    """The words are Flower's own."""
    from flwr.supernode import start_client_internal

    told = Path(start_client_internal.__file__).read_text(encoding="utf-8")
    assert '"Run ID %s is not in `RUNNING` status. Ignoring message %s."' in told


@needs_flower
def test_client_with_damaged_data_ends_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ward.npz").write_bytes(b"PK" + bytes(400))
    settings = {"client": 0, "data": str(tmp_path / "ward.npz"), "state": str(tmp_path)}
    children = processes.ChildProcesses(tmp_path / "logs")
    env = {**os.environ, "IDIOLECT_SITE": json.dumps(settings)}
    command = [Path(sys.executable).name, "-m", "idiolect.deploy.worker"]
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(UserError, match=r"cannot read .*npz"),
    ):
        patch.setattr(run_client.signal, "signal", lambda *_: None)
        run_client.run_client(children, lambda: children.start("worker", command, env))
