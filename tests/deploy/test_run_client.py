"""A client starts its processes again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from idiolect.deploy import processes, run_client


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
