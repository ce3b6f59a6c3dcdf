"""Names where objects are wanted are refused before anything is computed."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import idiolect
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.report import write_report


def test_a_name_is_no_network_and_no_federation(ragged: Federation, small_net: nn.Module) -> None:
    wrong: Any = "mlp"
    with pytest.raises(UserError, match=r"model must be a torch.nn.Module, an object, got 'mlp'"):
        idiolect.simulate("fedavg", ragged, wrong, device="cpu")
    wrong = "digits"
    with pytest.raises(UserError, match=r"federation must be a Federation.*got 'digits'"):
        idiolect.simulate("fedavg", wrong, small_net, device="cpu")


@pytest.mark.parametrize("given", ["fedavg", {"name": "fedavg"}, None])
def test_methods_are_a_list(
    tmp_path: Path, ragged: Federation, small_net: nn.Module, given: Any
) -> None:
    with pytest.raises(UserError, match="compare takes a list of methods"):
        idiolect.compare(given, ragged, small_net, out=tmp_path)


def test_the_target_of_a_report_is_a_share(
    tmp_path: Path, ragged: Federation, small_net: nn.Module
) -> None:
    out, page = tmp_path / "run", tmp_path / "t.md"
    idiolect.simulate("fedavg", ragged, small_net, rounds=1, out=out, device="cpu")
    for wrong in (85, 0, float("nan")):
        with pytest.raises(UserError, match="target is a share here"):
            write_report([out], page, target=wrong)
    assert not page.exists()
    write_report([out], page, target=0.85)
    assert "rounds to 85 %" in page.read_text()
