"""`idiolect advise`: the choice, that test samples have no say in it, and its words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import idiolect
from idiolect import data, models
from idiolect.errors import UserError
from idiolect.report import advice_words
from idiolect.report.advice import Advice
from idiolect.report.load import Run, load
from idiolect.report.validation_view import on_validation
from idiolect.runs.tournament import ROUNDS
from tests.cli.calls import call

WORDS = ["--rounds", "2", "--model", "mlp", "--set", "model.hidden=8", "--set", "method.lr=0.1"]


def wards(path: Path, poisoned: bool = False) -> None:
    """Four wards, each with its own rule for the label; a quarter of each is for testing."""
    draw = np.random.default_rng(0)
    lines = ["ward,part,a,b,label"]
    for ward in range(4):
        for number in range(24):
            a, b = draw.normal(size=2)
            part = "test" if number % 4 == 3 else "train"
            label = (a > b) ^ (ward % 2 == 1) ^ (poisoned and part == "test")
            lines.append(f"ward {ward},{part},{a:.3f},{b:.3f},{'yes' if label else 'no'}")
    path.write_text("\n".join(lines) + "\n")


def advised(data: str, *more: str) -> dict[str, Any]:
    sets = ["--set", "data.client=ward", "--set", "data.label=label"]
    words = ["advise", "--data", data, *sets, *WORDS, "--json", *more]
    result = call(*words)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_advice_names_method_clients_cost_and_certainty() -> None:
    wards(Path("wards.csv"))
    methods = ["--methods", "fedper", "--out", "a"]
    found = advised("wards.csv", *methods)
    assert set(found["cost_per_round"]) == {"local", "fedavg", "fedper"}
    assert found["method"] in found["cost_per_round"]
    assert found["heterogeneity"]["smallest"] == 18  # the test samples are not counted
    assert set(found["heterogeneity"]["gradient_similarity"]) == {"body.1", "head"}
    if found["method"] != "local":
        assert set(found["gains"]) == {f"ward {k}" for k in range(4)}
    assert json.loads(Path("a/advice.json").read_text()) == found
    told = call("advise", "--data", "wards.csv", "--set", "data.client=ward", "--set",
                "data.label=label", *WORDS, *methods)  # fmt: skip
    assert told.exit_code == 0 and "already finished" in told.stderr
    for words in (f"Take {found['method']}", "Clients", "by chance", "It costs", "validation"):
        assert words in told.stdout
    assert "standardised" not in told.stdout


def test_advice_on_large_inputs_says_what_to_do_first() -> None:
    wards(Path("wards.csv"))
    text = Path("wards.csv").read_text().replace(",no", "7,no").replace(",yes", "7,yes")
    Path("large.csv").write_text(text.replace("0.", "80.").replace("1.", "81."))
    words = advised("large.csv", "--methods", "local", "--seeds", "0")["words"]
    assert words[0].startswith("Inputs reach 8") and "data.standardize=true" in words[0]


def test_the_test_samples_have_no_say() -> None:
    """With every test label wrong the advice stays the same, to the last digit."""
    wards(Path("good.csv"))
    wards(Path("poisoned.csv"), poisoned=True)
    both = [advised(name, "--methods", "fedper", "--seeds", "0", "--out", name[0]) for name in
            ("good.csv", "poisoned.csv")]  # fmt: skip
    scores = [load(Path(out) / "fedper-seed0").summary["accuracy"]["last"] for out in "gp"]
    assert scores[0] != scores[1]  # the poison is there
    for found in both:
        for cost in found["cost_per_round"].values():
            del cost["seconds"]
        for row in found["validation"]:
            del row["seconds_per_round"]
        found["words"] = [line for line in found["words"] if "seconds" not in line]
    assert both[0] == both[1]


def test_a_method_that_does_not_fit_is_left_out_and_a_mistake_is_one_line() -> None:
    wards(Path("wards.csv"))
    table = ["--data", "wards.csv", "--set", "data.client=ward", "--set", "data.label=b",
             "--set", "data.input=a", "--task", "regression"]  # fmt: skip
    result = call("advise", *table, *WORDS, "--methods", "fedas", "--seeds", "0", "--json")
    assert result.exit_code == 0, result.output
    assert "fedas is left out: fedas needs samples with one class each" in result.stderr
    found = json.loads(result.stdout)
    assert "fedas" in found["left_out"] and found["validation"][0]["metric"] == "rmse"
    for words, wrong in (
        (["--methods", "fedavg,,ditto"], "--methods takes names"),
        (["--methods", "fedper,dito"], "did you mean"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        (["--seeds", "one"], "--seeds takes whole numbers"),
    ):
        bad = call("advise", *words)
        assert bad.exit_code == 2 and wrong in bad.stderr and "Traceback" not in bad.stderr


def test_from_python_it_is_the_same(tmp_path: Path) -> None:
    """The command's advice on a file, and `idiolect.advise` on the same clients as objects."""
    wards(Path("wards.csv"))
    told = advised("wards.csv", "--methods", "fedper,fedavg_ft", "--seeds", "0", "--out", "a")
    section = {"name": "wards.csv", "client": "ward", "label": "label"}
    clients = data.build(section, {"name": "natural"})
    model = models.build({"name": "mlp", "hidden": 8}, clients.shape, clients.classes, 0)
    ours = ["fedper", "fedavg_ft"]
    made = idiolect.advise(
        clients, model, methods=ours, out=tmp_path / "p", rounds=2, seeds=[0], lr=0.1
    )
    assert made.method == told["method"] and len(repr(made)) < 100 and made.method in repr(made)
    assert str(made).splitlines()[:5] == told["words"][:5] and "<table>" in made._repr_html_()
    assert [row["accuracy"] for row in made.rows] == [r["accuracy"] for r in told["validation"]]
    assert set(made.as_dict()) == set(told) and (tmp_path / "p/advice.json").exists()
    with pytest.raises(UserError, match="already holds this run"):
        idiolect.advise(
            clients, model, methods=ours, out=tmp_path / "p", rounds=2, seeds=[0], lr=0.1
        )
    with pytest.raises(UserError, match="val_share must be between 0 and 1"):
        idiolect.advise(clients, model, out=tmp_path / "q", val_share=1.0)


def test_help_names_the_rounds_of_the_tournament() -> None:
    shown = " ".join(call("advise", "--help").output.replace("│", " ").split())
    assert f"Rounds of the tournament. Default: {ROUNDS}." in shown


def test_own_functions_get_validation_samples_too() -> None:
    Path("mine.py").write_text(
        "import numpy as np\n"
        "def clients():\n"
        "    draw = np.random.default_rng(0)\n"
        "    def part(n):\n"
        "        x = draw.normal(size=(n, 3)).astype('float32')\n"
        "        return x, (x.sum(1) > 0).astype('int64')\n"
        "    made = []\n"
        "    for _ in range(3):\n"
        "        (a, b), (c, d) = part(16), part(4)\n"
        "        made.append(dict(x_train=a, y_train=b, x_test=c, y_test=d))\n"
        "    return made\n"
    )
    words = ["--data", "mine.py:clients", *WORDS, "--methods", "local", "--seeds", "0"]
    result = call("advise", *words, "--out", "own", "--json")
    assert result.exit_code == 0, result.output
    table = load(Path("own/local-seed0")).table
    assert set(table["val_size"]) == {4} and set(table["train_size"]) == {12}


def runs_of(scores: dict[str, tuple[np.ndarray, float]]) -> list[Run]:
    """Runs with these validation scores of clients and bytes a round; on test samples each is as
    bad as it can be."""
    made = []
    for method, (values, sent) in scores.items():
        n = len(values)
        table = {
            "round": np.ones(n, int),
            "client": np.arange(n),
            "unseen": np.zeros(n, bool),
            "started": np.ones(n, bool),
            "test_size": np.full(n, 9),
            "val_size": np.full(n, 1000),
            **{f"{what}_before": np.zeros(n) for what in ("accuracy", "loss")},
            **{f"val_{what}_before": values for what in ("accuracy", "loss")},
        }
        event = {"round": 1, "seconds": 1.0, "seconds_eval": 0.0, "samples": 1, "steps": 1,
                 "bytes_up": sent, "bytes_down": sent, "diverged": False}  # fmt: skip
        config = {"method": {"name": method}, "data": {}, "split": {}, "seed": 0,
                  "protocol": "default"}  # fmt: skip
        made.append(Run(Path(method), config, {}, [event], table, {}, True))
    return made


def told(advice: Advice) -> str:
    return " ".join(advice_words.lines(advice))


def test_of_methods_that_cannot_be_told_apart_the_cheaper_one_is_taken() -> None:
    draw = np.random.default_rng(0)
    local = draw.uniform(0.5, 0.7, 20)
    good = local + 0.2
    near = good + np.tile([0.02, -0.022], 10)
    scores = {"local": (local, 0.0), "fedavg": (good, 3e6), "fedper": (near, 1e6)}
    advice = Advice(runs_of(scores))
    assert advice.best.label == "fedavg" and advice.chosen.label == "fedper"
    assert "fedavg and fedper cannot be told apart; fedper sends least and is taken" in told(advice)
    assert "(Wilcoxon signed-rank test, Holm-corrected, 20 pairs" in told(advice)
    assert "2 MB" in told(advice) and "20 of 20 clients gain" in told(advice)
    assert "None is harmed" in told(advice)


def test_a_lead_that_matters_is_kept_and_chance_is_admitted() -> None:
    draw = np.random.default_rng(1)
    local = np.full(20, 0.6)
    good, noisy = local + draw.normal(0.05, 0.2, 20), local + draw.normal(0.0, 0.2, 20)
    advice = Advice(runs_of({"local": (local, 0.0), "fedavg": (good, 1e6), "ditto": (noisy, 1e6)}))
    assert advice.chosen is advice.best and not advice.alike and advice.perhaps
    assert "Not sure" in told(advice) and "may be chance" in told(advice)
    sure = Advice(runs_of({"local": (local, 0.0), "fedavg": (local + 0.1, 1e6)}))
    assert "Sure: every other method is worse beyond chance" in told(sure)
    few = Advice(runs_of({"local": (local[:3], 0.0), "fedavg": (local[:3] + 0.1, 1e6)}))
    assert "3 pairs of a client and a seed are too few for a test" in told(few)


def test_a_run_without_validation_samples_is_refused() -> None:
    run = runs_of({"local": (np.ones(3), 0.0)})[0]
    run.table["val_size"][:] = 0
    with pytest.raises(Exception, match="no validation samples"):
        on_validation(run)
