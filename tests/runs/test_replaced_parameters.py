"""The most informed parameters of a finished run's models, replaced."""

from pathlib import Path

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.runs import config
from idiolect.runs.execute import execute
from idiolect.runs.replaced_parameters import replacement_of_run


def test_from_the_run_directory(tmp_path: Path) -> None:
    flags = {"method": {"name": "fedas", "lr": 0.1}, "rounds": 2, "save_models": "last"}
    flags |= {"split": {"clients": 3, "alpha": 1.0}, "model": "mlp", "protocol": "fedas"}
    summary = execute(config.resolve(flags=flags), tmp_path / "run")
    found = replacement_of_run(tmp_path / "run")
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(
        ("intact", "top", "random"), 3
    )
    # What clients predict with is exported: the delivered series of the last round.
    assert np.mean(found["intact"]) == pytest.approx(summary["accuracy"]["last"]["mean"], abs=0.01)
    with pytest.raises(UserError, match="--save-models best"):
        replacement_of_run(tmp_path / "run", export="best")
