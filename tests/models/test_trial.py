"""Networks of one's own that cannot be trained are one line before a run."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import idiolect
from idiolect.errors import UserError
from idiolect.models import check_fits
from tests.cli.calls import call
from tests.conftest import ragged_federation

OPENING = (
    "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def __init__(self, classes):\n"
)
LAYER = "        super().__init__()\n        self.head = nn.Linear(64, classes)\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def (", "SyntaxError"),
        ("import nothing_of_this_name", "nothing_of_this_name"),
        ("raise SystemExit(0)", "SystemExit"),
        (OPENING + "        raise SystemExit(0)\n", "could not be built"),
        (
            OPENING + "        super().__init__()\n    def forward(self, x):\n"
            "        return x.flatten(1)[:, :10]\n",
            "no parameter to train",
        ),
        (
            OPENING
            + LAYER
            + "    def forward(self, x):\n        return self.head(x.flatten(1)), x\n",
            "gives tuple",
        ),
        (
            OPENING + LAYER + "    def forward(self, x):\n"
            "        if self.training: raise ValueError('not\\nnow')\n"
            "        return self.head(x.flatten(1))\n",
            "cannot be trained: ValueError: not now",
        ),
        (
            OPENING + LAYER + "    def forward(self, x):\n"
            "        return self.head(x.flatten(1)).detach()\n",
            "does not depend on its parameters",
        ),
        (
            OPENING + LAYER + "        self.half()\n    def forward(self, x):\n"
            "        return self.head(x.flatten(1).half())\n",
            "cannot be trained",
        ),
        (
            OPENING + LAYER + "        self.register_buffer('seen', torch.zeros(1).long())\n"
            "    def forward(self, x):\n"
            "        self.seen += int(self.training)\n"
            "        return self.head(x.flatten(1)) / (1 + self.seen)\n",
            "changes its buffer 'seen' in training, and all clients would share it",
        ),
        (
            "import warnings\n" + OPENING + LAYER + "        with warnings.catch_warnings():\n"
            "            warnings.simplefilter('ignore')\n"
            "            nn.utils.weight_norm(self.head)\n"
            "    def forward(self, x):\n"
            "        return self.head(x.flatten(1))\n",
            "take those of torch.nn.utils.parametrizations",
        ),
    ],
)
def test_own_files_that_cannot_be_used(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(text)
    words_given = ("--clients", "3", "--rounds", "1", "--set", "split.alpha=0.5", "--out", "r")
    result = call("run", "fedavg", "--model", "own.py:Net", *words_given)
    assert result.exit_code == 2 and words in result.stderr and result.stderr.count("\n") == 1


class Scaled(nn.Module):
    """A constant that is not saved with the weights."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((144,), 0.5), persistent=False)
        self.head = nn.Linear(144, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.flatten(1) * self.scale)
        return out


def test_buffers_that_are_not_saved_are_constants() -> None:
    for engine in ("stacked", "loop"):
        done = idiolect.simulate("fedavg", ragged_federation(), Scaled(), rounds=1, engine=engine)
        assert set(done.last.clients[0]) == {"head.weight", "head.bias"}
        Scaled().load_state_dict(done.last.clients[0])


def test_the_trial_leaves_no_trace() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2)
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    check_fits(model, (4,), 2)
    assert torch.equal(torch.random.get_rng_state(), state) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(UserError, match="cannot take samples"):
        check_fits(model, (5,), 2)
