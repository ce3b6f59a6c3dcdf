"""A tiny problem and plain PyTorch on it: what the methods' own tests compare with.

Nothing here uses the package's training, mixing or similarity: a reference is written with
`torch.optim`, `backward` and Python loops over clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect.data import Federation

State = dict[str, Tensor]
CLASSES = 3
SIZES = (6, 9, 5, 8)


class TinyNet(nn.Module):
    """3 inputs, two body layers, a head for 3 classes: 47 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class NormNet(nn.Module):
    """The same with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def seeded(kind: type[nn.Module], seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind().double()


NET = seeded(TinyNet)
START: State = {n: v.clone() for n, v in NET.state_dict().items()}
BODY = tuple(n for n in START if n.startswith("body"))
HEAD = tuple(n for n in START if n.startswith("head"))


class Client:
    """One client's training samples (and a test part nobody here looks at)."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)


def draw_clients(sizes: Sequence[int] = SIZES, seed: int = 1) -> list[Client]:
    """Client i has every class but i % 3, if it has more than one sample left of the others."""
    generator = torch.Generator().manual_seed(seed)
    clients = []
    for i, n in enumerate(sizes):
        x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        y = torch.randint(0, CLASSES - 1, (n,), generator=generator)
        y = (y + 1 + i) % CLASSES
        clients.append(Client(x + y[:, None], y))
    return clients


def federate(clients: Sequence[Client], classes: int = CLASSES, **options: Any) -> Federation:
    return Federation.from_arrays(
        [{"x_train": c.x, "y_train": c.y, "x_test": c.x, "y_test": c.y} for c in clients],
        classes=classes,
        **options,
    )


CLIENTS = draw_clients()
TINY = federate(CLIENTS)
TWINS = [CLIENTS[1]] * 4  # four clients with the same data


# --- plain PyTorch ---


def batches(n: int, size: int | None, epochs: int = 1, drop: bool = False) -> list[Tensor]:
    """Batches in stored order."""
    once = list(torch.arange(n).split(size or n))
    if drop and len(once) > 1 and len(once[-1]) < len(once[0]):
        once.pop()
    return once * epochs


def model_with(state: State, kind: type[nn.Module] = TinyNet) -> Any:
    model = kind().double()
    model.load_state_dict(state)
    return model


def sgd(
    state: State,
    client: Client,
    rows: Iterable[Tensor] | None = None,
    *,
    lr: float,
    repeat: int = 1,
    decay: float = 0.0,
    momentum: float = 0.0,
    only: Sequence[str] | None = None,
) -> State:
    """torch.optim.SGD, a new optimizer each time; full batch unless `rows` says otherwise."""
    model = model_with(state)
    moving = [p for n, p in model.named_parameters() if only is None or n in only]
    optimizer = torch.optim.SGD(moving, lr=lr, weight_decay=decay, momentum=momentum)
    for batch in rows if rows is not None else [torch.arange(len(client))]:
        for _ in range(repeat):
            model.zero_grad()
            F.cross_entropy(model(client.x[batch]), client.y[batch]).backward()
            optimizer.step()
    return {n: v.detach().clone() for n, v in model.state_dict().items()}


def gradient(state: State, client: Client, rows: Tensor | None = None) -> State:
    """Of the mean cross-entropy over `rows`."""
    model = model_with(state)
    at = torch.arange(len(client)) if rows is None else rows
    F.cross_entropy(model(client.x[at]), client.y[at]).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters()}


def loss(state: State, client: Client) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(model_with(state)(client.x), client.y))


def features(state: State, client: Client) -> Tensor:
    with torch.no_grad():
        out: Tensor = model_with(state).body(client.x)
        return out


def combine(weights: Sequence[float] | Tensor, states: Sequence[State]) -> State:
    """`sum_j weights[j] * states[j]`, one tensor at a time."""
    total = {n: torch.zeros_like(v) for n, v in states[0].items()}
    for w, state in zip(weights, states, strict=True):
        for n in total:
            total[n] = total[n] + float(w) * state[n]
    return total


def minus(a: State, b: State) -> State:
    return {n: a[n] - b[n] for n in a}


def vector(state: State, names: Iterable[str] | None = None) -> Tensor:
    return torch.cat([state[n].flatten() for n in (names or state)])


def angle(a: Tensor, b: Tensor) -> float:
    """Cosine of the angle between two vectors, 0 if one is zero."""
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else 0.0


def share(clients: Sequence[Client]) -> list[float]:
    total = sum(len(c) for c in clients)
    return [len(c) / total for c in clients]


def assert_same(ours: State, theirs: State, tol: float = 1e-11, what: str = "") -> None:
    assert set(theirs) <= set(ours), f"{what}: missing {set(theirs) - set(ours)}"
    for name, value in theirs.items():
        gap = float((ours[name] - value).abs().max())
        assert gap <= tol, f"{what} {name}: off by {gap:.2e}"


def differ(a: State, b: State, by: float = 1e-6) -> bool:
    return max(float((a[n] - b[n]).abs().max()) for n in a) > by
