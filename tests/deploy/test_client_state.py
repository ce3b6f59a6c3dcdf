"""The client's state on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from idiolect.core import files, tree
from idiolect.deploy.client_state import ClientState, CommittedWork, StateStore
from tests.deploy.local_federation import EXPERIMENT


def test_store_keeps_state_and_answer_together(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    assert store.load(EXPERIMENT) is None
    fitted = CommittedWork(
        3, {"head": {"w": torch.ones(1, 2)}}, {"g": torch.zeros(1)}, {"samples": 5}
    )
    store.commit(EXPERIMENT, ClientState(7, fitted))
    found = store.load(EXPERIMENT)
    assert found is not None and (found.client, found.fitted.version) == (7, 3)
    assert found.fitted.answer == {"samples": 5} and found.rejoined is None
    assert torch.equal(found.mine["head"]["w"], torch.ones(1, 2))
    found.rejoined = CommittedWork(5, {"head": {"w": torch.zeros(1, 2)}})
    store.commit(EXPERIMENT, found)
    again = store.load(EXPERIMENT)
    assert again is not None and torch.equal(again.mine["head"]["w"], torch.zeros(1, 2))
    assert torch.equal(again.fitted.mine["head"]["w"], torch.ones(1, 2))
    assert [p.name for p in tmp_path.iterdir()] == [f"{EXPERIMENT}.safetensors"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "ABCDEF0123456789", "0" * 65])
def test_experiment_names_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not an experiment id"):
        StateStore(tmp_path).load(name)


def test_files_of_earlier_versions_stay_readable(tmp_path: Path) -> None:
    """The names inside the file are fixed: sites keep their state when the package is updated."""
    about = b'{"client": 2, "fitted": {"version": 4, "answer": {"samples": 9}}, "rejoined": null}'
    old = {"fitted/mine/head/w": torch.ones(1, 2), "fitted/up/body/w": torch.zeros(1, 3)}
    old["about"] = torch.tensor(list(about), dtype=torch.uint8)
    files.write_tensors(tmp_path / f"{EXPERIMENT}.safetensors", old)
    found = StateStore(tmp_path).load(EXPERIMENT)
    assert found is not None and (found.client, found.fitted.version) == (2, 4)
    assert found.fitted.answer == {"samples": 9} and found.rejoined is None
    assert set(tree.leaves(found.mine)) == {"head/w"}
    assert torch.equal(found.fitted.up["body"]["w"], torch.zeros(1, 3))
