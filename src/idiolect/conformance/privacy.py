"""What is private never leaves a client: its names and its numbers are looked for in messages."""

from collections.abc import Iterator

from torch import Tensor

from idiolect.conformance.problem import ROUNDS, Normed, clients, late_clients, network
from idiolect.conformance.watched import Watched
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.core.tree import Record


def watch(method: Method) -> Watched:
    """Three rounds with BatchNorm statistics, and all messages."""
    return Watched(method, clients(), network(Normed), ROUNDS, stragglers=late_clients(method))


def leaks(seen: Watched) -> Iterator[str]:
    """Private names that occur in a message, and private numbers (or their change) that do."""
    for t, message in _messages(seen):
        sent = tree.leaves(seen.downs[t])
        delivered = {_last(n): v for n, v in sent.items()}
        for i, up in message.items():
            ups = tree.leaves(up)
            before, mine = (tree.leaves(m[i]) for m in (seen.mine[t], seen.mine[t + 1]))
            private = {_last(n) for n in mine} - set(delivered)
            yield from (f"{n} is private" for n in ups if _last(n) in private)
            own = mine | {f"personal/{n}": v for n, v in seen.personal[t][i].items()}
            for n, value in own.items():
                sent_on_purpose = _last(n) not in private and _last(n) in _copied(seen, n)
                if sent_on_purpose or not value.is_floating_point():
                    continue
                for secret in (value, value - before[n]) if n in before else (value,):
                    if _varied(secret) and not _repeats(secret, delivered.get(_last(n))):
                        found = (u for u, v in ups.items() if _contains(v, secret))
                        yield from (f"{n} is in {u}" for u in found)


def _messages(seen: Watched) -> Iterator[tuple[int, dict[int, Record]]]:
    """What was sent by clients that were there before: a first move away from the common start
    would look like what is kept of it."""
    for t in range(1, ROUNDS):
        known = {i for r in seen.rounds[:t] for i in r.started}
        fresh = {i: tree.row(seen.fits[t].up, k) for k, i in enumerate(seen.rounds[t].started)}
        yield t, {i: up for i, up in (fresh | seen.rejoined[t]).items() if i in known}


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _varied(x: Tensor) -> bool:
    """Numbers one could recognise: not a single one, nor all the same."""
    return x.numel() > 1 and bool((x != x.flatten()[0]).any())


def _repeats(secret: Tensor, delivered: Tensor | None) -> bool:
    """The client merely holds what the server sent to all."""
    return delivered is not None and _contains(delivered, secret)


def _contains(message: Tensor, secret: Tensor) -> bool:
    """The numbers of `secret` occur one after the other anywhere in `message`."""
    hay, needle = message.double().flatten(), secret.double().flatten()
    tiny = 1e-12 * needle.abs().max()
    first = (hay[: max(0, len(hay) - len(needle) + 1)] - needle[0]).abs() <= tiny
    return any(
        bool(((hay[at : at + len(needle)] - needle).abs() <= tiny).all())
        for at in first.nonzero().flatten().tolist()
    )


def _copied(seen: Watched, path: str) -> tuple[str, ...]:
    """The leaves of this part that the method says it sends on purpose."""
    net, said = seen.sim.engine.net, dict(one.split(": ") for one in seen.sim.method.also_sent)
    groups = {"weights": net.weights, "stats": net.stats, "all": net.names, "base": net.body}
    return tuple(groups.get(said.get(path.partition("/")[0], ""), ()))
