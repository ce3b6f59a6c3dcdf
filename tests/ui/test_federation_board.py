"""The board of sites follows a real federation: three sites, one is killed and comes back."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'idiolect[ui]'")
pytest.importorskip("plotly", reason="the page needs plotly")

from tests.deploy.federation_processes import federation, needs_flower
from tests.deploy.test_faults import begin
from tests.ui.pages import served

pytestmark = [needs_flower, pytest.mark.heavy]
NAMES = ("Ulm", "Bonn", "Kiel")
LONG = 240_000  # milliseconds; the machine may be busy


def test_a_site_is_killed_and_comes_back(tab: Any, tmp_path: Path) -> None:
    def site(client: int) -> Any:
        return tab.locator(f"[data-site='{client}']")

    def delivered(client: int) -> int:
        told = re.search(r"delivered (\d+) times", site(client).inner_text())
        return int(told[1]) if told else 0

    with federation(tmp_path) as fed, served(tmp_path, tmp_path / ".logs") as (address, _):
        begin(fed, "fedavg", 500, "--timeout", "40")
        for client, name in enumerate(NAMES):
            fed.client(client, "--name", name)
        fed.wait("the run", (tmp_path / "run/config.yaml").exists)
        tab.goto(f"{address}/#/sites?run=run")
        for client, name in enumerate(NAMES):
            site(client).locator(".state.here").wait_for(timeout=LONG)
            assert name in site(client).inner_text()
        tab.evaluate("window.same = true")
        fed.wait("rounds", lambda: min(map(delivered, range(3))) >= 2)
        assert " MB sent" in site(0).inner_text() and "last seen" in site(0).inner_text()
        fed.kill("client2")
        site(2).locator(".state.lost, .state.gone").wait_for(timeout=LONG)
        before, others = delivered(2), delivered(0)
        fed.wait("rounds without it", lambda: delivered(0) > others + 1)
        assert delivered(2) == before and site(0).locator(".state.here").count() == 1
        fed.client(2, "--name", "Kiel")
        site(2).locator(".state.here").wait_for(timeout=LONG)
        fed.wait("its work", lambda: delivered(2) > before)
        assert tab.evaluate("window.same"), "the page was not loaded again"
        assert "enrolled" in tab.get_by_role("region", name="journal").inner_text()
        tab.goto("about:blank")  # before its server ends
