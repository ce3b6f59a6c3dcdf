"""A real browser, for the tests that look at the page; they skip where there is none."""

import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium is installed")
    api.expect.set_options(timeout=30_000)
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Any]:
    """A tab that must log no error, and ask nobody but this machine."""
    opened = chromium.new_page(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(30_000)
    said: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    opened.close()
    foreign = {urlsplit(url).hostname for url in asked if url.startswith(("http", "ws"))}
    assert foreign <= {"127.0.0.1"}
    assert not said
