"""Method, network and data of one experiment at a site, ready to compute."""

from collections.abc import Collection
from typing import Any

import torch

from idiolect import methods, models
from idiolect.core import augmentation, own_code
from idiolect.core.form import Form
from idiolect.core.method import Method
from idiolect.data import Federation
from idiolect.engine import select
from idiolect.engine.loop import LoopEngine
from idiolect.simulation import server_state
from idiolect.simulation.simulate import check_method


class LocalExperiment:
    """Method and engine of one experiment at this client. `learn` is the site's own loss and
    augmentation: code never comes from the server."""

    def __init__(
        self,
        config: dict[str, Any],
        data: Federation,
        form: Form,
        client_id: int,
        device: str,
        learn: tuple[str | None, str | None] = (None, None),
        allow_code: Collection[str] = (),
    ):
        loss, augment = learn
        method = methods.build(config["method"], allow_code)
        check_method(method, data.task, loss)
        self.revision = method.revision
        self.method: Method = method.over(int(config.get("rounds") or 1))
        module = models.build(
            config["model"], data.shape, data.classes, config["seed"], allow_code, form
        )
        self.module_state = server_state.module_values(module)
        # Sample order and starting heads are keyed by the id the client has in the federation, so
        # a site alone gives the simulator's numbers.
        self.engine = LoopEngine(
            data,
            module,
            seed=config["seed"],
            device=torch.device(device),
            dtype=select.compute_dtype(config["dtype"]),
            products=select.products_dtype(config["dtype"]),
            keys=[(config["seed"], client_id)],
        )
        self.engine.learn_by(
            own_code.load_function(loss, "loss", [loss]) if loss else None,
            augmentation.loaded(augment, augmentation.own_words(augment)) if augment else None,
        )
