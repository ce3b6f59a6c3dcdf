"""The pictures of docs/images, from real runs and a real browser.

    idiolect demo --out runs/demo
    python docs/make_screenshots.py runs docs/images [RESULTS_DIR]

It needs the extras ui and dev, and Chromium.
"""

import re
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZES = {"": (1280, 860), "-phone": (390, 800)}


def main(root: Path, out: Path, results: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    words = ["ui", str(root), "--port", "0", "--results", str(results)]
    server = subprocess.Popen(
        [sys.executable, "-m", "idiolect", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        found = re.search(r"http://\S+", server.stderr.readline())
        assert found, "the page did not start"
        with sync_playwright() as started:
            chromium = started.chromium.launch(
                executable_path=shutil.which("chromium"), args=ARGUMENTS
            )
            for scheme in ("light", "dark"):
                for ending, size in SIZES.items():
                    take_all(chromium, found[0], out, scheme, ending, size)
            chromium.close()
    finally:
        server.terminate()
        server.wait()


def take_all(
    chromium: Any, address: str, out: Path, scheme: str, ending: str, size: tuple[int, int]
) -> None:
    tab = chromium.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab.goto(address)
    tab.wait_for_selector("table.runs tbody tr")
    take(tab, out / f"runs-{scheme}{ending}.png")
    runs = tab.locator("table.runs tbody tr").evaluate_all("rows => rows.map(r => r.dataset.run)")
    tab.goto(f"{address}#/report?" + "&".join(f"run={run}" for run in runs))
    tab.wait_for_selector(".plot .main-svg")
    take(tab, out / f"report-{scheme}{ending}.png")
    tab.locator("h2", has_text="Accuracy over rounds").evaluate("head => head.scrollIntoView()")
    take(tab, out / f"curves-{scheme}{ending}.png")
    logged = next((run for run in runs if "feddwa" in run), runs[0])
    tab.goto(f"{address}#/report?run={logged}")
    if tab.locator("#views").count() and scheme == "light" and not ending:
        tab.wait_for_selector("#matrix-plot .main-svg")
        tab.locator("#matrix").evaluate("section => section.scrollIntoView()")
        take(tab, out / "matrix-light.png")
        tab.goto(f"{address}#/recipes")
        tab.wait_for_selector(".cells i.done", timeout=180_000)
        counted = "() => !document.body.innerText.includes('is being counted')"
        tab.wait_for_function(counted, timeout=180_000)
        take(tab, out / "recipes-light.png")
    tab.close()


def take(tab: Page, path: Path) -> None:
    tab.wait_for_timeout(700)
    Image.open(BytesIO(tab.screenshot())).convert("RGB").save(path, optimize=True)


if __name__ == "__main__":
    folder, target, *more = map(Path, sys.argv[1:])
    main(folder, target, more[0] if more else Path("benchmarks/results/papers"))
