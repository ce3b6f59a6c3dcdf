"""A site may compute on a GPU: what comes over the network or from its disk goes there first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down
from idiolect.core.task import PERPLEXITY
from idiolect.deploy.client import _score
from idiolect.deploy.client_state import ClientState, StateStore
from idiolect.deploy.messages import Payload
from idiolect.engine.loop import LoopEngine
from tests.deploy.local_federation import (
    EXPERIMENT,
    LocalTransport,
    clients_on_disk,
    config,
    served,
)


class Customs:
    """Knows what lies on the host and stops it before it meets the samples. Here to move a tensor
    to the device is to copy it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch, self.passed = monkeypatch, set[str]()
        self.host: list[Tensor] = []
        load, to_device = StateStore.load, LoopEngine.to_device

        def loaded(store: StateStore, experiment: str) -> ClientState | None:
            state = load(store, experiment)
            for work in filter(None, (state.fitted, state.rejoined) if state else ()):
                self.host += tree.leaves({"m": work.mine, "u": work.up, "k": work.kept}).values()
            return state

        def moved(engine: LoopEngine, record: Any) -> Any:
            return tree.each(torch.clone, to_device(engine, record))

        monkeypatch.setattr(StateStore, "load", loaded)
        monkeypatch.setattr(LoopEngine, "to_device", moved)

    def watch(self, owner: type, what: str) -> None:
        before = getattr(owner, what)

        def checked(this: Any, *given: Any, **options: Any) -> Any:
            for one in given:
                record = one.shared | one.each if isinstance(one, Down) else one
                assert not isinstance(record, dict) or not self.on_host(record), what
            self.passed.add(what)
            return before(this, *given, **options)

        self.patch.setattr(owner, what, checked)

    def on_host(self, record: dict[str, Any]) -> list[str]:
        places = {x.untyped_storage().data_ptr() for x in self.host if x.numel()}
        leaves = tree.leaves(record).items()
        return [n for n, x in leaves if x.untyped_storage().data_ptr() in places]


@pytest.mark.parametrize("name", ["fedas", "fedavg_async"])
def test_what_a_site_is_sent_and_has_goes_to_its_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = LocalTransport(clients_on_disk(tmp_path, 1))
    ours = served(config(name, rounds=3, epochs=1), transport, 1)
    ours.start()
    ours.step()
    sent = [request for _, request in transport.sent]
    fit, test = (next(one for one in sent if one.kind == kind) for kind in ("fit", "evaluate"))
    start = next(one.record["start"] for one in sent if "start" in one.record)
    first = Payload(fit.meta, fit.record | {"start": start})
    customs, site = Customs(monkeypatch), transport.sites[1000]
    for owner in (LoopEngine, type(ours.method)):
        for what in ("run", "evaluate") if owner is LoopEngine else ("client_init", "personal"):
            customs.watch(owner, what)

    def ask(request: Payload, **about: Any) -> None:
        customs.host += tree.leaves(request.record).values()
        answer = site.answer(Payload(request.meta | about, request.record))
        assert "refused" not in answer.meta, answer.meta

    site.store.path(EXPERIMENT).unlink()
    ask(first)
    ask(fit, version=1)
    ask(fit, kind="rejoin", version=2, since=1)
    ask(test, version=2, **{"global": "model"})
    assert customs.passed == {"run", "evaluate", "client_init", "personal"}


class OnGpu(Tensor):
    """Its numbers can be read when it was copied to the host."""

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.as_subclass(Tensor)


def test_the_value_of_a_metric_leaves_a_gpu() -> None:
    sums = torch.tensor([[6.0, 4.0]])
    assert _score(PERPLEXITY, sums.as_subclass(OnGpu), 4) == _score(PERPLEXITY, sums, 4)
