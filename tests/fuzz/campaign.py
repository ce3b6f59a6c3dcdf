"""Many cases, counted. The count is divided into shards, so that a long campaign can be run in
pieces: what is recorded already is not run again.

    python -m tests.fuzz --cases 100000 --record fuzz.json          all that is left
    python -m tests.fuzz --cases 100000 --fuzz-shard 7 --record fuzz.json
    python -m tests.fuzz --cases 100000 --jobs 2 --record fuzz.json   two at a time
    python -m tests.fuzz --cases 10000 --kind "own data" --kind tasks --record own.json
"""

import argparse
import hashlib
import json
import multiprocessing
import resource
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from tests.fuzz.cases import Case
from tests.fuzz.places import forget, sound
from tests.fuzz.play import FAILURES, Ending, play
from tests.fuzz.strategies import EVERYTHING

MOST_MEMORY = 12 << 30  # bytes of addresses
SHARD = 1000  # cases
ENDINGS = ("success", "clean error", *FAILURES)
# Commands and configs train, which takes longer: they get a smaller part of the cases.
SHARES = {
    "command lines": 0.12,
    "configs": 0.08,
    "run directories": 0.2,
    "data files": 0.15,
    "client files": 0.1,
    "federations": 0.1,
    "own data": 0.12,
    "tasks": 0.08,
    "plug-ins": 0.05,
}

Found = Callable[[str, Case, Ending], None]


def run_cases(kind: str, cases: int, number: int, found: Found) -> Counter[str]:
    """Play this many cases of one kind; what fails is handed to `found`, and not the end."""
    endings: Counter[str] = Counter()

    @seed(number)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(EVERYTHING[kind])
    def one(case: Case) -> None:
        ending = play(case)
        if ending.how == "hang":  # once is no proof on a machine that does other things too
            ending = play(case)
        endings[ending.how] += 1
        if ending.how in FAILURES:
            found(kind, case, ending)

    sound()  # made outside of the strategies, which may not draw by themselves
    one()
    return endings


def run_shard(
    number: int, found: Found, cases: int = SHARD, kinds: Collection[str] = ()
) -> dict[str, dict[str, int]]:
    """One shard: cases of every kind, or of some, the same for the same number."""
    whole = sum(share for kind, share in SHARES.items() if kind in kinds or not kinds)
    return {
        kind: dict(run_cases(kind, max(1, round(cases * share / whole)), number * 17 + i, found))
        for i, (kind, share) in enumerate(SHARES.items())
        if kind in kinds or not kinds
    }


def keep(folder: Path) -> Found:
    """Failing cases as files, to be looked at and moved into the corpus."""

    def found(kind: str, case: Case, ending: Ending) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        text = case.as_json()
        name = f"{kind.replace(' ', '-')}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
        (folder / f"{name}.json").write_text(text)
        (folder / f"{name}.txt").write_text(f"{ending.how}\n{ending.detail}\n")

    return found


def table(shards: dict[str, Any]) -> str:
    """Counts by kind and ending."""
    lines = [f"{'':16}{'cases':>9}" + "".join(f"{how:>21}" for how in ENDINGS)]
    total: Counter[str] = Counter()
    for kind in SHARES:
        counts: Counter[str] = Counter()
        for shard in shards.values():
            counts.update(shard.get(kind, {}))
        total.update(counts)
        lines.append(_row(kind, counts))
    return "\n".join([*lines, _row("all", total)])


def _row(name: str, counts: Counter[str]) -> str:
    return f"{name:16}{sum(counts.values()):>9}" + "".join(f"{counts[h]:>21}" for h in ENDINGS)


def failures(shards: dict[str, Any]) -> int:
    kinds = (counts for shard in shards.values() for counts in shard.values())
    return sum(counts.get(how, 0) for counts in kinds for how in FAILURES)


def _recorded_shard(
    number: int, record: Path, kinds: Collection[str] = ()
) -> tuple[int, dict[str, dict[str, int]], float]:
    begun = time.monotonic()
    # Without a limit the system kills a process that asks for all the memory, and nobody is told.
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    sound.cache_clear()  # a folder made before the fork belongs to the parent
    counts = run_shard(number, keep(record.with_suffix("")), kinds=kinds)
    forget()
    return number, counts, time.monotonic() - begun


def campaign(
    cases: int,
    record: Path,
    only: int | None = None,
    jobs: int = 1,
    kinds: Collection[str] = (),
) -> int:
    """Run the shards that are not in the record yet, this many at a time; the number of failures
    in all of them. `kinds`: only cases of these."""
    shards = json.loads(record.read_text()) if record.exists() else {}
    wanted = range(-(-cases // SHARD)) if only is None else [only]
    todo = [number for number in wanted if str(number) not in shards]
    # A fresh process per shard: what one case leaves behind in memory reaches 1,000 cases at most.
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        work = partial(_recorded_shard, record=record, kinds=kinds)
        for number, counts, seconds in pool.imap_unordered(work, todo):
            shards[str(number)] = counts
            record.write_text(json.dumps(shards, indent=1))
            print(f"shard {number}: {seconds:.0f} s", flush=True)
    print(table(shards))
    return failures(shards)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--fuzz-shard", type=int, default=None, help="only this one")
    parser.add_argument("--record", type=Path, default=Path("fuzz.json"))
    parser.add_argument("--jobs", type=int, default=1, help="shards at a time")
    parser.add_argument("--kind", action="append", choices=[*SHARES], help="only these; repeatable")
    given_ = parser.parse_args()
    how = (given_.fuzz_shard, given_.jobs, given_.kind or ())
    failed = campaign(given_.cases, given_.record, *how)
    raise SystemExit(1 if failed else 0)
