"""The round loop: schedule, local work, aggregation, evaluation."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from idiolect import models
from idiolect.core import record, tree
from idiolect.core.clients import Table
from idiolect.core.method import Down, Method, Ups
from idiolect.core.net import initial_tree
from idiolect.core.storage import Keep
from idiolect.core.tree import Record, Tree
from idiolect.data import Federation
from idiolect.engine import select
from idiolect.engine.ranks import by_itself
from idiolect.errors import UserError
from idiolect.simulation import schedule as schedules
from idiolect.simulation import server_state
from idiolect.simulation.evaluation import Evaluation, Models, RoundsTested
from idiolect.simulation.kept_optimizers import KeptOptimizers
from idiolect.simulation.measures import Measures
from idiolect.simulation.measuring import Measuring
from idiolect.simulation.outcome import Open, Round, Span
from idiolect.simulation.requests import Adapt, Asking, Fit, Fitted, Rejoin, alone, first_state
from idiolect.simulation.schedule import Clock, Participation, Stragglers, Turn
from idiolect.simulation.scores import Columns, client_columns


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
        tested_at_end: int = 1,
        measure: Measures | None = None,
        keep: Keep = "auto",
        learn: select.Learn = (None, None),
    ):
        self.tested = RoundsTested(rounds, eval_every, tested_at_end)
        method = method.over(rounds)
        self.method, self.federation, self.rounds, self.seed = method, federation, rounds, seed
        self.device = select.pick_device(device)
        self.dtype = select.compute_dtype(dtype)
        select.allow_tf32(dtype, self.device)
        model = federation.form.attached(model)
        models.check_fits(model, federation.shape, federation.classes, form=federation.form)
        select.check_batch_norm(model, federation, getattr(method, "batch_size", None))
        model = select.with_frozen_weights(model, init)
        how = (seed, self.device, dtype, keep, learn)
        self.engine = select.pick_engine(engine, federation, model, *how)
        self._module_state = server_state.module_values(model)
        net = self.engine.net
        given = select.with_given_weights(net, initial_tree(model, net, self.dtype), init)
        self.start_tree = {n: v.to(self.device) for n, v in given.items()}
        self.clients_start = {  # of those that do not start from the common model
            int(i): select.with_given_weights(net, {n: v.cpu() for n, v in given.items()}, w)
            for i, w in (clients_init or {}).items()
        }
        sizes = {i: len(federation.train[i]) for i in federation.seen}
        self.turns = self._schedule(schedule, participation, stragglers, clock, list(sizes))
        self._has_stragglers = schedules.has_stragglers(self.turns)
        self.server = server_state.new_server(method, net, self.start_tree, list(sizes), sizes)
        if schedule is None and not stragglers and clock is None:
            self.server.expected = Participation.of(participation).expected(len(sizes))
        first = partial(first_state, method, self.engine, self.start_tree, self.clients_start)
        self.mine = Table(first)
        self.kept = KeptOptimizers(self.device, keep, federation.n_clients)
        for table in (self.mine, *server_state.tables(self.server).values()):
            table.settle(self.device, keep, federation.n_clients)
        self.pending: dict[int, tuple[int, Record]] = {}  # client -> (round started, its work)
        self.round = 0
        self.measure = measure or Measures()
        self.evaluation = Evaluation(federation, self.measure)
        self.scores = self.evaluation.scores
        self.measuring = Measuring(method, self.engine, self.server, self.evaluation, seed)

    def _schedule(
        self,
        recorded: Sequence[Any] | None,
        participation: Participation | float,
        stragglers: Stragglers | None,
        clock: Clock | None,
        clients: list[int],
    ) -> list[Turn]:
        if recorded is not None:
            turns = schedules.schedule_from(recorded)
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
            k, mine = len(turn.start), self.mine[turn.start]
            given = (down.stacked(k), mine, self.kept[turn.start])
            fitted: Fitted = yield Fit(turn.start, t, given)
            result.bytes_down += down.nbytes(k)
            self.mine[turn.start] = fitted.mine
            self.kept[turn.start] = fitted.kept
            fresh = fitted.up
            result.samples, result.steps = int(fitted.samples.sum()), int(fitted.steps.sum())
            self._show(fitted.logs, turn.start, result)
            unknown.loss = fitted.train_loss.mean()
            after.append((turn.start, fitted.trained))
            if self.measure and t + 1 in self.tested:
                yield from self.measuring.local_work(turn.start, t, given[:2], fitted, result)
        ups = yield from self._receive(turn, fresh, t, result, after)
        if len(ups) or method.asynchronous:
            method.aggregate(self.server, ups)
        result.staleness = [t - s for s in turn.arrive.values()]
        logs = {n: v.cpu() for n, v in (result.logs | self.server.logs).items()}
        result.logs = {n: v for n, v in logs.items() if not v.isnan().all()}
        self.round = t + 1
        if self.round in self.tested:
            testing = Span(self.device)
            yield from self._evaluate(after)
            unknown.testing = testing.end()
            unknown.scores = self.scores.snapshot()
        elif self._has_stragglers:
            testing = Span(self.device)
            yield from self._test_stragglers(after)
            unknown.testing = testing.end()
        else:  # their earlier models are not the ones they have now
            self.scores.forget("after", turn.start)
        result.clients = self._columns(turn)
        unknown.whole.end()
        result.open = unknown
        return result

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
        away = sorted(s for s, _ in self.pending.values())
        like = tree.any_leaf(self.start_tree)
        return server_state.arrivals(self.server, record, turn.arrive, t, away, like)

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
        if self.method.rejoins:
            down = self._sent(self.method.download_late(self.server, ids, list(late.values())))
            result.bytes_down += down.nbytes(len(ids))
            seen = down.stacked(len(ids))
            done: Fitted = yield Rejoin(ids, t, (seen, self.mine[ids], up))
            up, self.mine[ids] = done.up, done.mine
            self._show(done.logs, ids, result)
            after.append((ids, done.trained))
        return {i: tree.row(up, k) for k, i in enumerate(ids)}

    def _show(self, logs: Tree, ids: list[int], result: Round) -> None:
        """What clients show of the round, at their ids."""
        for name, value in logs.items():
            shown = self.server.by_id(value, ids)
            known = result.logs.get(name)
            result.logs[name] = shown if known is None else torch.where(shown.isnan(), known, shown)

    # --- evaluation ---

    def _evaluate(self, after: Sequence[Models]) -> Asking[None]:
        """Test this round's models; after the last round, unseen clients' too."""
        shared = server_state.whole_model(self.method, self.server)
        yield from self.evaluation.test_round(shared, after, self._predictors)
        if self.round == self.rounds and self.federation.unseen:
            yield from self._adapt_unseen(list(self.federation.unseen))

    def _test_stragglers(self, after: Sequence[Models]) -> Asking[None]:
        """Between two tested rounds, test the models of clients who will not train again until the
        next one: a straggler that is never back in a tested round would stay untested for ever."""
        until = self.tested.after(self.round)
        again: set[int] = set()
        for t, turn in enumerate(self.turns[self.round : until], self.round):
            again |= set(turn.start)
            if self.method.rejoins:
                again |= {i for i, s in turn.arrive.items() if s < t}
        for ids, params in after:
            rows = [k for k, i in enumerate(ids) if i not in again]
            yield from self.evaluation.test(
                "after", record.select(params, rows), [ids[k] for k in rows]
            )

    def _personal(self, ids: list[int]) -> Tree:
        """What clients predict with."""
        return alone(self._predictors(ids), self.method, self.engine)

    def _predictors(self, ids: list[int]) -> Asking[Tree]:
        mine = self.mine[ids]
        params = self.method.personal(self._download(ids).stacked(len(ids)), mine)
        if type(self.method).adapt is Method.adapt:
            return params
        adapted: Tree = yield Adapt(ids, self.round, (params,))
        return adapted

    def _adapt_unseen(self, ids: list[int]) -> Asking[None]:
        """Held-out clients train once on what the server would send them; nothing goes back."""
        down = self._download(ids).stacked(len(ids))
        fitted: Fitted = yield Fit(ids, self.round, (down, self.mine[ids]))
        yield from self.evaluation.test("after", fitted.trained, ids)

    def _columns(self, turn: Turn) -> Columns:
        late = {i: self.round - 1 - s for i, s in turn.arrive.items()}
        given = self.federation
        return client_columns(
            self.evaluation.sizes, turn.start, late, given.unseen, given.names_given
        )

    # --- state ---

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a resume needs: tensors by flat name, and JSON-able meta."""
        everything = server_state.saved(self.server) | {
            "mine": server_state.by_name(self.mine.items()),
            "pending": server_state.by_name((i, row) for i, (_, row) in self.pending.items()),
            "metrics": self.scores.state(),
            **self.kept.state(),
        }
        since = {str(i): s for i, (s, _) in self.pending.items()}
        return server_state.on_host(everything), {"round": self.round, "pending": since}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state()`."""
        state = tree.ordered(tree.nest(tensors), self.engine.net.names)
        server_state.restore(self.server, state, self.device)
        self.mine.refill(server_state.by_id(state["mine"]))
        pending = server_state.by_id(state["pending"])
        self.pending = {i: (meta["pending"][str(i)], row) for i, row in pending.items()}
        self.scores.restore(state["metrics"])
        self.kept.restore(state)
        self.round = int(meta["round"])

    def server_model(self) -> Tree | None:
        """What all clients share, under the plain module's names; None if they share no model."""
        return server_state.shared_model(self.method, self.server, self._module_state)

    def personal_model(self, client: int) -> Tree:
        """What the client predicts with, loadable into the plain module."""
        with by_itself():  # only the rank that writes asks
            params = tree.client(self._personal([client]), 0)
        return server_state.exported(self.engine.net, params, self._module_state)

    def frozen_part(self) -> Tree:
        """What no client's training changes, under the plain module's names."""
        return server_state.frozen(self.engine.net, self._module_state)
