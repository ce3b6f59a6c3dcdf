"""Methods of a comparison do the same local work unless told otherwise."""

from pathlib import Path
from typing import Any

from idiolect import methods
from idiolect.core.method import SgdMethod
from idiolect.methods import REGISTRY
from idiolect.runs.compare import plans
from idiolect.runs.config import dump
from idiolect.runs.fair_work import LOCAL_WORK, keeps_its_own


def work(names: list[str], **given: Any) -> dict[str, dict[str, Any]]:
    made = plans(names, [0], Path("out"), **given)
    return {p.config["method"]["name"]: p.config["method"] for p in made}


def test_every_method_with_local_sgd_gets_the_same_work() -> None:
    made = work(list(REGISTRY))
    shared = {
        tuple(section[key] for key in LOCAL_WORK)
        for name, section in made.items()
        if issubclass(REGISTRY[name], SgdMethod)
    }
    assert shared == {(0.01, 1, 0, 32)}
    for name in keeps_its_own(list(REGISTRY)):
        assert made[name] == {"name": name, **REGISTRY[name]().as_dict()}


def test_as_published_every_method_has_its_own() -> None:
    made = work(["fedavg", "fedas", "fedavg_async"], as_published=True)
    for name, section in made.items():
        assert section == {"name": name, **REGISTRY[name]().as_dict()}
    assert made["fedas"]["epochs"] == 5 and made["fedavg_async"]["steps"] == 20


def test_what_is_given_is_for_all_and_what_is_given_for_one_wins() -> None:
    made = work(["fedavg", "fedas"], sets=["method.lr=0.1", "fedas.epochs=3"])
    assert [s["lr"] for s in made.values()] == [0.1, 0.1]
    assert [s["epochs"] for s in made.values()] == [1, 3]
    assert [s["batch_size"] for s in made.values()] == [32, 32]


def test_a_settings_file_is_given_too(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("method: {lr: 0.2, epochs: 4}\nrounds: 3\n")
    made = work(["fedavg", "fedas"], file=file)
    assert [(s["lr"], s["epochs"]) for s in made.values()] == [(0.2, 4), (0.2, 4)]


def test_the_local_work_of_a_settings_file_is_for_all_whichever_method_it_names(
    tmp_path: Path,
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("method: {name: fedas, lr: 0.2, momentum: 0.5}\n")
    made = work(["fedavg", "fedas", "pflego"], file=file)
    assert [s.get("lr") for s in made.values()] == [0.2, 0.2, None]
    assert [s.get("momentum") for s in made.values()] == [0.0, 0.5, None]  # the method's own
    assert [s.get("epochs") for s in made.values()] == [1, 1, None]
    told = work(["fedavg", "fedas"], file=file, sets=["method.lr=0.3", "fedavg.lr=0.1"])
    assert [s["lr"] for s in told.values()] == [0.1, 0.3]
    swept = plans(["local", "fedas"], [0], Path("out"), file=file, sweeps=["lr=0.5,0.6"])
    assert [p.config["method"]["lr"] for p in swept] == [0.5, 0.6] * 2
    assert work(["fedavg", "fedas"], file=file, as_published=True)["fedavg"]["lr"] != 0.2
    file.write_text("method: {name: fedavg, steps: 7}\n")
    made = work(["local", "fedavg", "fedas"], file=file)
    assert [s["steps"] for s in made.values()] == [7, 7, 7]


def test_the_config_of_a_run_is_a_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    [run] = plans(["fedas"], [0], Path("out"), sets=["method.lr=0.2", "method.epochs=3"])
    file.write_text(dump(run.config))
    made = work(["local", "fedas"], file=file)
    assert [(s["lr"], s["epochs"], s["steps"]) for s in made.values()] == [(0.2, 3, 0)] * 2


def test_steps_come_instead_of_epochs() -> None:
    made = work(["fedavg", "fedavg_async"], sets=["method.steps=5"])
    assert [s["steps"] for s in made.values()] == [5, 5]
    for section in made.values():
        assert methods.build(section).without_effect() == []


def test_a_swept_value_is_no_contradiction() -> None:
    made = plans(["fedas"], [0], Path("out"), sweeps=["lr=0.1,0.2"])
    assert [p.config["method"]["lr"] for p in made] == [0.1, 0.2]
