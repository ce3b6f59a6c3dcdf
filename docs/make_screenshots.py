"""The pictures of docs/images, from real runs and a real browser: light and dark, 1280 pixels and a
phone.

    idiolect demo --out runs/demo --seeds 0,1,2
    idiolect compare local fedprox fedper --sweep lr=0.01,0.02,0.05,0.1,0.2 --seeds 0,1 \\
        --clients 10 --rounds 10 --out runs/sweep
    idiolect compare $(idiolect list methods --json | jq -r .[].name) --clients 8 --rounds 6 \\
        --out runs/methods
    idiolect server fedavg --out runs/sites …      # with three clients: examples/three-sites
    python docs/make_screenshots.py runs docs/images [--results DIR] [--only sites …]

What is not there is left out. It needs the extras ui and dev, and Chromium.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZES = {"": (1280, 860), "-phone": (390, 800)}
LONG = 300_000  # milliseconds: recipes are counted for a minute
COUNTED = "() => !document.body.innerText.includes('is being counted')"


@dataclass(frozen=True)
class Picture:
    """A place of the page, what must be there before it is taken, and what is scrolled to."""

    name: str
    place: str
    ready: str
    heading: str = ""


def pictures(root: Path) -> list[Picture]:
    found = [Picture("runs", "", "table.runs tbody tr")]
    report = ".plot .main-svg"
    for folder in ("demo", "sweep", "methods"):
        runs = sorted(path.parent for path in (root / folder).glob("*/config.yaml"))
        asked = urlencode([("run", f"{folder}/{path.name}") for path in runs])
        if runs:
            place = f"#/report?{asked}"
            found.append(Picture(folder, place, report))
            found.append(Picture(f"{folder}-curves", place, report, "Accuracy over rounds"))
    if (root / "demo/feddwa-seed0").is_dir():
        one = "#/report?run=demo/feddwa-seed0"
        found.append(Picture("split", one, report, "The split"))
        found.append(Picture("matrix", one, "#matrix-plot .main-svg", "Client by client, over"))
    found.append(Picture("recipes", "#/recipes", ".cells i"))
    if (root / "sites/flower").is_dir():
        found.append(Picture("sites", "#/sites?run=sites", "[data-site]"))
    return found


def main(root: Path, out: Path, results: Path, only: Sequence[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    words = ["ui", str(root), "--port", "0", "--results", str(results)]
    server = subprocess.Popen(
        [sys.executable, "-m", "idiolect", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        address = re.search(r"http://\S+", server.stderr.readline())
        assert address, "the page did not start"
        with sync_playwright() as started:
            chromium = started.chromium.launch(
                executable_path=shutil.which("chromium"), args=ARGUMENTS
            )
            for scheme in ("light", "dark"):
                for ending, size in SIZES.items():
                    tab = opened(chromium, scheme, size)
                    for picture in pictures(root):
                        if picture.name in only or not only:
                            path = out / f"{picture.name}-{scheme}{ending}.png"
                            take(tab, address[0], picture, path)
                    tab.close()
            chromium.close()
    finally:
        server.terminate()
        server.wait()


def opened(chromium: Any, scheme: str, size: tuple[int, int]) -> Page:
    wide, high = size
    tab: Page = chromium.new_page(
        viewport={"width": wide, "height": high}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab.set_default_timeout(LONG)
    return tab


def take(tab: Page, address: str, picture: Picture, path: Path) -> None:
    tab.goto("about:blank")
    tab.goto(address + picture.place)
    tab.wait_for_selector(picture.ready, state="attached")
    tab.wait_for_function(COUNTED)
    if picture.heading:
        head = tab.locator("h2", has_text=picture.heading).first
        head.evaluate("head => head.scrollIntoView()")
    tab.wait_for_timeout(700)
    whole = Image.open(BytesIO(tab.screenshot())).convert("RGB")
    whole.save(path, optimize=True)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description="The pictures of docs/images.")
    asked.add_argument("runs", type=Path)
    asked.add_argument("out", type=Path)
    asked.add_argument("--results", type=Path, default=Path("benchmarks/results/papers"))
    asked.add_argument("--only", nargs="*", default=[], help="names, such as demo sweep sites")
    given = asked.parse_args()
    main(given.runs, given.out, given.results, given.only)
