"""What an earlier revision of a method made is neither gone on with nor shown as the present's."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from idiolect import report
from idiolect.core import files
from idiolect.errors import UserError
from idiolect.methods import REGISTRY
from idiolect.runs import compare as comparison
from idiolect.runs import directory, revision
from idiolect.runs import execute as runs
from idiolect.runs.progress import Progress
from tests.runs.fake_simulation import build, resolved
from tests.runs.killed import Killed, essence, killed_run, snapshot


class Notes(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Raises the revision of FedAvg to 2 when it is called."""

    def to_two() -> None:
        monkeypatch.setattr(REGISTRY["fedavg"], "revision", property(lambda self: 2))
        revision._of_ours.cache_clear()

    revision._of_ours.cache_clear()
    yield to_two
    monkeypatch.undo()
    revision._of_ours.cache_clear()


def env(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "env.json").read_text()))


def planned(out: Path, *names: str) -> list[comparison.Plan]:
    flags = {"rounds": 12, "checkpoint_every": 3}
    return comparison.plans(names, [0], out, flags=flags)


def test_a_run_records_the_revision_that_makes_it(tmp_path: Path, raised: Any) -> None:
    runs.execute(resolved(), tmp_path / "one", build=build)
    raised()
    runs.execute(resolved(), tmp_path / "two", build=build)
    assert [env(tmp_path / name)["revision"] for name in ("one", "two")] == [1, 2]


@pytest.mark.parametrize("recorded", [True, False])
def test_resume_refuses_what_an_earlier_revision_began(
    tmp_path: Path, raised: Any, recorded: bool
) -> None:
    """A run from before revisions were recorded counts as made by the first."""
    out = tmp_path / "run"
    killed_run(out, 8)
    if not recorded:
        files.write_json(out / "env.json", {k: v for k, v in env(out).items() if k != "revision"})
    raised()
    before = snapshot(out)
    with pytest.raises(UserError, match=r"revision 1 of fedavg.*revision 2 now.*--from-start"):
        runs.execute(resolved(), out, resume=True, build=build)
    assert snapshot(out) == before
    runs.execute(resolved(), out, resume=True, build=build, from_start=True)
    assert env(out)["revision"] == 2 and env(out / "earlier-1").get("revision", 1) == 1
    assert len(directory.read_events(out)) == 13


def test_runs_of_the_first_revision_without_a_record_go_on(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    killed_run(out, 8)
    files.write_json(out / "env.json", {k: v for k, v in env(out).items() if k != "revision"})
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)


@pytest.mark.parametrize("value", [-1, "2", 1.5, [1]])
def test_a_damaged_record_is_one_line(tmp_path: Path, value: Any) -> None:
    killed_run(tmp_path / "run", 8)
    files.write_json(tmp_path / "run" / "env.json", {"revision": value})
    with pytest.raises(UserError, match=r"env\.json is damaged: revision"):
        runs.execute(resolved(), tmp_path / "run", resume=True, build=build)


def test_compare_runs_again_what_an_earlier_revision_finished(tmp_path: Path, raised: Any) -> None:
    """It says so, and keeps what was there."""
    comparison.run_all(planned(tmp_path, "local", "fedavg"), Progress(), build)
    raised()
    old = (tmp_path / "fedavg-seed0" / "summary.json").read_bytes()
    notes = Notes()
    comparison.run_all(planned(tmp_path, "local", "fedavg"), notes, build)
    told = "\n".join(notes.lines)
    assert "local seed 0: already finished" in told and "fedavg seed 0: already" not in told
    assert "fedavg-seed0 was made by revision 1 of fedavg" in told and "it is run again" in told
    assert env(tmp_path / "fedavg-seed0")["revision"] == 2
    kept = tmp_path / "fedavg-seed0" / "earlier-1"
    assert (kept / "summary.json").read_bytes() == old and str(kept) in told
    again = Notes()
    comparison.run_all(planned(tmp_path, "local", "fedavg"), again, build)
    assert len([line for line in again.lines if "already finished" in line]) == 2


def test_compare_begins_again_what_an_earlier_revision_left(tmp_path: Path, raised: Any) -> None:
    [item] = planned(tmp_path, "fedavg")
    killed_run(item.out, 8, **{key: item.config[key] for key in ("method", "rounds")})
    raised()
    comparison.run_all([item], Progress(), build)
    assert [len(directory.read_events(p)) for p in (item.out, item.out / "earlier-1")] == [13, 8]


def test_a_kill_while_it_is_put_aside_leaves_nothing_that_counts(
    tmp_path: Path, raised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it falls, no number of the earlier revision is taken for the present one's."""
    rename = os.rename
    for at in range(1, 9):
        out = tmp_path / str(at)
        [item] = planned(out, "fedavg")
        with monkeypatch.context() as patched:
            patched.setattr(REGISTRY["fedavg"], "revision", property(lambda self: 1))
            revision._of_ours.cache_clear()
            comparison.run_all([item], Progress(), build)
        raised()
        left = [at]

        def dying(*given: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Killed
            rename(*given)

        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", dying)
            with suppress(Killed):
                comparison.run_all([item], Progress(), build)
        try:
            comparison.run_all([item], Progress(), build)
        except UserError as error:
            assert "--from-start" in str(error)
        else:
            assert env(item.out)["revision"] == 2
            assert len(directory.read_events(item.out)) == 13


def test_own_code_has_a_revision_once_it_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom idiolect.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n"
        "    @property\n    def revision(self):\n        return 5\n"
    )
    config = {"method": {"name": f"{file}:Mine"}}
    assert revision.of(config) is None and revision.is_current(config, 1)
    REGISTRY.admit(f"{file}:Mine", [f"{file}:Mine"])
    assert revision.of(config) == 5 and not revision.is_current(config, 1)
    assert revision.is_current(config, None)  # nobody knew it then


def test_a_report_says_which_runs_an_earlier_revision_made(tmp_path: Path, raised: Any) -> None:
    runs.execute(resolved(), tmp_path / "old", build=build)
    raised()
    runs.execute(resolved(seed=1), tmp_path / "new", build=build)
    with pytest.warns(UserWarning, match="made by an earlier revision of fedavg.*: old$"):
        found = report.find([tmp_path])
    assert "made by an earlier revision of fedavg" in report.html(found)


def test_a_report_says_that_the_data_changed_between_runs(tmp_path: Path) -> None:
    runs.execute(resolved(), tmp_path / "a", build=build)
    runs.execute(resolved(rounds=6), tmp_path / "b", build=build)
    runs.execute(resolved(rounds=6, seed=1), tmp_path / "c", build=build)  # other clients
    for name in "abc":
        about = env(tmp_path / name)
        about["inputs"] = {"data": name}
        files.write_json(tmp_path / name / "env.json", about)
    with pytest.warns(UserWarning, match="the data changed .*: a against b$") as told:
        report.find([tmp_path])
    assert len(told) == 1


def test_compare_takes_no_run_of_changed_code_or_settings_for_its_own(
    tmp_path: Path,
) -> None:
    """A finished run is read again by a comparison: it must be what its settings say."""
    file = tmp_path / "my.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom idiolect.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    pass\n"
    )
    name = f"{file}:Mine"
    flags = {"rounds": 3}
    plan = comparison.plans([name], [0], tmp_path / "c", flags=flags, allow_code=[name])
    comparison.run_all(plan, Progress(), build)
    comparison.run_all(plan, Progress(), build)
    file.write_text(file.read_text() + "\n    lr: float = 0.5\n")
    with pytest.raises(UserError, match=r"the code of method .* changed since .* another --out"):
        comparison.run_all(plan, Progress(), build)
    [first] = planned(tmp_path / "d", "fedavg")
    comparison.run_all([first], Progress(), build)
    text = (first.out / "config.yaml").read_text()
    (first.out / "config.yaml").write_text(text.replace("batch_size: ", "batch_size: 1"))
    edited = directory.read_config(first.out)
    with pytest.raises(UserError, match=r"config\.yaml was edited since the run started"):
        comparison.run_all([comparison.Plan(edited, first.out)], Progress(), build)


def test_a_federation_of_real_sites_begins_in_another_folder(tmp_path: Path, raised: Any) -> None:
    """Its sites keep what they learned: the server alone cannot go back."""
    killed_run(tmp_path / "run", 8)
    raised()
    with pytest.raises(UserError, match=r"it cannot go on; begin in another --out$"):
        revision.check(tmp_path / "run", resolved() | {"data": {"name": "sites"}})
