"""How fast the live page is, with a real browser: a large run, many runs, a long events.jsonl.

    python benchmarks/ui_speed.py [--out benchmarks/results/ui.json] [--quick]

It needs the extras ui and dev, and Chromium. The runs are made up: their files have the form and
the size of real ones, their numbers mean nothing. Every page is opened in a browser that has not
seen it before, by a server that is ready. `open_s` and `drawn_s` are by the browser's own clock,
from the start of the navigation until the table and the first figure are there; `driven_s` is by
the clock of this program. Beside them stand the seconds of all processors, server and browser
together: on a machine with other work they say more, and an idle one needs no longer than they do.
"""

import argparse
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from playwright.sync_api import Page as Tab
from playwright.sync_api import sync_playwright

from idiolect.bench import measured_on
from idiolect.core import files
from idiolect.runs import config as settings
from idiolect.runs.environment import machine
from idiolect.runs.history import ClientLog
from idiolect.runs.recorder import summarise
from idiolect.simulation import metrics
from idiolect.ui.event_tail import EventTail
from idiolect.ui.web import Page

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# Scrolls through an element for two seconds, a step a frame; milliseconds from frame to frame.
SCROLL = """(chosen) => new Promise((done) => {
  const place = chosen === "page" ? document.scrollingElement : document.querySelector(chosen);
  const most = place.scrollHeight - place.clientHeight, gaps = [], began = performance.now();
  let last = began;
  const step = (now) => {
    gaps.push(now - last);
    last = now;
    place.scrollTop = most * (now - began) / 2000;
    if (now - began < 2000) requestAnimationFrame(step); else done(gaps.slice(1));
  };
  requestAnimationFrame(step);
})"""


def made_up_run(out: Path, clients: int, rounds: int, method: str) -> None:
    """A finished run: every file that the page reads."""
    out.mkdir(parents=True)
    config = settings.resolve(None, {"method": {"name": method}, "rounds": rounds}, [])
    log, noise, events = ClientLog(out), np.random.default_rng(0), []
    ids = np.arange(clients, dtype=np.int32)
    for number in range(rounds + 1):
        scores = np.clip(noise.normal(1 - 0.9 * 0.99**number, 0.1, clients), 0, 1)
        nothing, took_part = np.full(clients, np.nan), np.full(clients, number > 0)
        log.add(number, {
            "client": ids, "train_size": np.full(clients, 40, np.int32),
            "val_size": np.zeros(clients, np.int32), "test_size": np.full(clients, 20, np.int32),
            "started": took_part, "arrived": took_part, "unseen": np.zeros(clients, bool),
            "staleness": np.where(took_part, 0, -1).astype(np.int16),
            "accuracy_before": scores, "loss_before": 1 - scores,
            "accuracy_after": scores if number else nothing, "loss_after": nothing,
        })  # fmt: skip
        rows = log.rounds[number]
        events.append({
            "round": number, "time": float(number), "train_loss": 0.99**number, "diverged": False,
            "accuracy": metrics.round_stats(rows), "accuracy_global": metrics.stats(nothing, ids),
            "accuracy_after": metrics.round_stats(rows, "after"), "seconds": 1.0,
            "seconds_eval": 0.1, "samples": 40 * clients, "steps": clients, "bytes_up": 1000,
            "bytes_down": 1000, "started": ids.tolist(), "arrived": ids.tolist(),
            "staleness": [0] * clients,
        })  # fmt: skip
    log.flush(whole=True)
    files.write_text(out / "config.yaml", settings.dump(config))
    lines = (json.dumps(event, separators=(",", ":")) + "\n" for event in events)
    files.write_text(out / "events.jsonl", "".join(lines))
    files.write_json(out / "env.json", machine("cpu"))
    files.write_json(out / "summary.json", summarise(config, log.table(), events))


@contextmanager
def served(root: Path) -> Iterator[str]:
    page = Page(root, root.parent / "logs")
    server = uvicorn.Server(uvicorn.Config(page.app(), log_level="error", ws="none"))
    taken = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([taken],), daemon=True)
    thread.start()
    page.preparing.join()
    try:
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/"
    finally:
        page.close()
        server.should_exit = True
        thread.join(10)


def opened(chromium: Any, address: str, ready: str) -> tuple[Tab, dict[str, float]]:
    """A tab without a cache once `ready` is there, and the seconds that took."""
    tab: Tab = chromium.new_context(viewport={"width": 1280, "height": 860}).new_page()
    tab.set_default_timeout(300_000)
    tab.goto("about:blank")  # people have their browser open
    began, worked = time.perf_counter(), processor_seconds()
    tab.goto(address)
    seen = tab.wait_for_function(
        "(one) => document.querySelector(one) && performance.now()", arg=ready
    )
    opened = {"open_s": seen.json_value() / 1000, "driven_s": time.perf_counter() - began}
    return tab, opened | {"open_processor_s": processor_seconds() - worked}


def processor_seconds() -> float:
    """Of this process and all below it: server, browser and what drives it (Linux)."""
    spent: dict[int, tuple[int, float]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parts = place.read_text().rpartition(")")[2].split()
            ticks = int(parts[11]) + int(parts[12])
            spent[int(place.parent.name)] = int(parts[1]), ticks / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in spent.items() if parent in ours} - ours:
        ours |= more
    return sum(spent[pid][1] for pid in ours)


def scrolled(tab: Tab, place: str) -> dict[str, float]:
    gaps = np.array(tab.evaluate(SCROLL, place))
    return {"frames": len(gaps), "median_ms": float(np.median(gaps)), "most_ms": float(gaps.max())}


def large_run(chromium: Any, folder: Path, quick: bool) -> dict[str, Any]:
    clients, rounds = (100, 50) if quick else (1000, 500)
    made_up_run(folder / "runs/large", clients, rounds, "fedavg")
    with served(folder / "runs") as address:
        page = f"{address}#/report?run=large"
        tab, seconds = opened(chromium, page, "table.summary")
        drawn_at = "() => document.querySelector('.plot .main-svg') && performance.now()"
        drawn = tab.wait_for_function(drawn_at).json_value() / 1000
        found: dict[str, Any] = {"clients": clients, "rounds": rounds, **seconds, "drawn_s": drawn}
        found |= {"scroll_page": scrolled(tab, "page"), "scroll_clients": scrolled(tab, "div.tall")}
        began = time.perf_counter()
        tab.get_by_role("button", name="client 7 over rounds").click()
        tab.wait_for_selector("#client-plot .main-svg")
        return found | {"one_client_s": time.perf_counter() - began}


def many_runs(chromium: Any, folder: Path, quick: bool) -> dict[str, Any]:
    count = 500 if quick else 10_000
    made_up_run(folder / "one", 20, 5, "fedavg")
    for number in range(count):
        place = folder / f"runs/sweep{number % 20}/run{number:05}"
        place.mkdir(parents=True)
        for name in ("config.yaml", "summary.json"):
            shutil.copy(folder / "one" / name, place / name)
    with served(folder / "runs") as address:
        tab, seconds = opened(chromium, address, "table.runs tbody tr:nth-child(100)")
        return {"runs": count, **seconds, "scroll_page": scrolled(tab, "page")}


def long_events(folder: Path, quick: bool) -> dict[str, Any]:
    """Reading all of a long file once, then a new line of it."""
    folder.mkdir()
    count, path = (1000 if quick else 100_000), folder / "events.jsonl"
    line = json.dumps({"round": 1, "accuracy": {"mean": 0.5}, "arrived": list(range(20))}) + "\n"
    path.write_text(line * count)
    tail = EventTail(path)
    whole = timed(tail.fresh)
    before = tail.bytes_read
    with path.open("a") as file:
        file.write(line)
    one = timed(tail.fresh)
    found = {"lines": count, "bytes": path.stat().st_size, "first_s": whole, "next_line_s": one}
    return found | {"next_line_bytes": tail.bytes_read - before}


def timed(what: Callable[[], Any]) -> float:
    """Processor seconds of this process."""
    began = time.process_time()
    what()
    return time.process_time() - began


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--out", type=Path, default=Path("benchmarks/results/ui.json"))
    asked.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="idiolect-ui-") as name, sync_playwright() as started:
        folder = Path(name)
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        chromium = started.chromium.launch(executable_path=program, args=ARGUMENTS)
        result = {
            "quick": given.quick,
            "large_run": large_run(chromium, folder / "large", given.quick),
            "many_runs": many_runs(chromium, folder / "many", given.quick),
            "long_events": long_events(folder / "long", given.quick),
            "browser": chromium.version,
            "load_average": os.getloadavg()[0],
            "machine": measured_on("cpu"),
        }
        chromium.close()
    files.write_json(given.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
