"""`idiolect ui` on the command line."""

import pytest

from tests.cli.calls import call


@pytest.mark.parametrize("port", ["99999", "-5"])
@pytest.mark.parametrize("words", [["ui", "."], ["server", "fedavg", "--clients", "2"]])
def test_a_port_that_cannot_be_is_refused(words: list[str], port: str) -> None:
    result = call(*words, "--port", port)
    assert result.exit_code == 2 and "--port" in result.stderr, result.output
    assert "65535" in result.stderr
