"""Figure 3a of FedAS for a finished run: its exported models and its data, read back."""

from pathlib import Path
from typing import Literal

import numpy as np

from idiolect.errors import UserError
from idiolect.runs.build import load_federation
from idiolect.runs.directory import read_config


def replacement_of_run(
    run: Path | str,
    *,
    export: str = "last",
    share: float = 0.05,
    by: Literal["zeros", "noise"] = "zeros",
) -> dict[str, np.ndarray]:
    """Test accuracy of every client of a run that exported its models: `intact`, with the `top`
    share of its parameters replaced, and with as many at `random`."""
    from idiolect import models
    from idiolect.simulation.fisher_replacement import replacement
    from idiolect.simulation.starting_weights import read_weights

    config = read_config(Path(run))
    files = sorted((Path(run) / "models" / export).glob("client_*.safetensors"))
    if not files:
        raise UserError(f"{run} has no models/{export}; run it with --save-models {export}")
    federation = load_federation(config)
    shape, classes, form = federation.shape, federation.classes, federation.form
    section = {"name": models.default_model(shape, form), **config["model"]}
    net = models.build(section, shape, classes, config["seed"], form=form)
    states = [read_weights(file) for file in files]
    return replacement(federation, net, states, share=share, by=by, seed=config["seed"])
