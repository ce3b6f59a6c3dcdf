"""A client's model as ONNX, run by onnxruntime: its logits are those of `predict`, for every kind
of input. Only where the packages are."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect.core.task import LearningTask
from idiolect.models.build import wants_tokens
from idiolect.runs import predictions
from idiolect.runs.trained_run import TrainedRun
from tests.cli.calls import call

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's exporter warns about itself

TEXT = ["--set", "data.input=text", "--set", "data.client=who"]
OWN = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = torch.relu(self.body(torch.stack([x["a"], x["b"]], 1)))
        return {"hidden": h, "logits": self.head(h)}
"""
KINDS = {
    "images": ["--data", "digits", "--clients", "3", "--model", "cnn_small"],
    "batch norm": ["--data", "digits", "--clients", "3", "--model", "resnet8"],
    "table": ["--data", "t.csv", "--set", "data.client=who", "--set", "data.input=[a,b,kind]",
              "--model", "tabular"],
    "regression": ["--data", "t.csv", "--task", "regression", "--set", "data.client=who",
                   "--set", "data.label=b", "--set", "data.input=[a,kind]", "--model", "tabular"],
    "words": ["--data", "t.csv", *TEXT, "--set", "data.tokens=words"],
    "next token": ["--data", "t.csv", *TEXT, "--task", "next-token", "--set", "data.length=6"],
    "by name": ["--data", "t.csv", "--set", "data.client=who", "--set", "data.input=[a,b]",
                "--set", "data.form=dict", "--model", "my.py:Two"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    lines = ["who,kind,a,b,text,label"]
    for i in range(60):
        a, b = draw.normal(size=2)
        words = " ".join(draw.choice(["red", "blue", "green"], 3))
        lines.append(f"s{i % 3},{'xy'[i % 2]},{a:.3f},{b:.3f},{words},{int(a > b)}")
    Path("t.csv").write_text("\n".join(lines))
    Path("my.py").write_text(OWN)


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_says_what_predict_says(kind: str) -> None:
    words = [*KINDS[kind], "--rounds", "1", "--out", "r"]
    assert call("run", "fedper", *words).exit_code == 0
    done = call("export", "r", "--client", "1", "--onnx", "--json")
    assert done.exit_code == 0 and not done.stderr, done.output
    card = json.loads(done.stdout)  # nothing else is printed there
    run = TrainedRun(Path("r"), ["my.py:Two"])
    module, fed = run.module(run.personal(1)), run.federation
    session = runtime.InferenceSession("r/exports/client_0001/model.onnx")
    assert [one.name for one in session.get_inputs()] == ["x"]
    for rows in (fed.test[1][:1], torch.cat([fed.train[1], fed.test[1]])):
        tokens = fed.x.dtype == torch.int64 and wants_tokens(module, fed.shape)
        x = fed.x[rows] if tokens else fed.inputs(rows, torch.float32)
        [found] = session.run(["logits"], {"x": x.numpy()})
        wanted = predictions.outputs(module, fed, rows)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    judged = LearningTask(card["task"]).metric.of_client(torch.from_numpy(found), fed.y[rows])
    assert np.isfinite(judged)


def test_a_network_that_onnx_cannot_hold_is_one_line() -> None:
    Path("my.py").write_text(
        OWN.replace("return {", "if h.sum() > 0:\n            h = h * 2\n        return {")
    )
    words = [*KINDS["by name"], "--rounds", "1", "--out", "r"]
    done = call("run", "local", *words, "--engine", "loop")
    assert done.exit_code == 0, done.output
    failed = call("export", "r", "--client", "1", "--onnx")
    assert failed.exit_code == 2 and "leave out --onnx" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1 and not list(Path("r").rglob("*.onnx"))
