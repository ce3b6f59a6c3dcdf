"""Who starts and whose work arrives: participation, stragglers, the clock, recorded schedules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect import methods
from idiolect.errors import UserError
from idiolect.simulation.schedule import (
    Clock,
    Participation,
    Stragglers,
    Turn,
    load_schedule,
    make,
    schedule_from,
)
from idiolect.simulation.settings import SimulationOptions
from tests.conftest import SmallNet, ragged_federation, run, simulation
from tests.methods.plain import NET, TINY

TEN = list(range(10))


def schedule(rounds: int, clients: list[int] = TEN, seed: int = 0, **options: Any) -> list[Turn]:
    settings = {"asynchronous": True, "participation": Participation()} | options
    return make(clients, rounds, seed, **settings)


def marks(turns: list[Turn], client: int) -> str:
    """The client's rounds as letters: T train, U late upload, B both, L in vain, dot away."""
    letters = ""
    for t, turn in enumerate(turns):
        started, arrived = client in turn.start, turn.arrive.get(client)
        if client in turn.lost:
            letters += "L"
        elif started and arrived == t:
            letters += "B"
        elif started:
            letters += "T"
        else:
            letters += "." if arrived is None else "U"
    return letters


# --- participation ---


@pytest.mark.parametrize("participation", [Participation("full"), Participation("fixed", 1.0)])
def test_everybody(participation: Participation) -> None:
    for t, turn in enumerate(schedule(3, participation=participation)):
        assert turn.start == TEN
        assert turn.arrive == dict.fromkeys(TEN, t)


@pytest.mark.parametrize(("rate", "count"), [(0.3, 3), (0.25, 2), (0.29, 2), (0.7, 7), (0.01, 1)])
def test_fixed_fraction_is_int_of_rate_times_n(rate: float, count: int) -> None:
    for turn in schedule(20, participation=Participation("fixed", rate)):
        assert len(set(turn.start)) == count
        assert turn.start == sorted(turn.start)


def test_fixed_fraction_is_uniform() -> None:
    turns = schedule(2000, participation=Participation("fixed", 0.3))
    asked = np.bincount([i for t in turns for i in t.start], minlength=10)
    assert abs(asked - 600).max() < 5 * np.sqrt(2000 * 0.3 * 0.7)


def test_binomial_varies_in_size_and_may_be_empty() -> None:
    turns = schedule(400, participation=Participation("binomial", 0.2))
    sizes = np.array([len(t.start) for t in turns])
    assert sizes.min() == 0
    assert sizes.max() >= 5
    assert abs(sizes.mean() - 2.0) < 5 * np.sqrt(10 * 0.2 * 0.8 / 400)


def test_an_empty_round_runs() -> None:
    """With these numbers nobody is asked in some rounds; the server waits."""
    sim = run(
        methods.build("fedavg"),
        TINY,
        NET,
        6,
        participation=Participation("binomial", 0.1),
    )
    assert [] in [t.start for t in sim.turns]
    assert sim.round == 6


def test_seed_and_round_decide() -> None:
    some = Participation("fixed", 0.5)
    first, again, other = (schedule(5, seed=s, participation=some) for s in (3, 3, 4))
    assert first == again
    assert first != other
    longer = schedule(9, seed=3, participation=some)
    assert longer[:5] == first
    assert len({tuple(t.start) for t in longer}) > 1


def test_only_seen_clients_are_asked() -> None:
    turns = schedule(5, [1, 4, 7], participation=Participation("fixed", 0.7))
    assert {i for t in turns for i in t.start} <= {1, 4, 7}
    assert {len(t.start) for t in turns} == {2}


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, float("nan")])
def test_bad_rate(rate: float) -> None:
    match = r"participation\.rate must be (above 0 and at most 1|a number)"
    with pytest.raises(UserError, match=match):
        Participation("fixed", rate)


def test_bad_kind() -> None:
    with pytest.raises(
        UserError, match=r"unknown participation\.kind 'some'.*binomial, fixed, full"
    ):
        Participation("some")  # type: ignore[arg-type]


# --- stragglers ---


def test_cycle_of_the_code() -> None:
    """Train, p - 1 rounds away, late upload, one round on time."""
    turns = schedule(12, stragglers=Stragglers(count=3))
    assert marks(turns, 0) == "TUBTUBTUBTUB"
    assert marks(turns, 1) == "T.UBT.UBT.UB"
    assert marks(turns, 2) == "T..UBT..UBTU"  # the last round delivers what is still out
    assert marks(turns, 3) == "B" * 12
    assert [turn.arrive.get(2) for turn in turns] == [None] * 3 + [0, 4] + [None] * 3 + [
        5,
        9,
        None,
        10,
    ]


def test_the_golden_patterns() -> None:
    turns = schedule(8, [0, 1, 2, 3], stragglers=Stragglers(periods=(1, 2, 0, 0)))
    assert [marks(turns, i) for i in range(4)] == ["TUBTUBTU", "T.UBT.UB", "B" * 8, "B" * 8]


def test_cycle_of_the_paper() -> None:
    """One round in, p rounds out."""
    turns = schedule(9, stragglers=Stragglers(count=3, cycle="paper"))
    assert marks(turns, 0) == "TUTUTUTUT"
    assert marks(turns, 1) == "T.UT.UT.U"
    assert marks(turns, 2) == "T..UT..UT"


def test_late_work_is_discarded_for_synchronous_methods() -> None:
    """p idle rounds, one round of training nobody receives, one on time."""
    turns = schedule(8, asynchronous=False, stragglers=Stragglers(count=2))
    assert marks(turns, 0) == ".LB.LB.L"
    assert marks(turns, 1) == "..LB..LB"
    assert all(s == t for t, turn in enumerate(turns) for s in turn.arrive.values())


def test_discard_can_be_asked_for() -> None:
    turns = schedule(6, stragglers=Stragglers(periods=(2,), cycle="discard"))
    assert marks(turns, 0) == "..LB.."


def test_last_round_delivers_what_is_out() -> None:
    for rounds, expected in ((2, "TU"), (3, "T.U"), (4, "T..U"), (5, "T...U"), (6, "T....U")):
        assert marks(schedule(rounds, stragglers=Stragglers(periods=(5,))), 0) == expected


def test_work_begun_in_the_last_round_never_arrives() -> None:
    assert marks(schedule(4, stragglers=Stragglers(periods=(1,))), 0) == "TUBT"


def test_stragglers_keep_their_cycle_under_partial_participation() -> None:
    some = Participation("fixed", 0.3)
    turns = schedule(9, participation=some, stragglers=Stragglers(count=1))
    assert marks(turns, 0) == "TUBTUBTUB"
    assert len({tuple(t.start) for t in turns}) > 2


def test_period_zero_is_on_time() -> None:
    turns = schedule(4, stragglers=Stragglers(periods=(0, 1)))
    assert marks(turns, 0) == "BBBB"
    assert marks(turns, 1) == "TUBT"


def test_stragglers_are_the_first_of_those_who_take_part() -> None:
    turns = schedule(3, [2, 5, 6], stragglers=Stragglers(count=1))
    assert marks(turns, 2) == "TUB"
    assert marks(turns, 5) == "BBB"


def test_bad_stragglers() -> None:
    with pytest.raises(UserError, match="11 stragglers but only 10 clients"):
        schedule(3, stragglers=Stragglers(count=11))
    with pytest.raises(UserError, match=r"stragglers\.count must be at least 0, got -1"):
        Stragglers(count=-1)
    with pytest.raises(UserError, match=r"stragglers\.periods must be at least 0 .*got -2"):
        Stragglers(periods=(1, -2))
    with pytest.raises(UserError, match=r"unknown stragglers\.cycle 'late'.*auto, code, discard"):
        Stragglers(cycle="late")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="stragglers or clock, not both"):
        schedule(3, stragglers=Stragglers(count=1), clock=Clock())


def test_late_work_needs_an_asynchronous_method() -> None:
    with pytest.raises(UserError, match="does not use late work"):
        simulation(methods.build("spfl"), TINY, NET, 3, stragglers=Stragglers(1, cycle="code"))


def test_cycle_of_the_paper_for_a_synchronous_method() -> None:
    """One round in time, p away: a cycle of p + 1, and nothing is ever late."""
    late = Stragglers(count=2, cycle="paper")
    sim = simulation(methods.build("spfl"), TINY, NET, 7, stragglers=late)
    there = [[t for t, turn in enumerate(sim.turns) if i in turn.start] for i in range(4)]
    assert there == [[0, 2, 4, 6], [0, 3, 6], list(range(7)), list(range(7))]
    assert all(turn.arrive == dict.fromkeys(turn.start, t) for t, turn in enumerate(sim.turns))


# --- the virtual clock ---


def follow(turns: list[Turn]) -> list[int]:
    """Every start arrives at most once, after it, and nobody starts while out; staleness seen."""
    out: dict[int, int] = {}
    late = []
    for t, turn in enumerate(turns):
        for i in turn.start:
            assert i not in out
            out[i] = t
        for i, s in turn.arrive.items():
            assert out.pop(i) == s
            late.append(t - s)
        for i in turn.lost:
            out.pop(i, None)
    return late


def test_clock_is_consistent_and_repeats() -> None:
    turns = schedule(60, clock=Clock(spread=0.7))
    late = follow(turns)
    assert min(late) == 0
    assert max(late) >= 2
    assert turns == schedule(60, clock=Clock(spread=0.7))
    assert turns != schedule(60, clock=Clock(spread=0.7), seed=1)
    assert turns[:20] == schedule(20, clock=Clock(spread=0.7))


def test_staleness_is_what_the_durations_say() -> None:
    """A job that takes d windows arrives floor(d) rounds after it began."""
    clock = Clock(window=1.0, spread=0.7, jitter=0.0)
    turns = schedule(40, clock=clock)
    for i in TEN:
        late = {t - s for t, turn in enumerate(turns) for j, s in turn.arrive.items() if j == i}
        duration = clock.duration(i, 0, 0)
        assert late == {int(np.ceil(duration)) - 1}


def test_a_longer_window_means_less_staleness() -> None:
    short, long = (follow(schedule(60, clock=Clock(window=w))) for w in (0.5, 2.0))
    assert np.mean(short) > np.mean(long)
    assert not any(follow(schedule(20, clock=Clock(window=1e6))))


def test_server_may_wait_for_a_number_of_arrivals() -> None:
    turns = schedule(30, clock=Clock(arrivals=3))
    assert {len(t.arrive) for t in turns} == {3}
    follow(turns)


def test_clock_drops_late_work_of_synchronous_methods() -> None:
    turns = schedule(30, asynchronous=False, clock=Clock(spread=0.7))
    assert any(t.lost for t in turns)
    for t, turn in enumerate(turns):
        assert all(s == t for s in turn.arrive.values())
        assert set(turn.arrive) | set(turn.lost) == set(turn.start)


def test_bad_clock() -> None:
    for bad in ({"window": 0}, {"arrivals": -1}, {"spread": -1}, {"jitter": -1}):
        with pytest.raises(
            UserError, match=rf"clock\.{next(iter(bad))} must be (above|at least) 0"
        ):
            Clock(**bad)


# --- short forms ---


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (0.5, Participation("fixed", 0.5)),
        ("0.5", Participation("fixed", 0.5)),
        (np.float32(0.5), Participation("fixed", 0.5)),
        ("binomial:0.25", Participation("binomial", 0.25)),
        ("full", Participation("full")),
        ({"kind": "full", "rate": 0.5}, Participation("fixed", 0.5)),
    ],
)
def test_participation_forms(text: Any, made: Participation) -> None:
    assert SimulationOptions(participation=text).participation == made
    assert SimulationOptions(participation=str(made)).participation.rate == made.rate


def test_straggler_and_clock_forms() -> None:
    assert SimulationOptions(stragglers=np.int64(3)).stragglers == Stragglers(3)  # type: ignore[arg-type]
    assert Stragglers.of({"periods": [1, 2]}) == Stragglers(periods=(1, 2))
    assert Stragglers(periods=(1, 2)).as_dict()["periods"] == [1, 2]
    assert "periods" not in Stragglers(2).as_dict()
    for value, made in ((True, Clock()), (False, None), ({"window": 2}, Clock(2.0))):
        assert SimulationOptions(clock=value).clock == made  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"clock must be a section such as clock\.window=1\.0"):
        SimulationOptions(clock=5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="did you mean 'window'"):
        Clock.of({"windw": 1})


# --- recorded schedules ---


def test_lists_of_ids() -> None:
    turns = schedule_from([[2, 0], [1], []])
    assert turns == [Turn([0, 2], {0: 0, 2: 0}), Turn([1], {1: 1}), Turn()]


def test_starts_and_arrivals_count_rounds_from_one() -> None:
    rounds = [{"start": [0, 1], "arrive": [[1, 1]]}, {"start": [], "arrive": [[0, 1]]}]
    assert schedule_from(rounds) == [Turn([0, 1], {1: 0}), Turn([], {0: 0})]


def test_json_file(tmp_path: Path) -> None:
    path = tmp_path / "who.json"
    path.write_text(json.dumps([[0, 1], [1, 2]]))
    assert [t.start for t in load_schedule(path)] == [[0, 1], [1, 2]]
    path.write_text(json.dumps({"rounds": [[0]]}))
    assert load_schedule(str(path)) == [Turn([0], {0: 0})]


def test_events_of_a_run_repeat_its_schedule(tmp_path: Path) -> None:
    """A run with stragglers, written as events, replayed: the same models to the last bit."""
    method = methods.build({"name": "plga", "lr": 0.2, "batch_size": 4, "steps": 2})
    late = Stragglers(periods=(1, 2))
    sim = simulation(method, TINY, NET, 6, stragglers=late, participation=0.5)
    lines = [json.dumps({"round": 0})]
    for _ in range(6):
        r = sim.step()
        lines.append(
            json.dumps(
                {
                    "round": r.round,
                    "started": r.started,
                    "arrived": r.arrived,
                    "staleness": r.staleness,
                }
            )
        )
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(lines) + "\n")
    recorded = load_schedule(path)
    assert [(t.start, t.arrive) for t in recorded] == [(t.start, t.arrive) for t in sim.turns]
    again = run(method, TINY, NET, 6, schedule=recorded)
    for n, v in sim.server["model"].items():
        assert bool((again.server["model"][n] == v).all())


def test_work_in_vain_is_recognised(tmp_path: Path) -> None:
    """A client that begins anew never delivered what it had begun before."""
    rounds = [{"start": [0, 1], "arrive": [[1, 1]]}, [0, 1]]
    assert schedule_from(rounds) == [Turn([0, 1], {1: 0}, [0]), Turn([0, 1], {0: 1, 1: 1})]
    turns = schedule(6, asynchronous=False, stragglers=Stragglers(count=2))
    told = [{"start": t.start, "arrive": [[i, s + 1] for i, s in t.arrive.items()]} for t in turns]
    assert schedule_from(told) == turns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not a list of rounds"),
        ("[1, 2]", "is not a list of rounds"),
        ('[["a"]]', "is not a list of rounds"),
        ('[{"start": [0]}]', "is not a list of rounds"),
        ('[{"start": [], "arrive": [[0, 1]]}]', "arrives in round 1 but did not start in 1"),
        ("[[0, 0]]", "names a client twice"),
        ('{"a": 1}', "is not a list of rounds"),
        ("[[0.5]]", "is not a list of rounds"),
        ('[["0"]]', "is not a list of rounds"),
        ("7", "is not a list of rounds"),
        ("[" * 100_000, "is not a list of rounds"),
        ("\udcff\udcfe", "is not a list of rounds"),
    ],
)
def test_files_that_are_no_schedule(tmp_path: Path, text: str, reason: str) -> None:
    for name in ("who.json", "events.jsonl"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(UserError, match=reason if name == "who.json" else "is not a list"):
            load_schedule(path)


def test_more_rounds_than_can_be_worked_out_are_refused() -> None:
    with pytest.raises(UserError, match="rounds must be at least 1 and at most 1e\\+06"):
        SimulationOptions(rounds=10**9)
    with pytest.raises(UserError, match="periods must be at least 0 and at most 1e\\+06"):
        Stragglers(periods=(10**12,))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read schedule"):
        load_schedule(tmp_path / "none.json")


def test_too_short_and_strange_clients() -> None:
    method = methods.build("fedavg")
    with pytest.raises(UserError, match="has 1 rounds but 2 were asked for"):
        simulation(method, TINY, NET, 2, schedule=[[0]])
    with pytest.raises(UserError, match="names client 7"):
        simulation(method, TINY, NET, 1, schedule=[[7]])


def test_longer_than_needed_is_cut() -> None:
    sim = simulation(methods.build("fedavg"), TINY, NET, 1, schedule=[[0], [1]])
    assert [t.start for t in sim.turns] == [[0]]


def test_held_out_clients_cannot_be_scheduled() -> None:
    federation = replace(ragged_federation((9, 9, 9)), unseen=(2,))
    with pytest.raises(UserError, match="names client 2"):
        simulation(methods.build("fedavg"), federation, SmallNet(), 1, schedule=[[0, 2]])
