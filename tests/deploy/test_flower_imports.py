"""Few modules depend on Flower, fewer on its private parts."""

from __future__ import annotations

import re
from pathlib import Path

from idiolect import deploy

FILES = sorted(Path(deploy.__file__).parent.glob("*.py"))


def test_few_modules_import_flower() -> None:
    found = {f.stem: set(re.findall(r"^\s*from (flwr[\w.]*)", f.read_text(), re.M)) for f in FILES}
    users = {name: modules for name, modules in found.items() if modules}
    private = {"worker", "incoming", "fleet_rules", "private_superlink"}
    assert set(users) == {"apps", "flower_transport"} | private
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    assert users["apps"] | users["flower_transport"] <= public


def test_every_module_is_described() -> None:
    described = set(re.findall(r"^    (\w+) +", deploy.__doc__ or "", re.M))
    assert described == {f.stem for f in FILES} - {"__init__"}
