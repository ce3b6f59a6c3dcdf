"""A package that is installed brings methods, splits, models and metrics, found by name."""

import json
import subprocess
import sys
from copy import copy
from pathlib import Path

import pytest

from idiolect import methods
from idiolect.core import task
from idiolect.data import list_splits
from idiolect.data.splits.base import Split
from idiolect.errors import UserError
from idiolect.models.model import Model
from idiolect.runs import config as settings
from tests.cli.calls import call

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test finds is forgotten after it."""
    for kind in (Split, Model):
        monkeypatch.setattr(kind, "registry", copy(kind.registry))
    monkeypatch.setattr(task, "INSTALLED", {})
    for registry in (methods.REGISTRY, Split.registry, Model.registry):
        monkeypatch.setattr(registry, "_loaded", {})


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, really installed (into a folder of its own, without a network)."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    subprocess.run(["cp", "-r", str(EXAMPLE), str(source)], check=True)  # builds leave files behind
    words = ["pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    where = ["--target", str(place), str(source / "plugin")]
    done = subprocess.run(
        [sys.executable, "-m", *words, *where], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_an_installed_package_is_found_by_name(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed)
    choose = ["--split", "stripes", "--model", "narrow", "--clients", "3", "--rounds", "1"]
    out = tmp_path / "r"
    more = ["--metric", "confidence", "--set", "model.hidden=4", "--out", out, "--json"]
    done = call("run", "halfway", *choose, *more)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["method"] == "halfway"
    assert found["metric"] == {"name": "confidence", "better": "higher"}
    assert 0 < found["accuracy"]["last"]["mean"] < 1
    made = settings.read_yaml(out / "config.yaml")
    assert [made[key]["name"] for key in settings.SECTIONS] == [
        *("halfway", "digits", "stripes", "narrow")
    ]
    assert (made["model"]["hidden"], made["method"]["share"]) == (4, 0.5)


def test_an_installed_package_is_listed_and_checked(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed)
    found = {name: package for name, _, package in methods.REGISTRY.entries() if package}
    assert found == {"halfway": "idiolect-stripes 1.0"}
    assert "halfway" in methods.REGISTRY and "halfway" not in list(methods.REGISTRY)
    assert methods.REGISTRY["halfway_ft"].name == "halfway_ft"
    assert {"stripes": "idiolect-stripes 1.0"}.items() <= {
        one["name"]: one["package"] for one in list_splits()
    }.items()
    listed = json.loads(call("list", "metrics", "confidence", "--json").stdout)
    assert [one["package"] for one in listed] == ["idiolect-stripes 1.0"]
    with pytest.raises(UserError, match=r"method\.share must be at least 0"):
        methods.build({"name": "halfway", "share": -1})
    with pytest.raises(UserError, match="did you mean 'halfway'"):
        methods.build("halfways")


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("bad", "bad = 1", "is no function of outputs and targets"),
        ("bad", "raise OSError('no')", "OSError: no"),
        ("rmse", "def rmse(o, t): return t", "'rmse' is not for classification; use accuracy"),
    ],
)
def test_a_broken_metric_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, told: str
) -> None:
    module = f"brittle_{abs(hash(code))}"
    package(tmp_path, module, f"[idiolect.metrics]\n{name} = {module}:{name}\n", code)
    monkeypatch.syspath_prepend(tmp_path)
    done = call("run", "fedavg", "--metric", name, "--rounds", "1", "--out", tmp_path / "r")
    assert done.exit_code == 2 and told in done.stderr and len(done.stderr.splitlines()) == 1


METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 2\n"


def package(place: Path, name: str, points: str, code: str) -> None:
    info = place / f"{name}-2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format(name=name))
    (info / "entry_points.txt").write_text(points)
    (place / f"{name}.py").write_text(code)


@pytest.mark.parametrize(
    ("point", "code", "told"),
    [
        ("bad = brittle:Bad", "raise OSError('no')", "OSError: no"),
        ("bad = brittle:Bad", "raise SystemExit(3)", "SystemExit: 3"),
        ("bad = brittle:Bad", "Other = 1", "AttributeError"),
        ("bad = brittle:Bad", "Bad = 1", "not a class of the kind that is needed"),
        ("bad = brittle:Bad", "class Bad: pass", "a subclass of idiolect's Method"),
        ("fedavg = brittle:Bad", "Bad = 1", "Idiolect has one of that name"),
    ],
)
def test_a_broken_package_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, code: str, told: str
) -> None:
    package(tmp_path, "brittle", f"[idiolect.methods]\n{point}\n", code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "brittle", raising=False)
    with pytest.warns(UserWarning, match="of package brittle 2 cannot be used") as warned:
        names = [name for name, _, _ in methods.REGISTRY.entries()]
    assert len(warned) == 1 and told in str(warned[0].message) and "fedavg" in names
    if "bad" in point:
        with pytest.raises(UserError, match="method 'bad' of package brittle 2"):
            methods.build("bad")
    assert methods.build("fedavg").name == "fedavg"


@pytest.mark.filterwarnings("default")
def test_a_broken_package_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "fragile", "[idiolect.methods]\nbad = fragile:Bad\n", "raise OSError('no')")
    monkeypatch.syspath_prepend(tmp_path)
    done = call("list", "methods")
    assert done.exit_code == 0 and "fedavg" in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("warning: method 'bad' of package fragile 2")


def test_an_unasked_package_is_not_imported(tmp_path: Path, monkeypatch) -> None:
    code = "import sys; sys.exit('imported')"
    package(tmp_path, "unasked", "[idiolect.methods]\nbad = unasked:Bad\n", code)
    monkeypatch.syspath_prepend(tmp_path)
    assert methods.build("fedavg") and "bad" in methods.REGISTRY
    with pytest.raises(UserError, match=r"unknown method 'worse'; known: .*bad"):
        methods.build("worse")
    assert "unasked" not in sys.modules
