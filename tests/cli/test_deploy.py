"""Mistakes on the command line are one line that names the fix."""

from __future__ import annotations

import socket
from pathlib import Path

import click
import pytest
import typer

from idiolect.cli import deploy as deploy_cli
from idiolect.deploy import processes
from idiolect.errors import UserError


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "needs_flower", lambda: None)


def call(*words: str) -> None:
    typer.main.get_command(deploy_cli.commands).main(list(words), standalone_mode=False)


CLIENT = ("client", "--server", "127.0.0.1:1", "--id", "0", "--data", "d", "--state", "s")


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("server", "fedavg", "--clients", "3"), "give --keys DIR"),
        (("server", "fedavg", "--insecure", "--host", "0.0.0.0"), "loopback interface only"),
        (("server", "--insecure"), "give a method and --clients N"),
        (("server", "fedavgg", "--clients", "3", "--insecure"), "did you mean 'fedavg'"),
        (("server", "fedavg", "--clients", "0", "--insecure"), "at least 1"),
        (("server", "--resume", "nowhere", "--insecure"), "not a run of"),
        (("server", "--resume", "r", "--insecure", "--rounds", "9"), "leave out --rounds"),
        (("server", "--resume", "r", "--insecure", "--clients", "9"), "leave out --clients"),
        (("server", "--resume", "r", "--insecure", "--set", "seed=1"), "leave out --set"),
        (("server", "--resume", "r", "--insecure", "--save-models"), "leave out --save-models"),
        (("server", "fedavg", "--clients", "2", "--insecure", "--set", "loss=m.py:f"),
         "loss is given at every site: idiolect client --loss"),
        (("server", "fedavg", "--clients", "2", "--insecure", "--set", "augment=flip"),
         "augment is given at every site"),
        ((*CLIENT, "--insecure", "--loss", "huber"), "must be file.py:function"),
        ((*CLIENT, "--insecure", "--augment", "flp"), "did you mean 'flip'"),
        (("server", "fedavg", "--clients", "3", "--keys", "nowhere"), "nowhere/ca.pem is missing"),
        (("server", "fedavg", "--clients", "3", "--insecure", "--min-clients", "4"),
         "--min-clients must be at most 3"),
        (CLIENT, "give --ca and --key"),
        ((*CLIENT, "--insecure", "--ca", "x"), "give --ca and --key"),
        ((*CLIENT, "--ca", "x", "--key", "y"), "x does not exist"),
        ((*CLIENT, "--insecure", "--worker", "other"), "idiolect or flower"),
        ((*CLIENT, "--insecure", "--server", "localhost"), "must be HOST:PORT"),
        ((*CLIENT, "--insecure", "--server", "localhost:0"), "must be HOST:PORT"),
        ((*CLIENT, "--insecure", "--server", "localhost:http"), "must be HOST:PORT"),
        (
            ("client", "--server", "example.org:1", "--id", "0", "--data", "d", "--state", "s",
             "--insecure"),
            "server on this machine",
        ),
    ],
)  # fmt: skip
def test_mistakes_name_the_fix(
    words: tuple[str, ...], fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        call(*words)
    assert fix in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())  # the mended command can be given again


def test_where_nobody_can_listen_is_said_before_a_run_is_written(tmp_path: Path) -> None:
    command = ("server", "fedavg", "--clients", "3", "--insecure", "--out", str(tmp_path / "run"))
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = str(somebody.getsockname()[1])
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: .* --port"):
            call(*command, "--port", port)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [(*CLIENT, "--insecure", "--id", "-1"), ("keys", "k", "--clients", "-2"),
     ("keys", "k", "--client", "-1")],
)  # fmt: skip
def test_no_client_has_a_negative_number(words: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter, match="range"):
        call(*words)


def test_a_server_says_what_a_settings_file_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("method: {name: fedavg, lr: 0.1}\naugment: flip\n")
    with pytest.raises(UserError, match="augment is given at every site"):
        call("server", "fedper", "--clients", "2", "--insecure", "--config", "mine.yaml")
    assert "left out for fedper: lr" in capsys.readouterr().err


def test_without_flower_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"idiolect\[deploy\]"):
        call("server", "fedavg", "--clients", "3", "--insecure")


def test_a_planned_run_is_not_overwritten(tmp_path: Path) -> None:
    from idiolect.deploy import experiment

    given = dict.fromkeys(("model", "rounds", "seed", "participation", "dtype"))
    given |= {"eval_every": None, "init": None}
    given |= {"minimum": 0, "arrivals": 2, "window": 5.0, "timeout": 9.0, "patience": 8.0}
    given |= {"repeat": None}
    run = experiment.plan(*deploy_cli._planned("fedas", 3, given, None, [], tmp_path / "run"))
    written = experiment.read_terms(run)
    assert (written.clients, written.arrivals, written.window) == (3, 2, 5.0)
    assert len(written.experiment) == 32
    with pytest.raises(UserError, match="--resume"):
        deploy_cli._planned("fedas", 3, given, None, [], tmp_path / "run")


def test_a_run_that_goes_on_may_wait_for_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server says that waited in vain: start the others or lower --min-clients."""
    from idiolect.deploy import experiment, run_server

    seen: list[Path] = []
    monkeypatch.setattr(run_server, "run_server", lambda run, *_: seen.append(run))
    monkeypatch.setattr(deploy_cli, "show", lambda *_: None)
    begun = ("server", "fedavg", "--insecure", "--port", "0")
    call(*begun, "--clients", "3", "--patience", "9", "--out", str(tmp_path / "run"))
    again = ("server", "--insecure", "--port", "0", "--resume", str(tmp_path / "run"))
    call(*again, "--min-clients", "2")
    terms = experiment.read_terms(tmp_path / "run")
    assert (terms.clients, terms.minimum, terms.patience) == (3, 2, 9.0)
    with pytest.raises(UserError, match="--min-clients must be at most 3"):
        call(*again, "--min-clients", "4")
    assert experiment.read_terms(tmp_path / "run") == terms and len(seen) == 2
