"""Exported models."""

import json
from pathlib import Path

from safetensors.torch import load_file

from idiolect.runs import execute as runs
from idiolect.runs import history
from tests.runs.fake_simulation import N, build, resolved
from tests.runs.killed import killed_run


def test_models_every_last_and_best(tmp_path: Path) -> None:
    for when, folders in (
        ("last", ["last"]),
        ("best", ["best"]),
        ("every", [f"round_{t:04d}" for t in range(13)]),
    ):
        out = tmp_path / when
        killed_run(out, 8, save_models=when)
        summary = runs.execute(resolved(save_models=when), out, resume=True, build=build)
        assert sorted(path.name for path in (out / "models").iterdir()) == folders
        chosen = out / "models" / folders[-1]
        assert len(list(chosen.glob("client_*.safetensors"))) == N
        number = json.loads((chosen / "round.json").read_text())["round"]
        assert number == (summary["accuracy"]["best"]["round"] if when == "best" else 12)
        log = history.ClientLog(out)
        log.load()
        expected = log.rounds[number]["accuracy_before"][2]
        got = load_file(chosen / "client_0002.safetensors")["weight"]
        assert got.double().item() == expected
