"""The small parts: messages, the client's disk, its own data, the ledger's rules, credentials."""

from __future__ import annotations

import importlib.util
import json
import ssl
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect.deploy import credentials
from idiolect.deploy import messages as wire
from idiolect.deploy import validate as check
from idiolect.deploy.client_data import label_list, load_data, read_classes
from idiolect.deploy.client_state import Memory, Remembered, Stage
from idiolect.deploy.dispatch import Terms
from idiolect.deploy.messages import Letter, Malformed
from idiolect.errors import UserError
from tests.deploy.local_federation import EXPERIMENT, LocalPost, arrays, config, hub, sites

needs_cryptography = pytest.mark.skipif(
    importlib.util.find_spec("cryptography") is None, reason="comes with idiolect[deploy]"
)


# --- messages ---


def test_letter_survives_the_wire() -> None:
    record = {"up": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, "none": {}}
    letter = Letter({"kind": "fit", "x": 1.5}, record)
    back = wire.unpack(*wire.pack(letter), limit=10_000)
    assert back.meta == letter.meta
    assert torch.equal(back.record["up"]["w"], record["up"]["w"])
    assert back.record["up"]["n"].dtype == torch.int64 and back.record["none"] == {}


@pytest.mark.parametrize(
    ("text", "block", "words"),
    [
        ("{}", b"x" * 101, "101 bytes, at most 100"),
        ("[1]", b"", "not a JSON object"),
        ('{"a": NaN}', b"", "not JSON"),
        ("{", b"", "not JSON"),
        ("{}", b"\x80\x04K\x01.", "not a safetensors block"),
        ("{}", b"\xff" * 50, "not a safetensors block"),
        ('"' + "a" * (1 << 20) + '"', b"", "header of"),
    ],
)
def test_what_is_no_letter_is_malformed(text: str, block: bytes, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        wire.unpack(text, block, limit=100)


def test_contradicting_names_are_malformed() -> None:
    from safetensors.torch import save

    block = save({"a": torch.zeros(1), "a/b": torch.zeros(1)})
    with pytest.raises(Malformed, match="contradict"):
        wire.unpack("{}", block, limit=10_000)


def test_size_allows_what_is_expected() -> None:
    record = {"up": {f"layer.{i}.weight": torch.zeros(7) for i in range(50)}}
    assert len(wire.pack(Letter({}, record))[1]) <= wire.size(record)


# --- the client's disk ---


def test_memory_keeps_state_and_answer_together(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    assert memory.load(EXPERIMENT) is None
    fitted = Stage(3, {"head": {"w": torch.ones(1, 2)}}, {"g": torch.zeros(1)}, {"samples": 5})
    memory.commit(EXPERIMENT, Remembered(7, fitted))
    found = memory.load(EXPERIMENT)
    assert found is not None and (found.client, found.fitted.version) == (7, 3)
    assert found.fitted.answer == {"samples": 5} and found.rejoined is None
    assert torch.equal(found.mine["head"]["w"], torch.ones(1, 2))
    found.rejoined = Stage(5, {"head": {"w": torch.zeros(1, 2)}})
    memory.commit(EXPERIMENT, found)
    again = memory.load(EXPERIMENT)
    assert again is not None and torch.equal(again.mine["head"]["w"], torch.zeros(1, 2))
    assert torch.equal(again.fitted.mine["head"]["w"], torch.ones(1, 2))
    assert [p.name for p in tmp_path.iterdir()] == [f"{EXPERIMENT}.safetensors"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "ABCDEF0123456789", "0" * 65])
def test_experiment_names_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not an experiment id"):
        Memory(tmp_path).load(name)


# --- own data ---


def test_data_from_file_folder_and_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = arrays(2)
    np.savez(tmp_path / "data.npz", **made)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, array in made.items():
        np.save(folder / f"{name}.npy", array)
    (tmp_path / "ward_data.py").write_text(
        "from tests.deploy.local_federation import arrays\ndef load(client):\n    return arrays(client)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for where in ("data.npz", "folder", "ward_data:load"):
        data = load_data(where, 3, client=2)
        assert len(data.train[0]) == 34 and data.classes == 3
        assert torch.equal(data.x[data.train[0]], torch.from_numpy(made["x_train"]))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nowhere.npz", "is no file or folder"),
        ("no_such_module:f", "cannot import"),
        ("os:getcwd", "returned str; return a dict"),
    ],
)
def test_data_that_is_not_there_names_the_fix(where: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_data(where, None)


def test_class_names_are_numbered_by_the_federations_list(tmp_path: Path) -> None:
    made = arrays(0)
    names = np.array(["wild type", "benign", "malignant"])
    data = {n: names[a] if n[0] == "y" else a for n, a in made.items()}
    np.savez(tmp_path / "data.npz", **data)
    (tmp_path / "classes.txt").write_text("malignant\nbenign\nwild type\n")
    for text in ("malignant,benign,wild type", str(tmp_path / "classes.txt")):
        classes = read_classes(text)
        found = load_data(str(tmp_path / "data.npz"), classes)
        assert found.classes == 3
        assert torch.equal(found.y[found.train[0]], 2 - torch.from_numpy(made["y_train"]))
        assert label_list(classes) == label_list(["malignant", "benign", "wild type"])
    assert label_list(["benign", "malignant"]) != label_list(["malignant", "benign"])
    assert (read_classes("10"), label_list(10)) == (10, "")
    with pytest.raises(UserError, match="did you mean 'bening'"):
        load_data(str(tmp_path / "data.npz"), ["malignant", "bening"])


def test_pickled_data_is_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x_train=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="cannot read"):
        load_data(str(tmp_path / "data.npz"), None)


# --- judging ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": 3}, "not among 0..2"),
        ({"client": True}, "not among"),
        ({"client": [1]}, "not among"),
        ({"sizes": {"train": 0, "val": 0, "test": 1}}, "no samples"),
        ({"sizes": {"train": 1.5, "val": 0, "test": 1}}, "not sample counts"),
        ({"shape": [0]}, "is not one"),
        ({"shape": []}, "shape is missing"),
        ({"classes": 0}, "is not a count"),
        ({"name": "x" * 81}, "too long"),
        ({"fresh": 1}, "fresh"),
        ({"labels": None}, "labels"),
    ],
)
def test_hello_must_make_sense(change: dict[str, object], words: str) -> None:
    good = {
        "client": 1,
        "sizes": {"train": 5, "val": 0, "test": 2},
        "shape": [1, 8, 8],
        "classes": 3,
        "name": "ward",
        "labels": "",
        "fresh": True,
    }
    assert check.wrong_hello(good, 3) is None
    reason = check.wrong_hello(good | change, 3)
    assert reason is not None and words in reason


def test_hello_with_nonsense_does_not_stop_the_server(tmp_path: Path) -> None:
    post = LocalPost(sites(tmp_path, 2))

    def change(answer: Letter) -> Letter:
        bad = answer.kind == "hello" and answer.meta["client"] == 1
        return Letter(answer.meta | {"client": {"a": 1}, "refused": "x"}) if bad else answer

    post.change = change
    made = config("fedavg", rounds=1)
    with pytest.raises(UserError, match="only 1 of 2 clients came"):
        hub(made, post, 2, patience=0.3)


@pytest.mark.parametrize(
    "settings",
    [{"clients": 0}, {"minimum": 4}, {"arrivals": 0}, {"arrivals": 4}, {"timeout": 0.0}],
)
def test_terms_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Terms(**({"experiment": EXPERIMENT, "clients": 3} | settings))  # type: ignore[arg-type]


def test_terms_survive_json() -> None:
    terms = Terms(EXPERIMENT, 3, window=2.5, nodes={"18446744073709551615": 2})
    assert Terms(**json.loads(json.dumps(terms.as_dict()))) == terms


# --- credentials ---


@needs_cryptography
def test_keys_are_private_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made = credentials.make_server(folder, ["fl.example.org", "10.0.0.7", "127.0.0.1"])
    made += credentials.make_client(folder, 0)
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert (mode == 0o600) == (path.suffix in (".key", "")), path
    before = {path: path.read_bytes() for path in made}
    assert credentials.make_server(folder, ["other"]) == []
    assert credentials.make_client(folder, 0) == []
    assert {path: path.read_bytes() for path in made} == before
    found = credentials.read(folder)
    assert list(found.clients) == [0]
    context = ssl.create_default_context(cafile=str(found.ca))
    context.load_cert_chain(found.cert, found.key)


@needs_cryptography
def test_missing_keys_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="idiolect keys"):
        credentials.read(tmp_path)
    credentials.make_server(tmp_path, ["localhost"])
    with pytest.raises(UserError, match="holds no public key"):
        credentials.read(tmp_path)
