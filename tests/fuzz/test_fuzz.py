"""The short profile, the corpus of everything found so far, and the long profile (`make heavy`)."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.fuzz import places
from tests.fuzz.campaign import SHARD, campaign, failures, keep, run_cases, table
from tests.fuzz.cases import Case
from tests.fuzz.play import FAILURES, Ending, play
from tests.fuzz.strategies import BAD_SETS, BAD_YAML

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))
SHORT = {
    "command lines": 15,
    "configs": 10,
    "run directories": 40,
    "data files": 25,
    "client files": 40,
    "federations": 40,
    "own data": 40,
    "tasks": 30,
}


@pytest.fixture(scope="module", autouse=True)
def _sound() -> Iterator[None]:
    places.sound()
    yield
    places.forget()


@pytest.mark.parametrize("kind", SHORT)
def test_short_profile(kind: str, tmp_path: Path) -> None:
    endings = run_cases(kind, SHORT[kind], 1, keep(tmp_path))
    found = "\n".join(f.read_text() for f in tmp_path.glob("*.txt"))
    assert not {how: n for how, n in endings.items() if how in FAILURES}, found
    assert endings["clean error"] and endings["success"]


@pytest.mark.parametrize("file", CORPUS, ids=lambda f: f.stem)
def test_corpus(file: Path) -> None:
    ending = play(Case.read(file))
    assert ending.how not in FAILURES, ending.detail


def test_a_few_through_real_processes(tmp_path: Path) -> None:
    (tmp_path / "laughs.yaml").write_bytes(BAD_YAML[0])
    for words in (("run", "fedavg", "--config", "laughs.yaml"), ("run", "fedavg", "--x\x1b[31m")):
        command = [sys.executable, "-m", "idiolect", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "\x1b" not in done.stderr


def test_cases_are_written_and_read_back(tmp_path: Path) -> None:
    case = Case(
        "run", ("report", "run"), {"a": b"\xff", "b": b"x", "c": None, "d": "link:x"}, [1], True
    )
    (tmp_path / "case.json").write_text(case.as_json())
    assert Case.read(tmp_path / "case.json") == case


def test_the_verdict_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Case("command", ("list", "splits"), bad=True)
    assert play(good).how == "exit 0 on bad input"
    assert play(Case("command", ("list", "nothing"), bad=False)).how == "good input refused"

    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("idiolect.data.list_splits", broken)
    assert play(good).how == "traceback"

    def slow() -> None:
        while True:
            pass

    monkeypatch.setattr("idiolect.data.list_splits", slow)
    monkeypatch.setattr("tests.fuzz.play.LIMIT", 0.3)
    assert play(good).how == "hang"


def test_a_campaign_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.fuzz.campaign.run_shard", lambda number, _, kinds: {"configs": {"success": 3}}
    )
    record = tmp_path / "fuzz.json"
    assert campaign(2 * SHARD, record, only=1) == 0
    assert campaign(2 * SHARD, record) == 0 and set(json.loads(record.read_text())) == {"0", "1"}
    assert failures({"0": {"configs": {"hang": 2}}}) == 2
    assert "configs" in table(json.loads(record.read_text()))


@pytest.mark.heavy
def test_every_bad_setting_and_file_is_refused() -> None:
    base = ("run", "fedavg", "--out", "r")
    for given in BAD_SETS:
        assert play(Case("command", (*base, "--set", given), bad=True)).how == "clean error", given
    for content in BAD_YAML:
        case = Case("command", (*base, "--config", "c.yaml"), {"c.yaml": content}, bad=True)
        assert play(case).how == "clean error", content[:80]
    assert yaml.safe_load(BAD_YAML[5]) == {"rounds": 10**9}


@pytest.mark.heavy
def test_long_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """IDIOLECT_FUZZ_CASES: how many; IDIOLECT_FUZZ_RECORD: the file to go on from;
    IDIOLECT_FUZZ_SHARD: only this one."""
    cases = int(os.environ.get("IDIOLECT_FUZZ_CASES", "100000"))
    record = Path(os.environ.get("IDIOLECT_FUZZ_RECORD", tmp_path / "fuzz.json"))
    only = os.environ.get("IDIOLECT_FUZZ_SHARD")
    with capsys.disabled():
        found = campaign(cases, record, int(only) if only else None)
    assert found == 0


def test_endings_are_counted() -> None:
    seen: Counter[str] = Counter()

    def found(kind: str, case: Case, ending: Ending) -> None:
        seen[ending.how] += 1

    assert sum(run_cases("client files", 7, 3, found).values()) == 7 and not seen
