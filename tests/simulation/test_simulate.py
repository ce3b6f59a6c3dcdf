"""simulate(): arrays in, models and accuracies out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import idiolect
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.simulation.schedule import Participation
from idiolect.simulation.simulate import Result
from tests.conftest import SmallNet


def test_every_round_is_returned(ragged: Federation, small_net: nn.Module) -> None:
    result = idiolect.simulate(
        {"name": "fedper", "lr": 0.1},
        ragged,
        small_net,
        rounds=3,
        save_models="every",
        device="cpu",
    )
    assert list(result.models) == [0, 1, 2, 3]
    assert result.accuracy().shape == (4, ragged.n_clients)
    assert result.summary["rounds"] == 3
    assert result.summary["accuracy"]["last"]["mean"] == pytest.approx(result.accuracy()[-1].mean())
    mine = SmallNet()
    mine.load_state_dict(result.last.clients[3])
    with torch.no_grad():
        rows = ragged.test[3]
        hit = (mine(ragged.x[rows].float()).argmax(1) == ragged.y[rows]).float().mean()
    assert float(hit) == pytest.approx(result.accuracy()[-1, 3])
    assert set(result.last.server) == {n for n in mine.state_dict() if n.startswith("body")}


def test_starts_from_given_weights(ragged: Federation, small_net: nn.Module) -> None:
    start = {n: torch.full_like(v, 0.01) for n, v in small_net.state_dict().items()}
    result = idiolect.simulate(
        "fedavg", ragged, small_net, rounds=1, init=start, save_models="every", device="cpu"
    )
    assert torch.equal(result.models[0].clients[2]["head.weight"], start["head.weight"])


def test_best_is_the_best_round(ragged: Federation, small_net: nn.Module) -> None:
    result = idiolect.simulate(
        {"name": "local", "lr": 0.3}, ragged, small_net, rounds=6, save_models="best", device="cpu"
    )
    means = result.accuracy()[1:].mean(1)
    assert list(result.models) == [1 + int(np.argmax(means))]


def test_bad_options_are_told(ragged: Federation, small_net: nn.Module) -> None:
    with pytest.raises(UserError, match="did you mean 'fedavg'"):
        idiolect.simulate("fedavgg", ragged, small_net, rounds=1)
    with pytest.raises(UserError, match="save_models"):
        idiolect.simulate("fedavg", ragged, small_net, rounds=1, save_models="always")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="classes"):
        idiolect.simulate("fedavg", ragged, SmallNet(classes=7), rounds=1)
    with pytest.raises(UserError, match="cannot take samples"):
        idiolect.simulate("fedavg", ragged, nn.Sequential(nn.Linear(3, 5)), rounds=1)
    with pytest.raises(UserError, match="participation"):
        idiolect.simulate("fedavg", ragged, small_net, rounds=1, participation=0.0)


def run(federation: Federation, model: nn.Module, **options: Any) -> Result:
    settings = {"rounds": 3, "device": "cpu", "engine": "loop"} | options
    return idiolect.simulate({"name": "plga", "lr": 0.1}, federation, model, **settings)


def test_options_are_those_of_the_command_line(
    ragged: Federation, small_net: nn.Module, tmp_path: Path
) -> None:
    """Short forms, sections, files and objects say the same thing."""
    started = [r.started for r in run(ragged, small_net, participation="binomial:0.5").rounds]
    objects = run(ragged, small_net, participation=Participation("binomial", 0.5))
    assert [r.started for r in objects.rounds] == started
    late = run(ragged, small_net, stragglers={"periods": [1, 0]})
    assert [r.arrived for r in late.rounds] == [
        r.arrived for r in run(ragged, small_net, stragglers=np.int64(1)).rounds
    ]
    assert run(ragged, small_net, clock={"window": 0.5}).summary["rounds"] == 3
    file = tmp_path / "who.json"
    file.write_text("[[0, 1], [2], [0, 2]]")
    for schedule in (file, str(file), [[0, 1], [2], [0, 2]]):
        replayed = run(ragged, small_net, schedule=schedule)
        assert [r.started for r in replayed.rounds] == [[], [0, 1], [2], [0, 2]]


def test_initial_weights_from_file_module_and_dict(
    ragged: Federation, small_net: nn.Module, tmp_path: Path
) -> None:
    other = SmallNet()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.5)
    file = tmp_path / "w.safetensors"
    save_file(other.state_dict(), file)
    begun = [
        run(ragged, small_net, init=init, rounds=1).rounds[0].clients["loss_before"].tolist()
        for init in (file, str(file), other, other.state_dict(), None)
    ]
    assert begun[0] == begun[1] == begun[2] == begun[3] != begun[4]
    save_file({"nothing": torch.zeros(1)}, file)
    with pytest.raises(UserError, match="lacks the model's weight"):
        run(ragged, small_net, init=file)


def test_summary_is_that_of_a_run(ragged: Federation, small_net: nn.Module) -> None:
    summary = run(ragged, small_net, rounds=1).summary
    assert {"method", "rounds", "seed", "accuracy", "protocol", "seconds_eval"} <= set(summary)
    assert summary["diverged"] is False and summary["bytes_up"] > 0


def test_unknown_options_get_a_hint(ragged: Federation, small_net: nn.Module) -> None:
    with pytest.raises(UserError, match="did you mean 'participation'"):
        run(ragged, small_net, particpation=0.5)


def test_epochs_without_effect_are_warned_of(ragged: Federation, small_net: nn.Module) -> None:
    method = {"name": "fedavg", "steps": 2, "epochs": 3}
    with pytest.warns(UserWarning, match=r"method\.epochs has no effect"):
        idiolect.simulate(method, ragged, small_net, rounds=1, device="cpu")
    idiolect.simulate({**method, "epochs": 1}, ragged, small_net, rounds=1, device="cpu")
