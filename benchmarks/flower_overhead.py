"""What a round over Flower costs besides the training, beside plain Flower.

Three clients on one machine, loopback, no TLS. The model goes down to every client and comes back;
it is trained on a few samples only, so the time measured is that of the messages. The result is the
median of a round's seconds per kind and model size, and a straight line through them: seconds per
round + seconds per MB, where MB is what one round moves in all (three clients, down and up).

    worker   idiolect client, one process that stays (the default)
    process  idiolect client --worker flower: Flower starts a process per message
    plain    Flower alone: an app that adds a number to an array, grid.send_and_receive

    python benchmarks/flower_overhead.py [--out benchmarks/results/flower_overhead.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.deploy import processes, superlink
from idiolect.runs import directory

CLIENTS, ROUNDS, WIDTHS = 3, 5, (64, 40_000, 150_000)
PLAIN = """
import json, time
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@client.query()
def answer(message, context):
    # Flower sends equal arrays once; a trained model is never equal to what was sent.
    array = message.content["a"].to_numpy_ndarrays()[0] + np.float32(np.random.rand())
    return Message(RecordDict({"a": ArrayRecord([array])}), reply_to=message)

@server.main()
def main(grid, context):
    want, sizes = int(context.run_config["clients"]), json.loads(context.run_config["sizes"])
    while len(list(grid.get_node_ids())) < want:
        time.sleep(0.5)
    nodes, found = list(grid.get_node_ids()), {}
    for size in sizes:
        times = []
        for number in range(int(context.run_config["rounds"])):
            array = ArrayRecord([np.random.rand(size // 4).astype(np.float32)])
            began = time.perf_counter()
            asked = [Message(RecordDict({"a": array}), dst_node_id=n, message_type="query")
                     for n in nodes]
            assert len(list(grid.send_and_receive(asked))) == want
            times.append(time.perf_counter() - began)
        found[size] = times
    Path(context.run_config["out"]).write_text(json.dumps(found))
"""
SETTINGS = '[tool.flwr.app.config]\nclients = 0\nrounds = 0\nsizes = ""\nout = ""\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--kinds", default="worker,process,plain")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    given = parser.parse_args()
    widths = [int(w) for w in given.widths.split(",")]
    kinds: dict[str, Any] = {}
    for kind in given.kinds.split(","):
        with tempfile.TemporaryDirectory() as folder:
            times = plain(Path(folder), widths) if kind == "plain" else ours(folder, widths, kind)
        kinds[kind] = summary(times)
        print(kind, json.dumps(kinds[kind], indent=1), flush=True)
    report = {
        "machine": f"{os.cpu_count()}-core x86-64 CPU machine",
        "clients": CLIENTS,
        "flwr": "1.41.0",
        "what": "seconds of one round (fit or echo, no evaluation); MB moved by all clients",
        "kinds": kinds,
    }
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(report, indent=2) + "\n")


def bytes_of(width: int) -> int:
    """Of an MLP on 8x8 samples with 3 classes, float32."""
    return 4 * (64 * width + width + 3 * width + 3)


def summary(times: dict[int, list[float]]) -> dict[str, Any]:
    """Median of the rounds after the first, and the line through the medians."""
    rows = [
        {
            "model_mb": size / 1e6,
            "moved_mb": 2 * CLIENTS * size / 1e6,
            "seconds": statistics.median(seconds[1:]),
            "all": [round(s, 3) for s in seconds],
        }
        for size, seconds in times.items()
    ]
    slope, base = np.polyfit([r["moved_mb"] for r in rows], [r["seconds"] for r in rows], 1)
    return {"seconds_per_round": float(base), "seconds_per_mb": float(slope), "rows": rows}


def ours(folder: str, widths: Sequence[int], kind: str) -> dict[int, list[float]]:
    place, found = Path(folder), {}
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 1, 8, 8)).astype(np.float32), np.arange(16) % 3
    np.savez(place / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for width in widths:
        port, run = processes.free_port(), place / f"run{width}"
        command = [sys.executable, "-m", "idiolect"]
        server = [
            *(*command, "server", "fedavg", "--clients", str(CLIENTS), "--rounds", str(ROUNDS)),
            *("--model", "mlp", "--set", f"model.hidden={width}", "--out", str(run)),
            *("--eval-every", "1000", "--insecure", "--port", str(port)),
        ]
        running = [subprocess.Popen(server, env=env)]
        for i in range(CLIENTS):
            client = [
                *(*command, "client", "--server", f"127.0.0.1:{port}", "--id", str(i)),
                *("--data", str(place / "data.npz"), "--classes", "3", "--insecure"),
                *("--state", str(place / f"state{width}-{i}")),
                *("--worker", "idiolect" if kind == "worker" else "flower"),
            ]
            running.append(subprocess.Popen(client, env=env, stderr=subprocess.DEVNULL))
        try:
            if running[0].wait(900):
                raise SystemExit(f"the server failed; see {run}")
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()
        events = [e for e in directory.read_events(run) if e["round"] > 0]
        found[bytes_of(width)] = [e["seconds"] - e["seconds_eval"] for e in events]
    return found


def plain(place: Path, widths: Sequence[int]) -> dict[int, list[float]]:
    children = processes.ChildProcesses(place / "logs")
    app, out = place / "app", place / "out.json"
    app.mkdir()
    project = superlink.PROJECT[: superlink.PROJECT.index("[tool.flwr.app.config]")] + SETTINGS
    (app / "pyproject.toml").write_text(project.replace("idiolect_federation", "plain"))
    (app / "plain.py").write_text(PLAIN)
    try:
        port, home = superlink.start_superlink(children, place, None)
        for i in range(CLIENTS):
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
            node += ["--host", "127.0.0.1", "--port", str(processes.free_port())]
            children.start(f"node{i}", node, processes.environment(place / f"home{i}"))
        sizes = json.dumps([bytes_of(w) for w in widths])
        config = f"clients={CLIENTS} rounds={ROUNDS} sizes='{sizes}' out='{out}'"
        command = [str(Path(sys.executable).parent / "flwr"), "run", str(app), superlink.CONNECTION]
        env = processes.environment(home)
        subprocess.run([*command, "--run-config", config], env=env, check=True)
        end = time.monotonic() + 1500
        while not out.exists():
            if time.monotonic() > end or children.exit_code("superlink") is not None:
                raise SystemExit(f"plain Flower did not finish: {children.tail('superlink', 20)}")
            time.sleep(1)
        time.sleep(0.5)
        return {int(size): times for size, times in json.loads(out.read_text()).items()}
    finally:
        children.end()


if __name__ == "__main__":
    main()
