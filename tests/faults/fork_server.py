"""A program that imports everything once and then runs each command in a fork of itself.

It is started with `file_faults.c` loaded. Every line on stdin is an order: a command line (`call`
is a `module:function` that takes the words and returns the exit code), the folder to run it in,
and after how many changes to files below that folder what shall happen.
"""

import ctypes
import gc
import importlib
import json
import os
import sys
import traceback
from typing import Any

WARM = ("idiolect.cli.app", "idiolect.report.page", "idiolect.runs.execute",
        "idiolect.simulation.simulate", "idiolect.simulation.side_by_side", "idiolect.data",
        "idiolect.papers.campaign", "idiolect.papers.cell_worker",
        "idiolect.methods", "idiolect.models", "pyarrow.parquet", "safetensors.torch",
        "sklearn.datasets", "plotly.graph_objects")  # fmt: skip
KINDS = ("count", "kill", "kill caller", "kill others", "full")


def idiolect(words: list[str]) -> int:
    """The program itself."""
    from idiolect.cli.app import main

    sys.argv = ["idiolect", *words]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _child(order: dict[str, Any], faults: ctypes.CDLL, tell: int) -> None:
    code = 1
    try:
        said = os.open(order["said"], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(said, stream)
        os.chdir(order["folder"])
        module, _, function = order["call"].partition(":")
        call = getattr(importlib.import_module(module), function)
        kind = KINDS.index(order["kind"])
        faults.fault_arm(order["folder"].encode(), ctypes.c_long(order["at"]), kind)
        code = call(order["words"])
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(tell, str(faults.fault_met()).encode())
        os._exit(code)


def serve(order: dict[str, Any], faults: ctypes.CDLL) -> dict[str, int]:
    hear, tell = os.pipe()
    process = os.fork()
    if not process:
        _child(order, faults, tell)
    os.close(tell)
    with os.fdopen(hear) as pipe:
        met = int(pipe.read() or order["at"])
    _, status = os.waitpid(process, 0)
    return {"code": os.waitstatus_to_exitcode(status), "met": met}


def warm_up() -> None:
    """Import what a run imports; much of PyTorch only comes with the first step."""
    for name in WARM:
        importlib.import_module(name)
    from idiolect.runs import build, config

    flags = {"method": {"name": "fedper", "epochs": 1}, "rounds": 1, "model": {"name": "linear"},
             "split": {"name": "dirichlet", "clients": 2}}  # fmt: skip
    simulation = build.build(config.resolve(None, flags))
    simulation.start()
    simulation.step()


def serve_all() -> None:
    faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
    faults.fault_met.restype = ctypes.c_long
    answers = os.fdopen(os.dup(1), "w")
    warm_up()
    gc.freeze()  # forks that collect garbage would copy all of it
    for line in sys.stdin:
        answers.write(json.dumps(serve(json.loads(line), faults)) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve_all()
