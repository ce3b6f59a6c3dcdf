"""The laws. Each takes a method and returns why it does not hold; an empty text where it does."""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idiolect.conformance.privacy import leaks, watch
from idiolect.conformance.problem import EXACT, ROUNDS, Subject, begin, clients, finish, network
from idiolect.conformance.sites import Deployed, deployed, gap
from idiolect.core import own_code
from idiolect.core.text import reason
from idiolect.core.tree import Tree
from idiolect.errors import UserError
from idiolect.simulation.simulation import Simulation

WITHIN = 1e-9  # relative, in float64
FEW_NUMBERS = 64  # bytes a client may send beside models
SIMPLE = re.compile(r"(\d+)( base| head| without norm)?")  # a `traffic` that can be counted


@dataclass(frozen=True)
class Tried:
    """Whether a method holds a law."""

    law: str
    holds: bool
    reason: str


def check(subject: Subject) -> Iterator[Tried]:
    """All laws, one after the other; a method that fails in one does not hold it."""
    for name, law in LAWS.items():
        try:
            broken = law(subject)
        except Exception as error:
            broken = _failed(error)
        yield Tried(name, not broken, broken)


def _failed(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    place = own_code.fault(error)
    where = f" at {place[1]}" if place else ""
    return f"it fails{where}: {type(error).__name__}: {reason(error)}"


def engines_agree(subject: Subject) -> str:
    """One client at a time and all at once give the same numbers."""
    loop, stacked = subject.ran("loop"), subject.ran("stacked")
    if loop.meta != stacked.meta:
        return "loop and stacked do not end in the same state"
    return _apart(loop.end, stacked.end) or _apart(loop.personal, stacked.personal, "personal ")


def a_seed_is_a_run(subject: Subject) -> str:
    """The same seed gives the same bits, and no generator of the process is drawn from."""
    first = subject.ran()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    end, meta, personal = finish(begin(subject.method))
    if found := _other_bits(first.end, end) or _other_bits(first.personal, personal):
        return f"two runs with one seed differ in {found}; draw with local.uniform"
    if first.meta != meta:
        return "two runs with one seed end in different states"
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # type: ignore[index]
    same = torch.equal(after[0], before[0]) and np.array_equal(after[1], before[1])
    return "" if same and after[2] == before[2] else "it draws from a generator of the process"


def nothing_private_is_sent(subject: Subject) -> str:
    """What a client keeps in `mine`, and what it predicts with, is not in what it sends, but for
    what `also_sent` says."""
    found = sorted(set(leaks(watch(subject.method))))
    more = f" and {len(found) - 2} more" if found[2:] else ""
    hint = "; if that is meant, declare also_sent" if found else ""
    return "; ".join(found[:2]) + more + hint


def bytes_are_counted(subject: Subject) -> str:
    """The bytes of the run are those of the messages, and as many as `traffic` declares."""
    found = _on_sites(subject)
    counted = {
        "down": sum(one.bytes_down for one in found.simulated),
        "up": sum(one.bytes_up for one in found.simulated),
    }
    for way, sent in found.sent.items():
        if sent != counted[way]:
            return f"{counted[way]} bytes {way} are counted, {sent} are sent"
    return _as_declared(subject)


def _as_declared(subject: Subject) -> str:
    method = subject.method
    form = SIMPLE.fullmatch(method.traffic)
    if form is None:  # a formula: for the method's own test
        return ""
    sim = Simulation(method, clients(), network(), rounds=2, engine="stacked", **EXACT)
    sim.step()
    second = sim.step()
    net = sim.engine.net
    names = {
        None: net.names,
        " base": net.body,
        " head": net.head,
        " without norm": [n for n in net.names if n not in net.part("norm")],
    }[form[2]]
    whole = 8 * sum(sim.start_tree[n].numel() for n in names)
    many = clients().n_clients
    extra = second.bytes_up + second.bytes_down - many * int(form[1]) * whole
    if not 0 <= extra <= (0 if method.traffic == "0" else many * FEW_NUMBERS):
        real = (second.bytes_up + second.bytes_down) / many / whole
        return f'traffic = "{method.traffic}" is declared, {real:.2f} such parts travel'
    return ""


def a_resumed_run_is_the_same_run(subject: Subject) -> str:
    """What is saved after a round is all that the next ones need."""
    whole = subject.ran()
    tensors, meta = whole.middle
    sim = begin(subject.method)
    sim.restore({n: v.clone() for n, v in tensors.items()}, json.loads(json.dumps(meta)))
    if sim.round != ROUNDS - 1:
        return f"it goes on after round {sim.round}, not {ROUNDS - 1}"
    end, after, personal = finish(sim)
    if found := _other_bits(whole.end, end) or _other_bits(whole.personal, personal):
        return f"a resumed run differs in {found}; keep everything in the server's state or mine"
    return "" if whole.meta == after else "a resumed run ends in another state"


def sites_give_the_same_numbers(subject: Subject) -> str:
    """Real sites, each with its own data and state, end where the simulator ends."""
    found = _on_sites(subject)
    for ours, theirs in zip(found.rounds, found.simulated, strict=True):
        if (ours.started, ours.arrived) != (theirs.started, theirs.arrived):
            missing = sorted(set(theirs.arrived) - set(ours.arrived))
            why = f": {_failed(found.error)}" if found.error else ""
            return f"round {ours.round}: the work of sites {missing} does not arrive{why}"
        if set(ours.logs) != set(theirs.logs):
            return f"round {ours.round}: sites do not log what the simulator does"
        for name, column in theirs.clients.items():
            if not np.allclose(ours.clients[name], column, atol=WITHIN, equal_nan=True):
                return f"round {ours.round}: {name} of the sites is not the simulator's"
    pairs = [("the server's ", found.server)]
    pairs += [(f"client {i}: ", pair) for i, pair in enumerate(found.private)]
    return next(filter(None, (_apart(*both, what) for what, both in pairs)), "")


def _on_sites(subject: Subject) -> Deployed:
    if subject.deployed is None:
        subject.deployed = deployed(subject)
    return subject.deployed  # type: ignore[no-any-return]


def _apart(a: Tree, b: Tree, what: str = "") -> str:
    """The first leaf in which two trees differ by more than rounding."""
    if set(a) != set(b):
        return f"{what}{sorted(set(a) ^ set(b))[0]} is only in one of both"
    for name in a:
        if (far := gap(a[name], b[name])) > WITHIN:
            return f"{what}{name} differs by {far:.1e} (relative; {WITHIN:.0e} is allowed)"
    return ""


def _other_bits(a: Tree, b: Tree) -> str:
    """The first leaf whose bits differ."""
    if set(a) != set(b):
        return sorted(set(a) ^ set(b))[0]
    return next((n for n in a if not _same(a[n], b[n])), "")


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


LAWS: dict[str, Callable[[Subject], str]] = {
    "loop = stacked": engines_agree,
    "a seed is a run": a_seed_is_a_run,
    "nothing private is sent": nothing_private_is_sent,
    "bytes counted are bytes sent": bytes_are_counted,
    "a resumed run is the same run": a_resumed_run_is_the_same_run,
    "sites give the simulator's numbers": sites_give_the_same_numbers,
}
