"""A file that is only read runs nothing: own code needs the command line, or a run of one's own."""

import hashlib
import json
import py_compile
import stat
from pathlib import Path

import pytest
import yaml

from idiolect import models
from idiolect.cli import deploy as deploy_cli
from idiolect.core import own_code
from idiolect.deploy import experiment
from idiolect.deploy.client import Client
from idiolect.deploy.messages import Payload
from idiolect.deploy.terms import FederationTerms
from idiolect.errors import UserError
from idiolect.runs import config as settings
from idiolect.runs import seal
from tests.cli.calls import TINY, call
from tests.deploy.local_federation import config, site_data

SMALL = ["--clients", "4", "--rounds", "2", "--set", "split.alpha=0.5"]
NET = """
from pathlib import Path
from torch import nn
Path({mark!r}).touch()
class Net(nn.Sequential):
    def __init__(self, shape, classes, width=4):
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, classes))
def make(shape, classes):
    return Net(shape, classes)
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Is there once the code has run."""
    return tmp_path / "the code ran"


@pytest.fixture
def net(mark: Path) -> Path:
    file = Path("net.py").absolute()
    file.write_text(NET.format(mark=str(mark)))
    return file


def refused(result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def unfinished(out: str) -> Path:
    (Path(out) / "summary.json").unlink()
    return Path(out)


def test_a_config_file_calls_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    call_it = {"name": "subprocess:getoutput", "cmd": f"touch {touched}"}
    Path("c.yaml").write_text(yaml.safe_dump({"model": call_it}))
    allow = "--allow-code subprocess:getoutput"
    for command in (["run", "fedavg"], ["compare", "fedavg", "local"]):
        words = [*command, *SMALL, "--config", "c.yaml", "--out", "r"]
        refused(call(*words), "c.yaml", "subprocess:getoutput", allow)
        # Allowed or not: a function is no network and is not called.
        refused(call(*words, *allow.split()), "not a class", "Module")
    refused(call("run", "fedavg", *SMALL, "--model", "subprocess:getoutput"), "not a class")
    assert not touched.exists() and not Path("r").exists() and not Path("runs").exists()


@pytest.mark.parametrize("how", ["model: '{}'", "model: {{name: '{}'}}"])
def test_a_file_named_in_a_config_needs_permission(net: Path, mark: Path, how: str) -> None:
    Path("c.yaml").write_text(how.format("net.py:Net"))
    words = ["run", "fedavg", *SMALL, "--config", "c.yaml", "--out", "r"]
    refused(call(*words), f"--allow-code {net}:Net")
    refused(call(*words, "--allow-code", "other.py:Net"), "--allow-code")
    assert not mark.exists()
    assert call(*words, "--allow-code", "net.py:Net").exit_code == 0
    assert mark.exists()


@pytest.mark.parametrize("how", [["--model", "net.py:Net"], ["--set", "model.name=net.py:Net"]])
def test_the_command_line_is_permission_and_the_run_remembers(
    net: Path, mark: Path, how: list[str], someone: Path
) -> None:
    done = call("run", "fedavg", *SMALL, *how, "--set", "model.width=6", "--out", "r")
    assert done.exit_code == 0, done.output
    key = someone / ".config/idiolect/seal.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert settings.read_yaml(Path("r/config.yaml"))["model"] == {"name": f"{net}:Net", "width": 6}
    assert call("resume", unfinished("r")).exit_code == 0


def test_the_run_of_a_stranger_runs_nothing(net: Path, mark: Path, someone: Path) -> None:
    """Made with another secret: as good a forgery as a stranger can make."""
    assert call("run", "fedavg", *SMALL, "--model", "net.py:Net", "--out", "r").exit_code == 0
    (someone / ".config/idiolect/seal.key").write_bytes(b"x" * 32)
    mark.unlink()
    for seal_text in (Path("r/seal.json").read_text(), None):
        refused(call("resume", unfinished("r")), "r names code", f"--allow-code {net}:Net")
        if seal_text:
            Path("r/summary.json").touch()
            Path("r/seal.json").unlink()
    assert not mark.exists()
    for command in (["report", "r"], ["report", "r", "--json"], ["report", "r", "-o", "r.html"]):
        assert call(*command).exit_code == 0
    assert not mark.exists()
    assert call("resume", "r", "--allow-code", "net.py:Net").exit_code == 0


def test_permission_is_for_one_run_and_one_text(net: Path, mark: Path) -> None:
    """A seal of one's own does not let other settings or other code through."""
    assert call("run", "fedavg", *SMALL, "--model", "net.py:Net", "--out", "r").exit_code == 0
    mark.unlink()
    own = settings.read_yaml(unfinished("r") / "config.yaml")
    other = {**own, "model": {**own["model"], "width": 9}}
    assert seal.approved(Path("r"), own) and not seal.approved(Path("r"), other)
    sealed = json.loads(Path("r/seal.json").read_text())
    Path("evil.py").write_text(NET.format(mark=str(mark)))
    evil = {**own, "model": {"name": f"{Path('evil.py').absolute()}:Net"}}
    Path("r/config.yaml").write_text(settings.dump(evil))
    refused(call("resume", "r"), "--allow-code", "evil.py")
    code = {"name": evil["model"]["name"], "sha256": own_code.fingerprint(evil["model"]["name"])}
    forged = {**sealed, "settings": evil, "code": code}
    Path("r/seal.json").write_text(json.dumps(forged))
    refused(call("resume", "r"), "--allow-code", "evil.py")
    assert not mark.exists()


def test_changed_code_is_said(net: Path, mark: Path) -> None:
    assert call("run", "fedavg", *SMALL, "--model", "net.py:Net", "--out", "r").exit_code == 0
    unfinished("r")
    mark.unlink()
    net.write_text(net.read_text() + "\n# changed\n")
    refused(call("resume", "r"), "net.py:Net' changed since r was started")
    refused(call("resume", "r", "--allow-code", f"{net}:Net"), "changed since")
    assert not mark.exists()


def test_a_secret_that_others_read_is_no_secret(net: Path, someone: Path) -> None:
    assert call("run", "fedavg", *SMALL, "--model", "net.py:Net", "--out", "r").exit_code == 0
    (someone / ".config/idiolect/seal.key").chmod(0o644)
    refused(call("resume", unfinished("r")), "others can read", "delete it")


def test_without_own_code_no_secret_is_made(someone: Path) -> None:
    assert call("run", "fedavg", *TINY, "--out", "r").exit_code == 0
    assert not (someone / ".config").exists()
    assert json.loads(Path("r/seal.json").read_text())["code"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Net(: pass", "SyntaxError"),
        ("import nothing_of_the_kind", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("Net = 3", "not a class"),
        ("class Net: pass", "subclass of torch's Module"),
        ("Other = 3", "AttributeError"),
        ("\0", "import"),
    ],
)
def test_broken_code_is_one_line(text: str, words: str) -> None:
    Path("broken.py").write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        models.build({"name": "broken.py:Net"}, (8,), 4, allow_code=["broken.py:Net"])
    assert "\n" not in str(caught.value)


def test_a_compiled_copy_is_not_run(net: Path, mark: Path) -> None:
    """`__pycache__` may hold other code than the file that was read and whose hash is kept."""
    evil = Path("evil.py")
    evil.write_text("raise SystemExit('evil')\n".ljust(len(net.read_text()), "#"))
    cached = Path(py_compile.compile(str(evil), cfile="__pycache__/net.cpython-311.pyc") or "")
    assert cached.exists()
    assert models.build({"name": "net.py:Net"}, (1, 8, 8), 4, allow_code=["net.py:Net"])


def test_where_a_module_lies_is_found_without_running_it(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pack_of_nets"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (package / "inner.py").write_text(NET.format(mark=str(mark)))
    monkeypatch.syspath_prepend(tmp_path)
    expected = hashlib.sha256((package / "inner.py").read_bytes()).hexdigest()
    assert own_code.fingerprint("pack_of_nets.inner:Net") == expected
    with pytest.raises(UserError, match=r"--allow-code pack_of_nets\.inner:Net"):
        models.build({"name": "pack_of_nets.inner:Net"}, (1, 8, 8), 4)
    assert not mark.exists()


def test_a_site_runs_its_own_file_and_no_other(net: Path, mark: Path, tmp_path: Path) -> None:
    """The server names a file as it lies there; a site loads the file it was started with."""
    made = {**config("fedavg"), "model": {"name": "/srv/elsewhere/net.py:Net"}}
    told = {k: made[k] for k in ("method", "model", "seed", "dtype")}
    request = Payload({"kind": "fit", "experiment": "e", "version": 0, "config": told})
    for model, words in ((None, "start the client with --model net.py:Net"), ("mlp", "runs mlp")):
        answer = Client(0, site_data(0), tmp_path / "site", model=model).answer(request)
        assert words in answer.meta["refused"]
    assert not mark.exists()
    site = Client(0, site_data(0), tmp_path / "site", model=f"{net}:Net")
    assert site._experiment_of(told).engine is not None and mark.exists()


def test_a_server_passes_its_permission_to_the_process_of_flower(net: Path, tmp_path: Path) -> None:
    """That process gets the run directory and nothing else: the seal in it is the permission."""
    run = tmp_path / "run"
    made = {**config("fedavg"), "model": {"name": f"{net}:Net"}}
    experiment.plan(run, made, FederationTerms("ab" * 16, 2))
    assert seal.approved(run, experiment.read_settings(run)) == {f"{net}:Net"}
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / experiment.FOLDER).mkdir()
    for file in (experiment.TERMS, experiment.SETTINGS):
        text = (run / experiment.FOLDER / file).read_text()
        (stranger / experiment.FOLDER / file).write_text(text.replace("net.py", "evil.py"))
    (stranger / "seal.json").write_text((run / "seal.json").read_text())
    assert seal.approved(stranger, experiment.read_settings(stranger)) == set()
    with pytest.raises(UserError, match=r"--allow-code .*evil\.py:Net"):
        deploy_cli._resumed(stranger, None)
    deploy_cli._resumed(run, None)
