"""`idiolect data`."""

import json
from pathlib import Path

from tests.cli.calls import call


def test_data_commands() -> None:
    assert "digits" in call("data", "list").stdout
    assert "scikit-learn" in call("data", "get", "digits").stdout
    about = json.loads(call("data", "inspect", "digits", "--clients", "5", "--json").stdout)
    assert about["n_clients"] == 5
    assert "5 clients" in call("data", "inspect", "digits", "--clients", "5").stdout


def test_inspect_finds_leaks_and_classes_of_one_sample(tmp_path: Path) -> None:
    lines = ["a,b,label,client,part"]
    for i in range(12):
        lines.append(f"{i},{i * i},{'cat' if i % 2 else 'dog'},{'xy'[i % 3 == 0]},train")
    lines += ["3,9,cat,x,test", "77,1,emu,x,test", "78,1,dog,y,test"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    told = json.loads(call("data", "inspect", tmp_path / "t.csv", "--json").stdout)["findings"]
    assert told["leaks"] == {"x": 1} and told["leaks_of_own"] == 0
    assert told["one_sample_classes"] == ["emu"] and told["tested_on_unknown_classes"] == ["x"]
    shown = call("data", "inspect", tmp_path / "t.csv").stdout
    assert "1 of 3 test samples are also training samples" in shown and "█" in shown
    assert call("data", "inspect", "digits", "--split", "iid").exit_code == 0


def test_inspect_finds_small_sites_one_class_and_large_inputs(tmp_path: Path) -> None:
    lines = ["size,word,client,label"]
    lines += [f"{k},{'ab'[k % 2]},big,{('no', 'yes')[k % 3 == 0]}" for k in range(60)]
    lines += ["3,a,small,no"] * 4
    (tmp_path / "t.csv").write_text("\n".join(lines))
    told = json.loads(call("data", "inspect", tmp_path / "t.csv", "--json").stdout)["findings"]
    assert told["few_test_samples"] == {"small": 1} and told["one_class_clients"] == ["small"]
    assert told["largest_input"] == 59
    shown = call("data", "inspect", tmp_path / "t.csv", "--set", "data.standardize=true").stdout
    assert "fewer than 10 test samples" in shown and "train on one class only: small" in shown
    assert "standardize" not in shown
    same = ["--set", "data.label=size", "--task", "regression", "--set", "data.input=word"]
    shown = call("data", "inspect", tmp_path / "t.csv", *same).stdout
    assert "small 1" in shown and "standardize" not in shown and "targets reach 59" in shown


def test_several_columns_in_the_wrong_form_get_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,label,client\n1,2,0,x\n2,3,1,x\n3,4,0,y\n4,5,1,y\n")
    done = call("data", "inspect", tmp_path / "t.csv", "--set", "data.input=a,b")
    assert done.exit_code == 2 and "several are written [a,b]" in done.stderr
