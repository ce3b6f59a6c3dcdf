"""`--data tests.deploy.faulty_client:load`: a client that misbehaves as $FAULT says.

FAULT is a comma-separated list of `kind:version[:seconds]`, applied to the answers to `fit`. The
kind `held` is applied once, to the first answer from that version on: it is held back until the
file `go<client>` is there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from idiolect.deploy.client import Client
from idiolect.deploy.messages import Payload
from tests.deploy.local_federation import site_data


def load(client: int) -> Any:
    faults = {}
    for item in filter(None, os.environ.get("FAULT", "").split(",")):
        kind, version, *seconds = item.split(":")
        faults[int(version)] = (kind, float(seconds[0]) if seconds else 0.0)
    honest = Client.answer

    def answer(self: Client, request: Payload) -> Payload:
        kind, seconds = "", 0.0
        if request.kind == "fit":
            version = request.meta["version"]
            kind, seconds = faults.get(version, ("", 0.0))
            for since in [v for v, (what, _) in faults.items() if what == "held" and version >= v]:
                kind, _ = faults.pop(since)
        if kind == "before":  # slow before it has done anything
            Path(f"slow{client}").touch()
            time.sleep(seconds)
        reply = honest(self, request)
        if kind == "after":  # slow after its work is on disk
            Path(f"slow{client}").touch()
            time.sleep(seconds)
        if kind == "held":
            Path(f"slow{client}").write_text(str(version))
            while not Path(f"go{client}").exists():
                time.sleep(0.2)
        return spoiled(reply, kind)

    Client.answer = answer  # type: ignore[method-assign]
    return site_data(client)


def spoiled(reply: Payload, kind: str) -> Payload:
    if kind not in ("nan", "shape", "version", "giant"):
        return reply
    model, meta = dict(reply.record["up"]["model"]), dict(reply.meta)
    name = next(iter(model))
    if kind == "nan":
        model[name] = model[name] * float("nan")
    elif kind == "shape":
        model[name] = model[name][:, :-1]
    elif kind == "giant":
        model[name] = torch.zeros(1, 8_000_000, dtype=torch.float64)
    elif kind == "version":
        meta["version"] += 7
    return Payload(meta, {"up": {"model": model}})
