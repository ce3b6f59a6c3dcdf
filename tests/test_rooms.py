"""Who may import whom: methods know only the contract, data flows one way, nothing is pickled."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import idiolect

SRC = Path(idiolect.__file__).parent
FILES = sorted(SRC.rglob("*.py"))
METHODS = sorted((SRC / "methods").rglob("[!_]*.py"))

# From the ground up; a room imports from itself and from those before it.
ROOMS = (
    "errors",
    "core",
    "methods",
    "data",
    "models",
    "engine",
    "simulation",
    "runs",
    "papers",
    "report",
    "ui",
    "deploy",
    "conformance",
    "bench",
    "cli",
)


def name(file: Path) -> str:
    return str(file.relative_to(SRC))


def room(file: Path) -> str:
    """First part of the path under the package, e.g. `engine` for engine/loop.py."""
    return file.relative_to(SRC).parts[0].removesuffix(".py")


def imports(node: ast.AST) -> Iterator[str]:
    """Dotted names imported anywhere in the file, also inside functions, but not for types only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imports(child)


def rooms_imported(file: Path) -> set[str]:
    found = (n.split(".") for n in imports(ast.parse(file.read_text())))
    return {parts[1] for parts in found if parts[0] == "idiolect" and len(parts) > 1}


@pytest.mark.parametrize("file", METHODS, ids=lambda f: f.stem)
def test_methods_know_only_the_contract(file: Path) -> None:
    allowed = (
        *("idiolect.core.method.", "idiolect.core.local.", "idiolect.core.net."),
        *("idiolect.core.tree", "idiolect.methods.", "idiolect.errors."),
    )
    plain = {"__future__", "abc", "collections", "dataclasses", "functools", "itertools", "math"}
    plain |= {"torch", "typing", "types", "enum", "operator"}
    for found in imports(ast.parse(file.read_text())):
        known = found.startswith(allowed) or found.split(".")[0] in plain
        assert known, f"{file.name} imports {found}"


FACTORIES = {"tensor", "as_tensor", "zeros", "ones", "full", "empty", "eye", "arange", "linspace"}
FACTORIES |= {"rand", "randn", "randint", "randperm"}


def device_words(text: ast.AST) -> Iterator[str]:
    """Where code names a device, moves a tensor, or makes one that is not beside an existing one:
    `x.to(y.dtype)` is allowed, and `torch.tensor(...)` inside `tree.beside(...)`."""
    beside = {
        inner
        for node in ast.walk(text)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tree.beside"
        for inner in ast.walk(node)
    }
    for node in ast.walk(text):
        word = getattr(node, "id", getattr(node, "attr", getattr(node, "arg", None)))
        if isinstance(word, str) and word in ("device", "cpu", "cuda", "pin_memory", "type_as"):
            yield word
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        call, whole = ast.unparse(node.func), ast.unparse(node)
        to_dtype = node.args[:1] and ast.unparse(node).endswith(".dtype)")
        if node.func.attr == "to" and not (to_dtype and len(node.args) == 1):
            yield whole
        if call.removeprefix("torch.") in FACTORIES and node not in beside:
            yield whole


@pytest.mark.parametrize("file", METHODS, ids=lambda f: f.stem)
def test_methods_know_no_device(file: Path) -> None:
    """What the engine hands out lies where it computes; what a method makes lies beside it."""
    assert list(device_words(ast.parse(file.read_text()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "x.cpu()",
        "x.to('cpu')",
        "x.to(y)",
        "x.to(y.device)",
        "x.to(y.dtype, copy=True)",
        "f(device=y)",
        "x.cuda()",
        "x.type_as(y)",
        "torch.tensor(ids)",
        "torch.eye(3)",
        "torch.arange(3) < x",
    ],
)
def test_a_device_is_found(code: str) -> None:
    assert list(device_words(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "x.to(y.dtype)",
        "tree.beside(torch.rand(2, 2), x)",
        "x.new_zeros(3)",
        "torch.zeros_like(x)",
        "torch.full_like(x, 1)",
    ],
)
def test_what_needs_no_device(code: str) -> None:
    assert list(device_words(ast.parse(code))) == []


def test_nothing_imports_upwards() -> None:
    wrong = [
        f"{name(file)} imports {other}"
        for file in FILES
        if room(file) in ROOMS
        for other in rooms_imported(file) & set(ROOMS)
        if ROOMS.index(other) > ROOMS.index(room(file))
    ]
    assert not wrong


def test_every_room_is_listed() -> None:
    """Packages are rooms; beside them lie only the public face and the errors."""
    assert {p.parent.name for p in SRC.glob("*/__init__.py")} == set(ROOMS) - {"errors"}
    assert {p.name for p in SRC.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}


MAX_LINES_OF_A_FILE, MAX_LINES_OF_A_FUNCTION = 350, 60


def test_a_file_fits_in_one_head() -> None:
    long = {name(file): len(file.read_text().splitlines()) for file in FILES}
    assert not {file: n for file, n in long.items() if n > MAX_LINES_OF_A_FILE}


def test_a_function_fits_on_one_screen() -> None:
    long = [
        f"{name(file)}: {node.name}, {node.end_lineno - node.lineno + 1} lines"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
        if node.end_lineno - node.lineno >= MAX_LINES_OF_A_FUNCTION
    ]
    assert not long


def test_a_name_means_one_thing() -> None:
    """No two modules and no two public classes share a name, apart from what says so here."""
    modules = [f.stem for f in FILES if f.stem != "__init__" and f.parent != SRC]
    # The method that trains alone and a client's handle; `build` makes an object from settings;
    # `base` is what the other files of its folder share; commands are called what they are about.
    allowed = {"local", "build", "base", "pool", "compare", "report", "data", "deploy", "bench"}
    allowed |= {"recipe"}
    assert not {m for m in modules if modules.count(m) > 1} - allowed
    classes = [
        node.name
        for file in FILES
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert not {c for c in classes if classes.count(c) > 1}


def test_nothing_is_pickled() -> None:
    """Neither read nor written: data and checkpoints are plain arrays."""
    never = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for file in FILES:
        text = ast.parse(file.read_text())
        assert not never & {n.split(".")[0] for n in imports(text)}, name(file)
        for node in ast.walk(text):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = f"{node.value.id}.{node.attr}"
                assert called not in ("torch.load", "torch.save"), f"{name(file)} uses {called}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                safe = isinstance(node.value, ast.Constant) and node.value.value is False
                assert safe, f"{name(file)} allows pickled arrays"


def test_simulation_needs_no_extras() -> None:
    """The path of a simulation imports without reports, deployment, dashboard or hub."""
    extras = ["plotly", "flwr", "starlette", "uvicorn", "huggingface_hub", "mlflow", "pandas"]
    program = (
        "import sys, idiolect.simulation.simulate, idiolect.runs.execute\n"
        f"print([m for m in {extras} if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


def test_the_rules_can_fail(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from idiolect.core.net import Net\n"
        "def f():\n    from idiolect.runs import execute\n    import idiolect.engine.loop\n"
    )
    assert rooms_imported(file) == {"runs", "engine"}
