"""Settings: layers, types, ranges and the hint for every mistake."""

from pathlib import Path

import pytest

from idiolect.errors import UserError
from idiolect.runs import config


def resolve(*sets: str, **flags: object) -> config.Config:
    return config.resolve(None, {"method": {"name": "fedavg"}, **flags}, sets)


def test_defaults_are_complete_and_survive_yaml(tmp_path: Path) -> None:
    made = resolve()
    assert made["data"]["name"] == "digits" and made["split"]["clients"] == 20
    assert made["model"]["name"] == "cnn_small" and made["method"]["lr"] > 0
    (tmp_path / "config.yaml").write_text(config.dump(made))
    again = config.read_yaml(tmp_path / "config.yaml")
    assert again == made and config.digest(again) == config.digest(made)
    assert config.complete(again) == made


def test_where_clients_are_kept_is_no_part_of_a_run() -> None:
    host, disk = resolve(keep="host"), resolve("keep=disk")
    assert (host["keep"], disk["keep"]) == ("host", "disk")
    assert config.digest(host) == config.digest(disk) == config.digest(resolve())
    with pytest.raises(UserError, match="did you mean 'device'"):
        resolve(keep="devise")


def test_file_is_below_flags_and_flags_below_set(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 7\nseed: 3\nsplit: {name: dirichlet, alpha: 0.7}\nmethod: fedper\n")
    made = config.resolve(file, {"seed": 4, "method": {"name": "fedper"}}, ["split.alpha=0.9"])
    assert (made["rounds"], made["seed"], made["split"]["alpha"]) == (7, 4, 0.9)


def test_another_split_drops_the_options_of_the_first(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("method: fedavg\nsplit: {name: dirichlet, alpha: 0.7}\n")
    made = config.resolve(file, {"split": {"name": "iid", "clients": 5}})
    assert "alpha" not in made["split"] and made["split"]["clients"] == 5


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("3", 3), ("true", True), ("full", "full"), ("null", None)]
)
def test_set_values_are_yaml(text: str, value: object) -> None:
    assert config.parse_set(f"method.x={text}") == {"method": {"x": value}}


@pytest.mark.parametrize(
    ("text", "kind", "rate"), [("0.5", "fixed", 0.5), ("binomial:0.2", "binomial", 0.2)]
)
def test_participation_forms(text: str, kind: str, rate: float) -> None:
    assert resolve(participation=text)["participation"] == {"kind": kind, "rate": rate}
    assert resolve(f"participation.rate={rate}")["participation"]["rate"] == rate


@pytest.mark.parametrize(
    ("sets", "hint"),
    [
        (["roundz=3"], "did you mean 'rounds'"),
        (["method.lrr=3"], "did you mean 'lr'"),
        (["method.name=fedavgg"], "method fedavg and --set method.name=fedavgg contradict"),
        (["data.name=cifar"], "did you mean 'cifar10'"),
        (["split.name=dirichlett"], "did you mean 'dirichlet'"),
        (["split.alhpa=1"], "did you mean 'alpha'"),
        (["model.name=cnn_smal"], "did you mean 'cnn_small'"),
        (["engine=stackd"], "did you mean 'stacked'"),
        (["device=gpu"], "known: auto, cpu, cuda"),
        (["dtype=float16"], "known: bf16, float32, float64, tf32"),
        (["protocol=fedass"], "did you mean 'fedas'"),
        (["save_models=all"], "known: best, every, last"),
        (["participation=0"], "above 0"),
        (["participation=1.5"], "at most 1"),
        (["participation=half"], "binomial:RATE"),
        (["participation.kin=full"], "did you mean 'kind'"),
        (["rounds=0"], "at least 1"),
        (["rounds=2.5"], "whole number"),
        (["seed=-1"], "at least 0"),
        (["seed=true"], "whole number"),
        (["stragglers=-1"], "at least 0"),
        (["stragglers.cycle=papr"], "did you mean 'paper'"),
        (["rounds.x=1"], "one value"),
        (["init=/nowhere/w.safetensors"], "does not exist"),
        (["method"], "key=value"),
        (["method.lr=[1"], "not a YAML value"),
    ],
)
def test_mistakes_get_one_line_with_the_fix(sets: list[str], hint: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(*sets)
    assert hint in str(caught.value) and "\n" not in str(caught.value)


def test_bad_files_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        config.read_yaml(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        config.read_yaml(tmp_path / "bad.yaml")


def test_configs_of_earlier_versions_are_still_configs() -> None:
    """A setting they do not have gets its default; a clock in whole numbers is the same clock."""
    made = resolve("clock.window=2.0")
    old = {key: value for key, value in made.items() if key != "keep"}
    assert config.complete(old) == made and config.digest(old) == config.digest(made)
    whole = {**made, "clock": {**made["clock"], "window": 2}}
    assert config.digest(whole) == config.digest(made)


def test_the_config_is_typed() -> None:
    made = config.RunConfig(method="fedavg", stragglers=3, participation="binomial:0.5")  # type: ignore[arg-type]
    assert made.method == {"name": "fedavg"} and made.stragglers.count == 3
    assert made.as_dict()["participation"] == {"kind": "binomial", "rate": 0.5}
    assert tuple(made.as_dict()) == config.SETTINGS
    with pytest.raises(UserError, match="schedule must be a path"):
        resolve(schedule=[[0, 1]])


def test_a_file_may_leave_the_name_to_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("method: {lr: 0.5}\nsplit: {k: 3}\nmodel: {hidden: 7}\n")
    flags = {"method": {"name": "fedavg"}, "split": {"name": "classes"}, "model": {"name": "mlp"}}
    made = config.resolve(file, flags)
    assert (made["method"]["lr"], made["split"]["k"], made["model"]["hidden"]) == (0.5, 3, 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds: 0", "rounds must be at least 1 and at most 1e+06, got 0"),
        ("roundz: 1", "did you mean 'rounds'"),
        ("method: {lrr: 1}", "did you mean 'lr'"),
        ("method: 3", "method must be a name or a section with keys, got 3"),
        ("participation: yes", "participation must be"),
        ("clock: on", "clock must be"),
        ("seed: 2024-01-01", "seed must be a whole number, got '2024-01-01'"),
        ("seed: 1:0", "seed must be a whole number, got '1:0'"),
        ("seed: 1\nseed: 2", "the key 'seed' is there twice"),
        ("split: {alpha: .nan}", "not a finite number"),
        ("split: {alpha: 1e999}", "not a finite number"),
        ("a: &a [1]\nb: *a", "alias"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        config.resolve(file, {"method": {"name": "fedavg"}})
    assert str(caught.value).startswith(str(file)) and words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_elsewhere_does_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 3\n")
    with pytest.raises(UserError, match=r"^seed must be"):
        config.resolve(file, {"method": {"name": "fedavg"}}, ["seed=-1"])


@pytest.mark.parametrize(
    ("text", "value"), [("010", 10), ("0o10", 8), ("yes", "yes"), ("1:0", "1:0"), ("1_0", "1_0")]
)
def test_numbers_and_words_are_those_of_yaml_1_2(text: str, value: object) -> None:
    assert config.parse_set(f"method.x={text}") == {"method": {"x": value}}


@pytest.mark.parametrize(
    "word", ["1e3", "0o17", "010", "yes", "1:0", "~", "", "true", "<<", "a: b"]
)
def test_words_survive_being_written(tmp_path: Path, word: str) -> None:
    (tmp_path / "c.yaml").write_text(config.dump({"k": word, "v": [1e-5, 5e-324, 1e22]}))
    assert config.read_yaml(tmp_path / "c.yaml") == {"k": word, "v": [1e-5, 5e-324, 1e22]}


def test_a_setting_of_what_has_none_says_so() -> None:
    with pytest.raises(UserError, match=r"unknown setting of model 'linear' 'x': it has none"):
        resolve("model.name=linear", "model.x=1")


@pytest.mark.parametrize("item", ["rounds=-" + "9" * 4000, "seed=" + "x" * 9000, "x" * 9000 + "=1"])
def test_a_long_value_is_quoted_short(item: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(item)
    assert len(str(caught.value)) < 600
