"""A run opened again: its clients' models are those it reported."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from idiolect import models
from idiolect.errors import UserError
from idiolect.runs import config as settings
from idiolect.runs import newcomer, personal_export, predictions
from idiolect.runs.execute import execute
from idiolect.runs.run_files import read_json
from idiolect.runs.trained_run import TrainedRun


def run(out: Path, method: str, *sets: str) -> TrainedRun:
    usual = {"rounds": 2, "model.name": "linear", "split.clients": 4, "dtype": "float64"}
    given = dict(item.split("=", 1) for item in sets)
    told = [f"{key}={value}" for key, value in (usual | given).items()]
    execute(settings.resolve(flags={"method": {"name": method}}, sets=told), out)
    return TrainedRun(out)


@pytest.mark.parametrize("method", ["fedavg", "fedavg_ft", "fedper", "fedas", "pflego", "feddwa"])
@pytest.mark.parametrize("save", ["null", "last", "every"])
def test_an_exported_model_has_the_reported_accuracy(
    tmp_path: Path, method: str, save: str
) -> None:
    opened = run(tmp_path / "run", method, f"save_models={save}")
    card = personal_export.export(opened, 2, tmp_path / "out", licence="MIT")
    reported = opened.accuracy(2, 2)
    assert reported is not None and card["metric"]["value"] == pytest.approx(reported, abs=1e-12)
    assert card["metric"]["reported"] == reported
    source = {"null": "checkpoint of round 2", "last": "models/last", "every": "models/round_0002"}
    assert card["source"] == source[save]
    assert read_json(tmp_path / "out/card.json") == card
    assert card["licence"] == "MIT" and card["input"]["mean"] == [0.5]
    # What the card says is enough to rebuild the plain module.
    module = models.build(card["model"], card["input"]["shape"], card["classes"]).double()
    module.load_state_dict(load_file(tmp_path / "out/model.safetensors"))
    fed = opened.federation
    assert predictions.score(module.eval(), fed, fed.test[2]) == pytest.approx(reported)
    assert 'models.build(card["model"]' in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize("save", ["null", "last"])
def test_adapters_are_merged_in_what_is_exported(tmp_path: Path, save: str) -> None:
    adapted = ("model.name=mlp", "model.hidden=8", "model.adapt='lora:2,head'", "method.lr=0.1")
    opened = run(tmp_path / "run", "fedper", *adapted, f"save_models={save}")
    card = personal_export.export(opened, 2, tmp_path / "out")
    reported = opened.accuracy(2, 2)
    assert card["metric"]["value"] == pytest.approx(reported, abs=1e-12)
    assert card["adapt"] == "lora:2,head" and "adapt" not in card["model"]
    module = models.build(card["model"], card["input"]["shape"], card["classes"]).double()
    module.load_state_dict(load_file(tmp_path / "out/model.safetensors"))
    trained = {"body.1.lora_down", "body.1.lora_up", "head.weight", "head.bias"}
    assert set(load_file(tmp_path / "out/adapters.safetensors")) == trained
    _, found = newcomer.adapt(opened, own_file(opened, tmp_path / "new.npz"), "new")
    assert found.trained >= 0
    if save == "last":  # the base is there once, and the folder is a starting point again
        folder = tmp_path / "run/models/last"
        assert set(load_file(folder / "base.safetensors")) == {"body.1.weight", "body.1.bias"}
        assert set(load_file(folder / "client_0002.safetensors")) == trained
        again = run(tmp_path / "again", "fedper", *adapted, f"init={folder}", "rounds=1")
        assert again.accuracy(2, 0) == reported


def test_the_saved_model_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    saved = run(tmp_path / "run", "fedrep", "save_models=last")
    from_file = saved.personal(1).weights
    saved.restore()
    for name, value in saved.sim.personal_model(1).items():
        torch.testing.assert_close(from_file[name], value, rtol=0, atol=0)


def test_the_best_round_is_the_one_exported(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", "fedavg", "save_models=best")
    model = opened.personal(0)
    assert model.source == "models/best"
    assert model.round == read_json(tmp_path / "run/models/best/round.json")["round"]


def test_a_run_without_models_says_what_to_do(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", "fedavg")
    for file in (tmp_path / "run/checkpoint").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="--save-models last"):
        opened.personal(0)


def test_a_damaged_checkpoint_is_not_used(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", "fedavg")
    file = tmp_path / "run/checkpoint/round_000002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(UserError, match="round 2 is damaged"):
        opened.personal(0)


def test_clients_have_names_and_numbers(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", "fedavg")
    assert opened.client("3") == 3
    for wrong in ("4", "-1", "ward", "9" * 40):
        with pytest.raises(UserError, match="give 0 to 3"):
            opened.client(wrong)


def test_edited_settings_are_refused(tmp_path: Path) -> None:
    run(tmp_path / "run", "fedavg")
    file = tmp_path / "run/config.yaml"
    file.write_text(file.read_text().replace("name: linear", "name: mlp"))
    with pytest.raises(UserError, match="edited"):
        TrainedRun(tmp_path / "run")


def test_a_run_of_real_sites_says_where_models_are(tmp_path: Path) -> None:
    run(tmp_path / "run", "fedavg")
    file = tmp_path / "run/config.yaml"
    file.write_text(file.read_text().replace("name: digits", "name: sites"))
    with pytest.raises(UserError, match="--state"):
        TrainedRun(tmp_path / "run")


# --- newcomers ---


@pytest.mark.parametrize("method", ["local", "fedavg_ft", "fedper", "fedas", "pflego", "feddwa"])
def test_a_newcomer_gets_what_an_unseen_client_of_the_run_gets(tmp_path: Path, method: str) -> None:
    opened = run(tmp_path / "run", method, "split.unseen=1")
    opened.restore()
    client = opened.federation.unseen[0]
    found = newcomer.personal_models(opened.sim, client)
    for weights, column in zip(found, ("accuracy_before", "accuracy_after"), strict=True):
        module = opened.module()
        module.double().load_state_dict(weights)
        fed = opened.federation
        reported = opened.accuracy(client, 2, column)
        assert predictions.score(module, fed, fed.test[client]) == pytest.approx(reported)


def own_file(opened: TrainedRun, path: Path) -> Path:
    fed = opened.federation
    rows = {"train": fed.train[0], "test": fed.test[0]}
    arrays = {f"x_{part}": fed.x[at].numpy() for part, at in rows.items()}
    np.savez(path, **arrays, **{f"y_{part}": fed.y[at].numpy() for part, at in rows.items()})
    return path


@pytest.mark.parametrize(("method", "gives"), [("fedper", "trained"), ("fedavg_ft", "delivered")])
def test_a_newcomer_changes_nothing_of_the_run(tmp_path: Path, method: str, gives: str) -> None:
    opened = run(tmp_path / "run", method)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    joined, found = newcomer.adapt(opened, own_file(opened, tmp_path / "new.npz"), "new")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    assert found.gives == gives and found.client == 4 and joined.federation.names[4] == "new"
    assert opened.federation.n_clients == 4
    test = joined.federation.test[4]
    value = predictions.score(joined.module(found.model), joined.federation, test)
    assert value == found.accuracy
    assert found.others == pytest.approx(np.mean([opened.accuracy(i, 2) or 0 for i in range(4)]))
    assert found.as_dict()["gap"] == pytest.approx(found.accuracy - (found.others or 0))


def test_a_newcomer_learns_from_its_own_samples(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", "fedavg", "method.lr=0.1", "method.epochs=3")
    _, found = newcomer.adapt(opened, own_file(opened, tmp_path / "new.npz"), "new")
    assert found.trained > found.delivered


def test_the_state_of_another_revision_is_read_with_a_warning(tmp_path: Path) -> None:
    opened = run(tmp_path / "r", "fedavg")
    env = json.loads((opened.path / "env.json").read_text())
    (opened.path / "env.json").write_text(json.dumps(env | {"revision": 7}))
    with pytest.warns(UserWarning, match="made by revision 7 of fedavg, which has revision 1 now"):
        opened.restore()
