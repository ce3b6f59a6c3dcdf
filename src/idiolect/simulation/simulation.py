"""The round loop: schedule, local work, aggregation, evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from idiolect.core import devices, tree
from idiolect.core.clients import Keep, Table
from idiolect.core.method import Down, Method, Server, Ups
from idiolect.core.net import initial_tree
from idiolect.core.tree import Record, Tree
from idiolect.data import Federation
from idiolect.engine import select
from idiolect.engine.engine import Engine
from idiolect.engine.ranks import by_itself
from idiolect.engine.samples import Part
from idiolect.errors import UserError
from idiolect.simulation import schedule as schedules
from idiolect.simulation.outcome import Open, Round, Span
from idiolect.simulation.requests import Adapt, Asking, Fit, Fitted, Rejoin, Rejoined, Score, alone
from idiolect.simulation.schedule import Clock, Participation, Stragglers, Turn
from idiolect.simulation.scores import Columns, Scores

EVALUATED_TOGETHER = 256  # clients whose models are on the device at once while testing


class Simulation:
    """One method on one federation, round by round."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: nn.Module,
        *,
        rounds: int,
        seed: int = 0,
        participation: Participation | float = 1.0,
        stragglers: Stragglers | None = None,
        clock: Clock | None = None,
        schedule: Sequence[Any] | None = None,
        engine: str = "stacked",
        device: str = "auto",
        dtype: str = "float32",
        init: Mapping[str, Tensor] | None = None,
        clients_init: Mapping[int, Mapping[str, Tensor]] | None = None,
        eval_every: int = 1,
        keep: Keep = "auto",
    ):
        if rounds < 1:
            raise UserError(f"rounds must be at least 1, not {rounds}")
        if eval_every < 1:
            raise UserError(f"eval_every must be at least 1, not {eval_every}")
        self.method, self.federation, self.rounds, self.seed = method, federation, rounds, seed
        self.eval_every = eval_every
        self.device = select.pick_device(device)
        self.dtype = select.compute_dtype(dtype)
        select.allow_tf32(dtype, self.device)
        select.check_model_fits(model, federation)
        select.check_batch_norm(model, federation, getattr(method, "batch_size", None))
        self.engine = select.pick_engine(
            engine, federation, model, seed, self.device, self.dtype, keep
        )
        self._module_state = {n: v.detach().cpu() for n, v in model.state_dict().items()}
        given = select.with_given_weights(initial_tree(model, self.engine.net, self.dtype), init)
        self.start_tree = {n: v.to(self.device) for n, v in given.items()}
        own = {
            int(i): select.with_given_weights({n: v.cpu() for n, v in self.start_tree.items()}, w)
            for i, w in (clients_init or {}).items()
        }
        sizes = {i: len(federation.train[i]) for i in federation.seen}
        self.turns = self._schedule(schedule, participation, stragglers, clock, list(sizes))
        state = method.server_init(self.engine.net, dict(self.start_tree), list(sizes))
        self.server = Server(state, net=self.engine.net, clients=list(sizes), sizes=sizes)
        self.mine = Table(partial(_client_init, method, self.engine, self.start_tree, own))
        for table in (self.mine, *state.values()):
            if isinstance(table, Table):
                table.settle(self.device, keep, federation.n_clients)
        self.pending: dict[int, tuple[int, Record]] = {}  # client -> (round started, its work)
        self.round = 0
        self._facts = _facts(federation)
        self.scores = Scores({p: self._facts[f"{p}_size"] for p in ("test", "val")})

    def _schedule(
        self,
        recorded: Sequence[Any] | None,
        participation: Participation | float,
        stragglers: Stragglers | None,
        clock: Clock | None,
        clients: list[int],
    ) -> list[Turn]:
        if recorded is not None:
            try:
                turns = schedules.schedule_from(recorded)
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"the schedule is not a list of rounds: {error}") from None
            late = any(s < t for t, turn in enumerate(turns) for s in turn.arrive.values())
            if late and not self.method.asynchronous:
                raise UserError(
                    f"the schedule has late arrivals, which {self.method.name} cannot use; "
                    "choose an asynchronous method such as plga or fedasync"
                )
            strange = {i for t in turns for i in t.start} - set(clients)
            if strange:
                raise UserError(
                    f"the schedule names client {min(strange)}, which does not take part here"
                )
            if len(turns) < self.rounds:
                raise UserError(
                    f"the schedule has {len(turns)} rounds but {self.rounds} were asked for"
                )
            return turns[: self.rounds]
        if not isinstance(participation, Participation):
            participation = Participation("fixed", float(participation))
        return schedules.make(
            clients,
            self.rounds,
            self.seed,
            asynchronous=self.method.asynchronous,
            participation=participation,
            stragglers=stragglers,
            clock=clock,
        )

    # --- rounds ---

    def start(self) -> Round:
        """Round 0: test the starting point."""
        return alone(self.starting(), self.method, self.engine)

    def step(self, wait: bool = True) -> Round:
        """One round of the schedule. Without `wait` a GPU may still be computing when this returns,
        while the host prepares what comes next; `Round.settle` then waits."""
        done = alone(self.stepping(), self.method, self.engine)
        return done.settle() if wait else done

    def starting(self) -> Asking[Round]:
        """Round 0 as tasks."""
        began = time.perf_counter()
        yield from self._evaluate([])
        clients = self._columns(Turn()) | self.scores.snapshot()()
        seconds = time.perf_counter() - began
        return Round(0, [], [], [], clients, seconds=seconds, seconds_eval=seconds)

    def stepping(self) -> Asking[Round]:
        """One round as tasks: what has to be computed is yielded, its result is sent back."""
        if self.round >= self.rounds:
            raise UserError(f"all {self.rounds} rounds are done")
        unknown = Open(torch.tensor(torch.nan), Span(self.device), self.scores.blank)
        method, t, turn = self.method, self.round, self.turns[self.round]
        result = Round(t + 1, turn.start, list(turn.arrive), [], {})
        self.server.round, self.server.logs = t, {}
        fresh: Record = {}
        after: list[tuple[list[int], Tree]] = []  # models right after local work, to be tested
        if turn.start:
            method.prepare(self.server, turn.start)
            down = self._download(turn.start)
            mine = self.mine[turn.start]
            fitted: Fitted = yield Fit(turn.start, t, down, mine)
            result.bytes_down += down.nbytes(len(turn.start))
            self.mine[turn.start] = fitted.mine
            fresh = fitted.up
            result.samples, result.logs = int(fitted.samples.sum()), fitted.logs
            unknown.loss = fitted.train_loss.mean()
            after.append((turn.start, fitted.trained))
        ups = yield from self._receive(turn, fresh, t, result, after)
        if len(ups) or method.asynchronous:
            method.aggregate(self.server, ups)
        result.staleness = [t - s for s in turn.arrive.values()]
        result.logs = {n: v.cpu() for n, v in (result.logs | self.server.logs).items()}
        tested = self._tests_now
        self.round = t + 1
        if tested:
            testing = Span(self.device)
            yield from self._evaluate(after)
            unknown.testing = testing.end()
            unknown.scores = self.scores.snapshot()
        result.clients = self._columns(turn)
        unknown.whole.end()
        result.open = unknown
        return result

    @property
    def _tests_now(self) -> bool:
        """Whether the round in progress is evaluated."""
        return (self.round + 1) % self.eval_every == 0 or self.round + 1 == self.rounds

    def _download(self, who: Sequence[int]) -> Down:
        return self._sent(self.method.download(self.server, list(who)))

    def _sent(self, down: Down) -> Down:
        return Down(self.engine.to_device(down.shared), self.engine.to_device(down.each))

    def _receive(
        self,
        turn: Turn,
        fresh: Record,
        t: int,
        result: Round,
        after: list[tuple[list[int], Tree]],
    ) -> Asking[Ups]:
        """Put together what reaches the server: this round's work and late work."""
        late = {i: s for i, s in turn.arrive.items() if s < t}
        record = fresh
        if late or list(turn.arrive) != turn.start:
            rows = {i: tree.row(fresh, k) for k, i in enumerate(turn.start)}
            rows |= yield from self._rejoin(late, t, result, after)
            for i in turn.start:
                if i not in turn.arrive and i not in turn.lost:
                    self.pending[i] = (t, tree.each(lambda x: x.cpu(), rows[i]))
            record = tree.pile([rows[i] for i in turn.arrive])
        result.bytes_up += tree.nbytes(record)
        ids = list(turn.arrive)
        sizes = [self.server.sizes[i] for i in ids]
        return Ups(
            record,
            ids,
            devices.to_device(torch.tensor(sizes, dtype=self.dtype), self.device),
            list(turn.arrive.values()),
            t,
            sorted(s for s, _ in self.pending.values()),
        )

    def _rejoin(
        self,
        late: dict[int, int],
        t: int,
        result: Round,
        after: list[tuple[list[int], Tree]],
    ) -> Asking[dict[int, Record]]:
        """Late clients see the present before their work is used."""
        if not late:
            return {}
        ids = list(late)
        up = self.engine.to_device(tree.pile([self.pending.pop(i)[1] for i in ids]))
        if type(self.method).rejoin is not Method.rejoin:
            down = self._sent(self.method.download_late(self.server, ids, list(late.values())))
            result.bytes_down += down.nbytes(len(ids))
            done: Rejoined = yield Rejoin(ids, t, down, self.mine[ids], up)
            up, self.mine[ids] = done.up, done.mine
            after.append((ids, done.trained))
        return {i: tree.row(up, k) for k, i in enumerate(ids)}

    # --- evaluation ---

    def _evaluate(self, after: Sequence[tuple[list[int], Tree]]) -> Asking[None]:
        """Test models right after local work, the shared model if there is one, and what every
        client would predict with now."""
        for ids, params in after:
            yield from self._test("after", params, ids)
        everyone = list(range(self.federation.n_clients))
        shared = self.method.shared(self.server)
        if shared is None or set(shared) != set(self.engine.net.names):
            shared = {}
        if shared:
            yield from self._test("global", tree.expand(shared, len(everyone)), everyone)
        for at in range(0, len(everyone), EVALUATED_TOGETHER):
            ids = everyone[at : at + EVALUATED_TOGETHER]
            params = yield from self._predictors(ids)
            if tree.shows(params, shared):
                self.scores.copy("global", "before", ids)
                yield from self._validate("before", params, ids)
                continue
            known = _unchanged(params, ids, after)
            self.scores.copy("after", "before", list(known))
            rest = [k for k, i in enumerate(ids) if i not in known]
            yield from self._test("before", _rows(params, rest), [ids[k] for k in rest])
        if self.round == self.rounds and self.federation.unseen:
            yield from self._adapt_unseen(list(self.federation.unseen))

    def _personal(self, ids: list[int]) -> Tree:
        """What clients predict with."""
        return alone(self._predictors(ids), self.method, self.engine)

    def _predictors(self, ids: list[int]) -> Asking[Tree]:
        mine = self.mine[ids]
        params = self.method.personal(self._download(ids).stacked(len(ids)), mine)
        if type(self.method).adapt is Method.adapt:
            return params
        adapted: Tree = yield Adapt(ids, self.round, params)
        return adapted

    def _adapt_unseen(self, ids: list[int]) -> Asking[None]:
        """Held-out clients train once on what the server would send them; nothing goes back."""
        mine = self.mine[ids]
        fitted: Fitted = yield Fit(ids, self.round, self._download(ids), mine)
        yield from self._test("after", fitted.trained, ids)

    def _test(self, series: str, params: Tree, ids: list[int]) -> Asking[None]:
        """Test models on their clients' own samples."""
        if ids:
            yield from self._score(series, params, ids, "test")
            yield from self._validate(series, params, ids)

    def _validate(self, series: str, params: Tree, ids: list[int]) -> Asking[None]:
        if series != "global" and self._facts["val_size"][ids].any():
            yield from self._score(series, params, ids, "val")

    def _score(self, series: str, params: Tree, ids: list[int], part: Part) -> Asking[None]:
        correct, loss = yield Score(ids, part, params)
        self.scores.write(series, part, ids, correct, loss)

    def _columns(self, turn: Turn) -> Columns:
        n, arrived = self.federation.n_clients, list(turn.arrive)
        late = np.full(n, -1, dtype=np.int16)
        late[arrived] = [self.round - 1 - s for s in turn.arrive.values()]
        return {
            **{k: self._facts[k] for k in ("client", "train_size", "val_size", "test_size")},
            "started": _among(turn.start, n),
            "arrived": _among(arrived, n),
            "staleness": late,
            "unseen": self._facts["unseen"],
        }

    # --- state ---

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a resume needs: tensors by flat name, and JSON-able meta."""
        tables = {k: v for k, v in self.server.items() if isinstance(v, Table)}
        everything = {
            "server": {k: v for k, v in self.server.items() if k not in tables},
            "tables": {k: _by_text(v.items()) for k, v in tables.items()},
            "mine": _by_text(self.mine.items()),
            "pending": _by_text((i, row) for i, (_, row) in self.pending.items()),
            "metrics": {k: torch.from_numpy(v) for k, v in self.scores.columns.items()},
        }
        host = {
            n: v.detach().to("cpu").contiguous().clone() for n, v in tree.leaves(everything).items()
        }
        since = {str(i): s for i, (s, _) in self.pending.items()}
        return host, {"round": self.round, "pending": since}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state()`."""
        state = tree.ordered(tree.nest(tensors), self.engine.net.names)
        self.server |= self.engine.to_device(state["server"])
        for key, rows in state["tables"].items():
            self.server[key].refill(_by_id(rows))
        self.mine.refill(_by_id(state["mine"]))
        since = meta["pending"]
        self.pending = {i: (since[str(i)], row) for i, row in _by_id(state["pending"]).items()}
        self.scores.restore(state["metrics"])
        self.round = int(meta["round"])

    def server_model(self) -> Tree | None:
        """What all clients share, under the plain module's names; None if they share no model."""
        shared = self.method.shared(self.server)
        if not shared:
            return None
        whole = self._exported(shared)
        return whole if set(shared) == set(self.engine.net.names) else tree.pick(whole, shared)

    def personal_model(self, client: int) -> Tree:
        """What the client predicts with, loadable into the plain module."""
        with by_itself():  # only the rank that writes asks
            return self._exported(tree.client(self._personal([client]), 0))

    def _exported(self, params: Tree) -> Tree:
        full = dict(self._module_state)
        return full | {n: v.detach().cpu().contiguous().clone() for n, v in params.items()}


def _client_init(
    method: Method, engine: Engine, common: Tree, own: Mapping[int, Tree], ids: list[int]
) -> Record:
    """The first state of these clients: from the common model, or from one of their own."""
    begin = tree.expand(common, len(ids))
    if own:
        rows = [own.get(i, common) for i in ids]
        begin = {n: torch.stack([r[n].to(engine.device) for r in rows]) for n in common}
    return engine.to_device(method.client_init(begin, engine.local(ids, 0)))


def _by_text(rows: Iterable[tuple[int, Record]]) -> Record:
    return {str(i): row for i, row in rows}


def _by_id(rows: Record) -> dict[int, Record]:
    return {int(i): row for i, row in rows.items()}


def _unchanged(params: Tree, ids: list[int], tested: Sequence[tuple[list[int], Tree]]) -> set[int]:
    """The clients whose model is, number by number, the one they were last tested with."""
    found: set[int] = set()
    seen: set[int] = set()
    for who, models in reversed(tested):
        place = {i: k for k, i in enumerate(who) if i not in seen}
        both = [(k, i) for k, i in enumerate(ids) if i in place]
        mine, theirs = [k for k, _ in both], [place[i] for _, i in both]
        same = tree.same(_rows(params, mine), _rows(models, theirs)).tolist()
        found |= {i for (_, i), yes in zip(both, same, strict=True) if yes}
        seen |= set(who)
    return found


def _rows(params: Tree, rows: list[int]) -> Tree:
    """Some clients' models; all of them as they are, without a copy."""
    if rows == list(range(len(next(iter(params.values()))))):
        return params
    at = torch.tensor(rows, dtype=torch.int64)
    return {n: v[at.to(v.device)] for n, v in params.items()}


def _facts(federation: Federation) -> dict[str, np.ndarray]:
    """What is known of every client from the start."""
    n = federation.n_clients
    sizes = {
        f"{part}_size": federation.sizes(part).numpy().astype(np.int32)
        for part in ("train", "val", "test")
    }
    unseen = _among(list(federation.unseen), n)
    return {"client": np.arange(n, dtype=np.int32), **sizes, "unseen": unseen}


def _among(ids: Sequence[int], n: int) -> np.ndarray:
    member = np.zeros(n, dtype=bool)
    member[list(ids)] = True
    return member
