"""What a settings file says about something the run does not have."""

from pathlib import Path
from typing import Any

import pytest

from idiolect.runs import config as settings
from idiolect.runs.left_out import left_out

FILE = """
method: {name: fedprox, lr: 0.1, mu: 0.7}
data: {name: t.csv, label: b, input: [a]}
split: {name: dirichlet, clients: 4, alpha: 9}
"""


@pytest.mark.parametrize(
    ("above", "keys"),
    [
        ({}, {}),
        ({"method": {"name": "fedavg", "lr": 0.1}}, {"method": ["mu"]}),
        ({"split": "iid"}, {"split": ["clients", "alpha"]}),
        ({"split": {"name": "iid", "clients": 5}}, {"split": ["alpha"]}),
        ({"split": {"name": "dirichlet", "clients": 5}}, {}),
        ({"data": {"name": "digits"}}, {"data": ["label", "input"]}),
    ],
)
def test_keys_of_what_is_replaced(
    above: dict[str, Any], keys: dict[str, list[str]], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("a,b\n1,0\n2,1\n")
    Path("mine.yaml").write_text(FILE)
    made = settings.resolve(Path("mine.yaml"), above)
    assert left_out(settings.read_yaml(Path("mine.yaml")), [above], made) == keys
