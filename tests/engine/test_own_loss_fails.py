"""A loss of the user's own that fails: whose code it is decides who tells."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import idiolect
from idiolect.core import own_code
from idiolect.data import Federation
from idiolect.errors import UserError


def test_a_loss_from_a_file_is_left_to_the_command_line(
    tmp_path: Path, ragged: Federation, small_net: nn.Module
) -> None:
    """It says where the user's code failed, and keeps the traceback."""
    file = tmp_path / "my.py"
    file.write_text("def broken(net, params, x, y):\n    return nothing\n")
    name = f"{file}:broken"
    loss = own_code.load_function(name, "loss", {name})
    with pytest.raises(NameError) as error:
        idiolect.simulate("fedavg", ragged, small_net, rounds=1, loss=loss, device="cpu")
    fault = own_code.fault(error.value)
    assert fault is not None and fault[1] == f"{file}:2"


def test_a_loss_of_a_script_is_told_in_one_line(ragged: Federation, small_net: nn.Module) -> None:
    def broken(*given: Any) -> Any:
        raise ValueError("no good")

    with pytest.raises(UserError, match="loss 'broken' failed: ValueError: no good"):
        idiolect.simulate("fedavg", ragged, small_net, rounds=1, loss=broken, device="cpu")
