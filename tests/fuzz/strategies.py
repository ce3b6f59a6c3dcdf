"""The cases: command lines, configs, run directories, data files, client files, federations."""

import json
import re
from collections.abc import Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

from tests.fuzz.cases import Case
from tests.fuzz.mutations import (
    PLAIN,
    STRANGE_NUMBER,
    STRANGE_TEXT,
    TEXT,
    VALUE,
    Draw,
    put,
    spoiled_bytes,
    spoiled_json,
    spoiled_lines,
    spoiled_structure,
    spoiled_table,
)
from tests.fuzz.own_data import own_files, task_federations
from tests.fuzz.own_plugins import own_plugins
from tests.fuzz.places import DATASETS, ROWS, sound

METHODS = ("local", "fedavg", "fedper", "feddwa", "ditto", "fedprox")
# Settings that make a sound run long, not wrong: they are never made large here.
LONG = ("epochs", "steps", "tries", "rounds", "hidden", "clients", "layers", "width", "window")
KEYS = (
    *("method.lr", "method.batch_size", "method.epochs", "split.alpha", "split.clients", "seed"),
    *("split.min_size", "split.val_share", "split.unseen", "model.hidden", "model.name", "rounds"),
    *("data.rows", "data.normalize", "data.name", "participation", "participation.rate", "device"),
    *("stragglers", "stragglers.periods", "clock", "clock.window", "schedule", "engine", "dtype"),
    *(
        "eval_every",
        "protocol",
        "init",
        "save_models",
        "checkpoint_every",
        "keep",
        "nothing",
        "a.b",
    ),
)
OPTIONS = (
    *("--data", "--split", "--clients", "--rounds", "--seed", "--participation", "--stragglers"),
    *("--schedule", "--engine", "--device", "--dtype", "--keep", "--eval-every", "--protocol"),
    *("--init", "--save-models", "--checkpoint-every", "--config", "--set", "--out", "--nothing"),
)
SHORT = {"split.clients": 3, "split.alpha": 0.5, "rounds": 1, "model.name": "linear"}
PATHS = ("--config", "--init", "--schedule", "--out")
FILES = ("init", "init/start.safetensors", "/dev/null", "/dev/zero", "none", "", ".", "init/x")
OTHERS = {
    "list": ("methods", "datasets", "splits", "models", "recipes", "--json"),
    "data": ("list", "get", "inspect", "digits", "mnist", "--split", "iid", "--set", "--json"),
    "report": ("init", ".", "-o", "--format", "md", "csv", "--json", "none", "/dev/null"),
    "resume": ("init", ".", "none", "/dev/null", "--json", "--from-start"),
    "status": ("init", ".", "none", "/dev/null", "", "--json"),
}
# Always a mistake, whatever else is said.
BAD_SETS = (
    *("rounds=0", "rounds=-3", "rounds=1000000000", "rounds=x", "rounds=1.5", "rounds=null2"),
    *("seed=-1", "seed=a", "method.lr=fast", "method.lr=.nan", "method.lr=.inf", "method.lr=-.inf"),
    *(
        "method.lr=2024-01-01",
        "method.lr=2024-13-45",
        "method.lr=!!int x",
        "method.lr=[1",
        "split=3",
    ),
    *("method.lrr=1", "split.alpha=0", "split.alpha=[]", "model=3", "data.rows=[1]", "a=1", "=1"),
    *(
        "method.lr=!!python/name:os.system",
        "method.lr={a: 1}",
        "split.clients=0",
        "rounds",
        "seed=1:0",
    ),
    *(
        "model.name=''",
        "split.clients=1000000000",
        "checkpoint_every=0",
        "eval_every=0.5",
        "clock=7",
    ),
    *(
        "participation=2",
        "participation.rate=0",
        "stragglers=-1",
        "stragglers.periods=[a]",
        "init=/no",
    ),
    *("method.lr=*a", "method.lr=1e400", "method.batch_size=1e3x", "dtype=float"),
)


@st.composite
def texts(draw: Draw, key: str) -> str:
    """A value for a setting; a large number only where that is refused, or no work."""
    last = key.rpartition(".")[2].lstrip("-").replace("-", "_")
    if last in LONG:
        kinds = [st.integers(-3, 3).map(str), TEXT.filter(lambda t: not t.strip("+-_. ").isdigit())]
        if last in ("rounds", "clients"):
            kinds.append(st.sampled_from(["1000000000", "99999999999999999999"]))
        return draw(st.one_of(kinds))
    return draw(st.one_of(TEXT, STRANGE_NUMBER.map(str), st.integers(-2, 3).map(str)))


@st.composite
def command_lines(draw: Draw) -> Case:
    """A short run with a few options that are made up."""
    command = draw(st.sampled_from(["run"] * 8 + ["compare"] * 3 + [*OTHERS]))
    if command in OTHERS:
        known = st.sampled_from(OTHERS[command])
        words = draw(st.lists(st.one_of(known, known, TEXT), max_size=4))
        return Case("command", (command, *map(_word, words)))
    name = draw(st.sampled_from(METHODS))
    if draw(st.integers(0, 5)) == 0:
        return Case("command", (command, name, *_base(()), "--out", "r"), bad=False)
    if draw(st.booleans()):
        given = draw(st.sampled_from(BAD_SETS))
        words = (*_base((given,)), "--out", "r", "--set", given)
        return Case("command", (command, name, *words), bad=True)
    given = []
    for _ in range(draw(st.integers(1, 3))):
        option = draw(st.sampled_from((*OPTIONS, "--set", "--set", "--set")))
        if option == "--set":
            key = draw(st.sampled_from(KEYS))
            given += ["--set", f"{key}={draw(texts(key))}"]
        elif option in PATHS:
            given += [option, draw(st.one_of(st.sampled_from(FILES), TEXT))]
        else:
            given += [option, draw(texts(option))]
    name = draw(st.one_of(st.just(name), st.just(name), TEXT))
    return Case("command", (command, _word(name), *_base(given), *map(_word, given)))


def _base(given: Sequence[str]) -> list[str]:
    """The options of a short run, less those that are given: nothing may be said twice."""
    words: list[str] = []
    for key, value in SHORT.items():
        section, _, last = key.partition(".")
        said = {f"--{section}", f"--{last}"} & set(given)
        if not said and not any(one.startswith((f"{section}=", f"{key}=")) for one in given):
            words += ["--set", f"{key}={value}"]
    return words


def _word(text: str) -> str:
    """An argument as the system can hand it over."""
    text = text.replace("\x00", "")
    return text.encode("utf-8", "replace").decode("utf-8")


@st.composite
def configs(draw: Draw) -> Case:
    """A YAML file: structure, text or bytes spoiled."""
    whole = yaml.safe_load((sound() / "run/config.yaml").read_text())
    how = draw(st.sampled_from(["structure", "structure", "text", "bytes", "bad", "good"]))
    if how == "good":
        return _with_config(yaml.safe_dump(whole).encode(), bad=False)
    if how == "bad":
        return _with_config(draw(st.sampled_from(BAD_YAML)), bad=True)
    if how == "structure":
        made, path, gone = draw(spoiled_structure(whole))
        if not gone and path and _long(path, made):
            made = put(made, path, "x")
        return _with_config(yaml.safe_dump(made, allow_unicode=True).encode("utf-8", "replace"))
    text = yaml.safe_dump(whole)
    if how == "text":
        lines = text.splitlines()
        at = draw(st.integers(0, len(lines) - 1))
        lines[at] = lines[at].partition(":")[0] + ": " + draw(STRANGE_TEXT)
        return _with_config("\n".join(lines).encode("utf-8", "replace"))
    return _with_config(_bounded(draw(spoiled_bytes(text.encode()))))


def _with_config(content: bytes, bad: bool | None = None) -> Case:
    words = ("run", "feddwa", "--config", "c.yaml", "--out", "r")
    if bad is None and not re.search(rb"^rounds: *\d", content, re.MULTILINE):
        words += ("--rounds", "1")  # without any, it runs as long as the paper's: work, no mistake
    return Case("command", words, {"c.yaml": content}, bad=bad)


def _long(path: tuple[Any, ...], made: Any) -> bool:
    for key in path:
        made = made[key]
    large = isinstance(made, int | float) and not isinstance(made, bool) and made > 50
    return str(path[-1]) in LONG and large


def _bounded(content: bytes) -> bytes:
    """Spoiled bytes may join digits into a long run: that is work, not a mistake."""
    found = yaml_numbers(content)
    return b"rounds: x" if any(n > 50 for n in found) else content


def yaml_numbers(content: bytes) -> list[int]:
    keys = "|".join(LONG).encode()
    return [int(n) for n in re.findall(rb"(?:" + keys + rb")\S*: *(\d+)", content)]


# Where a file should be: nothing, something else, or a link to what has no end.
NO_FILE = st.sampled_from([None, "pipe:", "folder:", "link:/dev/zero", "link:/none", "link:."])
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
BAD_YAML: tuple[bytes, ...] = (
    LAUGHS.encode(),
    b"rounds: &r 3\nseed: *r\n",
    b"seed: 1\nseed: 2\n",
    b"rounds: .nan\n",
    b"rounds: 010\nmethod: {lr: 010}\n: :",
    b"rounds: 1000000000\n",
    b"[" * 5000,
    b"{a: " * 3000,
    b"\xff\xfe\x00",
    b"",
    b"- 1\n- 2\n",
    b"method: !!python/object/apply:os.system ['true']\n",
    b"seed: 2024-01-01\n",
    b"method: [fedavg]\n",
    b"split: {name: 3}\n",
    b"model: {name: [a]}\n",
    b"1: 2\n",
    b"null: 3\n",
    b"? [a]\n: b\n",
    b"rounds: '<script>'\n",
)


@st.composite
def run_directories(draw: Draw) -> Case:
    """A run with one file spoiled, looked at, reported or resumed."""
    which = draw(st.sampled_from(["run", "unfinished"]))
    form = draw(st.sampled_from(["terminal", "md", "csv", "latex", "html"]))
    words: tuple[str, ...] = ("report", which, "--format", form)
    words = draw(
        st.sampled_from(
            [
                *(words, words, words, ("resume", which), ("report", which, "--json")),
                *(
                    ("report", which, "--target", "50"),
                    ("status", which),
                    ("status", ".", "--json"),
                ),
            ]
        )
    )
    base = sound() / which
    spoilers: dict[str, Any] = {
        "config.yaml": None,
        "env.json": spoiled_json,
        "split.json": spoiled_json,
        "events.jsonl": spoiled_lines,
        "clients.parquet": spoiled_table,
    }
    if which == "run":
        spoilers["summary.json"] = spoiled_json
    inside = sorted(str(f.relative_to(base)) for f in base.rglob("*") if f.is_file())
    name = draw(st.sampled_from([*spoilers, *spoilers, *(n for n in inside if n != ".lock")]))
    content = (base / name).read_bytes()
    if draw(st.integers(0, 9)) == 0:
        return Case("run", words, {f"{which}/{name}": draw(NO_FILE)})
    if draw(st.booleans()) or name not in spoilers:
        made = draw(spoiled_bytes(content))
    elif name == "config.yaml":
        structure, _, _ = draw(spoiled_structure(yaml.safe_load(content)))
        made = yaml.safe_dump(structure, allow_unicode=True).encode("utf-8", "replace")
    else:
        made = draw(spoilers[name](content))
    if name == "config.yaml":
        made = _bounded(made)
    return Case("run", words, {f"{which}/{name}": made}, bad=_bad_run(name, made, words))


def _bad_run(name: str, made: bytes, words: tuple[str, ...]) -> bool | None:
    """What no reader may accept: a file that must be JSON with keys, and is not."""
    if words[0] != "report" or name not in ("summary.json", "env.json"):
        return None
    try:
        loaded = json.loads(made)
    except (ValueError, RecursionError):
        return True
    if not isinstance(loaded, dict):
        return True
    needed = ("rounds", "accuracy", "clients", "bytes_up", "bytes_down", "seconds", "diverged")
    lacks = any(key not in loaded for key in needed)
    return True if name == "summary.json" and lacks else None


@st.composite
def data_files(draw: Draw) -> Case:
    """A dataset with one file spoiled."""
    name = draw(st.sampled_from(DATASETS))
    base = sound() / "data"
    split = "natural" if name == "femnist" else "iid"
    rows = [ROWS[0], 0 if name == "omniglot" else ROWS[1]]
    words = ("data", "inspect", name, "--split", split, "--set", "split.clients=2")
    words += () if name == "femnist" else ("--set", f"data.rows={rows}")
    inside = sorted(str(f.relative_to(base)) for f in base.rglob(f"{name}*") if f.is_file())
    inside += sorted(str(f.relative_to(base)) for f in (base / name).rglob("*") if f.is_file())
    file = draw(st.sampled_from(inside))
    content = (base / file).read_bytes()
    if draw(st.integers(0, 9)) == 0:
        return Case("data", words, {f"data/{file}": draw(NO_FILE)})
    if file.endswith(".parquet") and draw(st.booleans()):
        return Case("data", words, {f"data/{file}": draw(spoiled_table(content))})
    cut = draw(st.integers(0, 3)) == 0 and file.endswith((".bin", "-ubyte"))
    made = content[:-1] if cut else draw(spoiled_bytes(content))
    return Case("data", words, {f"data/{file}": made}, bad=True if cut else None)


@st.composite
def client_files(draw: Draw) -> Case:
    """A site's own file, spoiled as bytes or as arrays."""
    base = sound() / "client"
    classes = draw(st.sampled_from([None, 3, ["a", "b", "c"]]))
    if draw(st.booleans()):
        content = draw(spoiled_bytes((base / "site.npz").read_bytes()))
        return Case("client", ("client/site.npz",), {"client/site.npz": content}, classes)
    name = draw(st.sampled_from(["x_train", "y_train", "x_test", "y_test"]))
    content = draw(spoiled_bytes((base / f"site/{name}.npy").read_bytes()))
    removed = draw(st.integers(0, 5)) == 0
    files = {f"client/site/{name}.npy": draw(NO_FILE) if removed else content}
    return Case("client", ("client/site",), files, classes, bad=True if removed else None)


NO_NUMBER = ("nan", "inf", "-inf", "1e300", "1e39")


@st.composite
def federations(draw: Draw) -> Case:
    """Odd arrays, labels, options, given to the library."""
    width = draw(st.integers(1, 3))
    dtype = draw(st.sampled_from(["float32", "float64", "uint8", "float16", "int16"]))

    def client() -> dict[str, Any]:
        n, m = draw(st.integers(1, 5)), draw(st.integers(1, 3))
        made = {}
        for part, size in (("train", n), ("test", m)):
            made[f"x_{part}"] = {"shape": [size, width], "dtype": dtype, "seed": size}
            made[f"y_{part}"] = {"shape": [size], "dtype": "int64", "seed": size + 1}
        return made

    clients: list[Any] = [client() for _ in range(draw(st.integers(1, 4)))]
    spec: dict[str, Any] = {"clients": clients, "options": {}, "simulate": {}}
    spec["method"] = draw(st.sampled_from(METHODS))
    bad = None
    for _ in range(draw(st.integers(0, 2))):
        change = draw(st.sampled_from(CHANGES))
        bad = change(draw, spec) or bad
    arrays = [a for c in spec["clients"] if isinstance(c, dict) for a in c.values()]
    bad = any(map(_is_bad_array, arrays)) or bad
    return Case("federation", spec=spec, bad=bad)


def _is_bad_array(spec: Any) -> bool:
    """Whether an array that was changed, perhaps twice, is surely refused."""
    if not isinstance(spec, dict) or "dtype" not in spec:
        return False
    if spec["dtype"] in ("complex64", "O", "datetime64[s]"):
        return True
    if 0 in spec["shape"]:
        return False
    floating = spec["dtype"] in ("float32", "float64", "float16")
    hidden = spec.get("masked") and not spec.get("tensor") and spec["dtype"] != "U1"
    return bool(hidden or (floating and spec.get("fill") in NO_NUMBER))


def _array_change(draw: Draw, spec: dict[str, Any]) -> bool | None:
    client = draw(st.sampled_from(spec["clients"]))
    if not isinstance(client, dict):
        return None
    key = draw(st.sampled_from(sorted(client)))
    kinds = ("dtype", "fill", "shape", "masked", "tensor", "gone", "other")
    kind = draw(st.sampled_from(kinds))
    if kind == "gone":
        del client[key]
        return True if key[2:] != "val" else None
    if not isinstance(client[key], dict):
        return None
    if kind == "other":
        client[key] = draw(VALUE)
        return None
    if kind == "dtype":
        names = [
            "float64",
            "complex64",
            "U1",
            "O",
            "bool",
            "uint64",
            "datetime64[s]",
            "int8",
            ">f4",
        ]
        client[key]["dtype"] = draw(st.sampled_from(names))
    elif kind == "fill":
        fill = draw(st.sampled_from([*NO_NUMBER, "-1", "1000000000000", "0.5", "1e-320"]))
        client[key] |= {"fill": fill, "at": draw(st.integers(0, 9))}
    elif kind == "shape":
        client[key]["shape"] = draw(st.lists(st.integers(0, 4), max_size=4))
    else:
        client[key][kind] = True
    return None


def _option_change(draw: Draw, spec: dict[str, Any]) -> bool | None:
    key = draw(st.sampled_from(["classes", "mean", "std", "names", "unseen"]))
    spec["options"][key] = draw(VALUE)
    return None


def _setting_change(draw: Draw, spec: dict[str, Any]) -> bool | None:
    keys = ["seed", "participation", "stragglers", "clock", "schedule", "engine", "device", "dtype"]
    keys += ["keep", "eval_every", "protocol", "init", "save_models", "nothing"]
    key = draw(st.sampled_from(keys))
    spec["simulate"][key] = draw(VALUE)
    return True if key == "nothing" else None


def _client_change(draw: Draw, spec: dict[str, Any]) -> bool | None:
    spec["clients"].append(draw(PLAIN))
    return True


CHANGES = (
    _array_change,
    _array_change,
    _array_change,
    _option_change,
    _setting_change,
    _client_change,
)
EVERYTHING = {
    "command lines": command_lines(),
    "configs": configs(),
    "run directories": run_directories(),
    "data files": data_files(),
    "client files": client_files(),
    "federations": federations(),
    "own data": own_files(),
    "tasks": task_federations(),
    "plug-ins": own_plugins(),
}
