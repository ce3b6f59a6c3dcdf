"""`idiolect data`."""

import json

from tests.cli.calls import call


def test_data_commands() -> None:
    assert "digits" in call("data", "list").stdout
    assert "scikit-learn" in call("data", "get", "digits").stdout
    about = json.loads(call("data", "inspect", "digits", "--clients", "5", "--json").stdout)
    assert about["n_clients"] == 5
    assert "5 clients" in call("data", "inspect", "digits", "--clients", "5").stdout
