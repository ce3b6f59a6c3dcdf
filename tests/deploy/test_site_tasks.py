"""Every task on real sites: the simulator's numbers, with the site's own loss and augmentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect import methods, models
from idiolect.core import augmentation, own_code
from idiolect.core.form import Form
from idiolect.core.task import LearningTask
from idiolect.data import Federation
from idiolect.deploy import validate
from idiolect.deploy.client import Client
from idiolect.deploy.client_data import open_client
from idiolect.deploy.enrolment import Enrolment
from idiolect.deploy.messages import Payload
from idiolect.deploy.terms import FederationTerms
from idiolect.errors import UserError
from idiolect.runs.directory import read_config
from idiolect.runs.history import ClientLog
from idiolect.simulation.simulation import Simulation
from tests.deploy.federation_processes import federation, needs_flower
from tests.deploy.local_federation import (
    EXPERIMENT,
    LocalTransport,
    assert_same_private,
    assert_same_server,
    config,
    served,
)

SITES, STEPS, TOKENS = 3, 6, 7
LOSS = """
def huber(net, params, x, y):
    return (1 + (net(params, x) - y).square()).sqrt().mean(1)

def shifted(x, draw):
    return x + float(draw.normal())

def near(outputs, targets):
    return (outputs - targets).abs().amax(1) <= 0.5
"""


def arrays(site: int, task: str) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(50 + site)
    rule = np.random.default_rng(3).normal(size=(4, 2))

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        if task in ("next-token", "sequence"):
            walk = (np.cumsum(draw.integers(1, 3, (n, STEPS + 1)), 1) + site) % (TOKENS - 1) + 1
            x, y = walk[:, :-1].copy(), walk[:, 1:].copy()
            y[:, -1] = np.where(draw.random(n) < 0.3, -100, y[:, -1])
            return x, y if task == "next-token" else np.where(y < 0, y, y % 3)
        x = draw.normal(size=(n, 4))
        y = x @ rule + 0.1 * site
        return x, y if task == "regression" else (y > 0).astype(float)

    (x, y), (x_test, y_test) = part(12 + 5 * site), part(9)
    return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}


def classes_of(task: str) -> int:
    return {"next-token": TOKENS, "sequence": 3}.get(task, 2)


def data(task: LearningTask, *sites: int) -> Federation:
    form = Form((TOKENS,)) if task.per_step else Form()
    made = [arrays(site, task.name) for site in sites]
    return Federation.from_arrays(made, classes_of(task.name), task=task, form=form)


def both(
    tmp_path: Path, task: LearningTask, method: str, loss: str | None, augment: str | None
) -> tuple[Any, Simulation, list[Client]]:
    made = config(method, rounds=2, lr=0.1)
    made["model"] = {"name": "gru", "hidden": 5} if task.per_step else {"name": "mlp", "hidden": 5}
    codes = (TOKENS,) if task.per_step else ()
    sites = [
        Client(i, data(task, i), tmp_path / f"s{i}", codes=codes, loss=loss, augment=augment)
        for i in range(SITES)
    ]
    learn = (
        own_code.load_function(loss, "loss", [loss]) if loss else None,
        augmentation.loaded(augment, [augment]) if augment else None,
    )
    sim = simulated(made, task, SITES, learn)
    return served(made, LocalTransport(sites), SITES), sim, sites


CASES = [
    ("regression", "", "fedper", True),
    ("regression", "r2", "ditto", False),
    ("multilabel", "", "fedavg", False),
    ("multilabel", "auc", "fedavg_ft", False),
    ("next-token", "", "fedavg", False),
    ("next-token", "token_accuracy", "fedper", False),
    ("sequence", "", "feddwa", False),
]


@pytest.mark.parametrize(("task", "metric", "method", "own"), CASES)
def test_sites_give_the_simulators_numbers(
    task: str, metric: str, method: str, own: bool, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(LOSS)
    code = f"{tmp_path / 'mine.py'}:"
    learn = (f"{code}huber", f"{code}shifted") if own else (None, None)
    ours, theirs, sites = both(tmp_path, LearningTask(task, metric), method, *learn)
    pairs = [(ours.start(), theirs.start()), *((ours.step(), theirs.step()) for _ in range(2))]
    assert not ours.registry.counts["refused"]
    for mine, his in pairs:
        assert (mine.bytes_up, mine.bytes_down) == (his.bytes_up, his.bytes_down)
        assert set(mine.clients) == set(his.clients)
        for name, column in his.clients.items():
            np.testing.assert_allclose(mine.clients[name], column, atol=1e-9, err_msg=name)
    name = LearningTask(task, metric).metric.name
    assert np.isfinite(pairs[-1][0].clients[f"{name}_before"]).all()
    assert_same_server(ours, theirs)
    for site in sites:
        assert_same_private(site, theirs)
        card = json.loads((site.store.folder / "models" / f"{EXPERIMENT}.json").read_text())
        assert (card["task"], card["metric"]) == (task, name)
        assert (site.store.folder / "models" / f"{EXPERIMENT}.safetensors").exists()


def opened(tmp_path: Path, site: int, task: str, **more: Any) -> Client:
    np.savez(tmp_path / f"{site}.npz", **arrays(site, task))
    settings = {"client": site, "data": str(tmp_path / f"{site}.npz"), "task": task}
    return open_client(settings | {"state": str(tmp_path / f"s{site}")} | more)


def test_a_site_is_started_with_its_task(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOSS)
    metric = f"{tmp_path / 'mine.py'}:near"
    sites = [opened(tmp_path, i, "regression", metric=metric) for i in range(2)]
    ours = served(config("fedavg", rounds=1), LocalTransport(sites), 2)
    ours.start()
    column = ours.step().clients["near_before"]
    assert ((column >= 0) & (column <= 1)).all()
    text = opened(tmp_path, 0, "next-token", classes=str(TOKENS), state=str(tmp_path / "t"))
    assert text.kind.form.codes == (TOKENS,) and text.kind.metric == "perplexity"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"task": "regresion"}, "did you mean 'regression'"),
        ({"metric": "auc"}, "'auc' is not for regression"),
        ({"codes": "3,x"}, "--codes 3,x must be a number"),
        ({"augment": "flip"}, "needs images"),
    ],
)
def test_a_mistake_at_a_site_is_one_line(more: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told):
        opened(tmp_path, 0, **{"task": "regression"} | more)


def test_tokens_need_the_federations_number_of_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="need --codes N"):
        opened(tmp_path, 0, "sequence", classes="3")
    assert opened(tmp_path, 0, "sequence", classes="3", codes="7").kind.form.codes == (7,)


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"metric": "mae"}, "client 2 has metric mae, the others rmse; give --metric rmse"),
        ({"task": "multilabel"}, "client 2 has task multilabel, the others regression"),
    ],
)
def test_a_site_with_another_task_is_refused(
    odd: dict[str, Any], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = [opened(tmp_path, i, "regression") for i in range(2)]
    sites.append(opened(tmp_path, 2, **{"task": "regression"} | odd))
    with pytest.raises(UserError, match="only 2 of 3 clients came"):
        served(config("fedavg", rounds=1), LocalTransport(sites), SITES, patience=0.3)
    terms = FederationTerms(EXPERIMENT, SITES, poll=0.001)
    enrolment = Enrolment(terms, LocalTransport(sites))
    enrolment.poll()
    enrolment.wait_for(2)
    assert told in caplog.text and set(enrolment.registry.clients) == {0, 1}


def test_methods_and_losses_that_do_not_go_together(tmp_path: Path) -> None:
    sites = [opened(tmp_path, i, "regression") for i in range(2)]
    with pytest.raises(UserError, match="fedas needs samples with one class each"):
        served(config("fedas", rounds=1), LocalTransport(sites), 2)


@pytest.mark.parametrize(
    ("task", "value", "good"),
    [
        ("regression", 7.5, True),
        ("regression", None, True),
        ("regression", float("inf"), False),
        ("regression", "7", False),
        ("regression", [7.5], False),
        ("multilabel", 0.5, True),
        ("multilabel", 1.5, False),
    ],
)
def test_scores_are_checked(task: str, value: Any, good: bool) -> None:
    metric, sizes = LearningTask(task).metric, {"test": 9, "val": 0}
    reason = validate.wrong_metrics({"test": {"value": value, "loss": 1.0}}, sizes, metric)
    assert reason is None if good else f"{metric.name} cannot be" in str(reason)
    assert validate.wrong_metrics({"test": {"correct": 1, "loss": 1.0}}, sizes, metric)


def test_what_a_metric_is_made_of_stays_at_the_site(tmp_path: Path) -> None:
    """Macro F1 is made of samples by class, R² of the sum of targets: only the value leaves."""
    sites = [opened(tmp_path, i, "regression", metric="r2") for i in range(2)]
    transport = LocalTransport(sites)
    answers = []
    transport.change = lambda answer: answers.append(answer.meta) or answer  # type: ignore[func-returns-value]
    served(config("fedavg", rounds=1), transport, 2).start()
    tested = [meta["before"]["test"] for meta in answers if meta["kind"] == "evaluate"]
    assert len(tested) == 2 and all(set(one) == {"value", "loss"} for one in tested)


FORM = Form().as_plain()
HELLO = {"client": 0, "sizes": {"train": 5, "val": 0, "test": 5}, "shape": [4], "classes": 2,
         "labels": "", "name": "a", "fresh": True, "task": "classification",
         "metric": "accuracy", "better": "higher", "form": FORM}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"task": "poetry"},
        {"task": 3},
        {"metric": "x" * 99},
        {"metric": "../rmse"},
        {"metric": "rmse"},
        {"metric": "loss"},
        {"metric": "val_near"},
        {"form": FORM | {"fields": 7}},
        {"form": FORM | {"fields": [{"name": ["a"], "shape": [4], "whole": True}]}},
        {
            "form": FORM | {"steps": 1 << 20},
            "task": "sequence",
            "metric": "token_accuracy",
            "classes": 1 << 19,
        },
        *({key: None} for key in ("task", "metric", "better", "form")),
        {"better": "more"},
        {"form": []},
        {"form": FORM | {"codes": [1 << 40]}},
        {"form": FORM | {"codes": [2, 3]}},
        {"form": FORM | {"steps": 5}},
        {"form": FORM | {"steps": True}},
        {"form": FORM | {"padded": 1}},
        {"form": FORM | {"fields": [{"name": "a", "shape": [3], "whole": True}]}},
        {"form": FORM | {"fields": [{"name": "a", "shape": [1 << 20] * 9, "whole": True}]}},
    ],
)
def test_a_hello_with_nonsense_is_refused(change: dict[str, Any]) -> None:
    assert validate.wrong_hello(HELLO, 3) is None
    assert validate.wrong_hello(HELLO | change, 3) is not None


def test_a_site_that_sends_false_scores_is_refused(tmp_path: Path) -> None:
    sites = [opened(tmp_path, i, "regression") for i in range(2)]
    transport = LocalTransport(sites)

    def change(answer: Payload) -> Payload:
        if answer.kind == "evaluate" and answer.meta["client"] == 1:
            return Payload(answer.meta | {"before": {"test": {"value": "1", "loss": 1.0}}})
        return answer

    transport.change = change
    ours = served(config("fedavg", rounds=1), transport, 2)
    first = ours.start().clients["rmse_before"]
    assert np.isfinite(first[0]) and np.isnan(first[1]) and ours.registry.counts["refused"] == 1


def simulated(
    made: dict[str, Any], task: LearningTask, sites: int, learn: tuple[Any, Any]
) -> Simulation:
    everyone = data(task, *range(sites))
    how = (everyone.shape, everyone.classes, made["seed"], (), everyone.form)
    return Simulation(
        methods.build(made["method"]), everyone, models.build(made["model"], *how),
        rounds=made["rounds"], seed=made["seed"], engine="loop", device="cpu", dtype="float64",
        learn=learn,
    )  # fmt: skip


@needs_flower
@pytest.mark.parametrize(
    ("task", "own"),
    [
        ("regression", ["--loss", "mine.py:huber", "--augment", "mine.py:shifted"]),
        pytest.param("next-token", ["--classes", str(TOKENS)], marks=pytest.mark.heavy),
    ],
)
def test_real_sites_give_the_simulators_numbers(task: str, own: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOSS)
    for site in range(2):
        np.savez(tmp_path / f"{site}.npz", **arrays(site, task))
    with federation(tmp_path) as fed:
        told = ["--clients", "2", "--rounds", "2", "--set", "method.lr=0.1"]
        fed.server("fedavg", *told, "--dtype", "float64", "--out", "run")
        for site in range(2):
            fed.client(site, "--task", task, *own, "--data", f"{site}.npz")
        assert fed.finished() == 0, fed.story()
    made = read_config(tmp_path / "run")
    learn: tuple[Any, Any] = (None, None)
    if task == "regression":
        code = [f"{tmp_path / 'mine.py'}:{name}" for name in ("huber", "shifted")]
        learn = (own_code.load_function(code[0], "loss", code), augmentation.loaded(code[1], code))
    sim = simulated(made, LearningTask(task), 2, learn)
    rounds = [sim.start(), *(sim.step() for _ in range(2))]
    table = ClientLog(tmp_path / "run")
    table.load()
    for done in rounds:
        for name, column in done.clients.items():
            ours = table.rounds[done.round][name]
            np.testing.assert_allclose(ours, column, atol=1e-9, err_msg=name)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    name = LearningTask(task).metric.name
    assert summary["metric"] == {"name": name, "better": "lower"} and name in fed.out("server")
    for site in range(2):
        [card] = (tmp_path / f"state{site}/models").glob("*.json")
        assert json.loads(card.read_text())["task"] == task
