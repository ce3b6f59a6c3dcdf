"""kill -9 and a full disk at every call that changes a file: afterwards the user goes on, and has
what an uninterrupted command leaves."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.commands import HERE, SMALL, Command, ForkServer, contents, fresh, go_on, prepare

RUN = ("run", "fedper", *SMALL, "--out", "out")
BEST, LAST, EVERY = ((*RUN, "--save-models", when) for when in ("best", "last", "every"))
RESUME, REPORT = ("resume", "out"), ("report", "out", "-o", "report.html")
Note = Callable[[str, object], None]

KINDS = {
    "kill": ("kills", (-9,)),
    "kill caller": ("kills of the writing process alone", (-9, 0)),
    "kill others": ("kills of all but the writing process", (-9, 0)),
    "full": ("full disks", (0, 1, 2)),  # 2: sites of a federation
}  # in words, and the exit codes that may come of them

COMMANDS = {
    "run": Command(RUN, (RESUME, RUN)),
    "resume": Command(RESUME, (RESUME,), before=(RUN,), killed_at=150),
    "compare": Command.again("compare", "fedper", "--seeds", "0,1", *SMALL, "--out", "out"),
    "export best": Command(BEST, (RESUME, BEST)),
    "export last": Command(LAST, (RESUME, LAST)),
    "export every": Command(EVERY, (RESUME, EVERY)),
    "resume exports": Command(RESUME, (RESUME,), before=(EVERY,), killed_at=200),
    "recipe": Command.again(
        "recipe", str(HERE / "two-cells.yaml"), call="tests.faults.recipe:run", kinds=tuple(KINDS)
    ),
    "server": Command.again("fedper", "out", call="tests.faults.federation:serve"),
    "report": Command(REPORT, (REPORT,), before=(RUN,)),
}


def check(server: ForkServer, name: str, folder: Path, some: int | None) -> str:
    """Faults of every kind at every call, or of two kinds at `some`; what was tried, in numbers."""
    command = COMMANDS[name]
    prepare(server, command, folder)
    whole = server.run(command.call, command.words, folder)
    assert whole.code == 0 and whole.met > 0, whole.said
    expected = contents(folder)
    calls = range(1, whole.met + 1)
    kinds = command.kinds if some is None else random.sample(command.kinds, 2)
    tried = {kind: calls if some is None else random.sample(calls, some) for kind in kinds}
    for kind, chosen in tried.items():
        for at in chosen:
            prepare(server, command, fresh(folder))
            stopped = server.run(command.call, command.words, folder, at, kind)
            done = go_on(server, command, folder)
            story = f"{name}, {kind} at call {at}: {stopped.said}\nthen: {done.said}"
            assert stopped.code in KINDS[kind][1], story
            assert done.code == 0 and "Traceback" not in stopped.said, story
            found = contents(folder)
            for part, value in expected.items():
                assert found[part] == value, f"{part} differs after {story}"
    counts = [f"{len(chosen)} {KINDS[kind][0]}" for kind, chosen in tried.items()]
    return f"{name}: {whole.met} writes met, {', '.join(counts)}; all continued to the same end"


@pytest.mark.parametrize("name", COMMANDS)
def test_some_writes(server: ForkServer, tmp_path: Path, name: str, record_property: Note) -> None:
    record_property("faults", check(server, name, tmp_path / "work", 1))


@pytest.mark.heavy
@pytest.mark.parametrize("name", COMMANDS)
def test_every_write(server: ForkServer, tmp_path: Path, name: str, record_property: Note) -> None:
    record_property("faults", check(server, name, tmp_path / "work", None))
