"""Numbers that few tables show: each a function of a run and the word after the colon."""

from collections.abc import Callable

import numpy as np

from idiolect.errors import UserError
from idiolect.papers.numbers import FinishedRun, Run, has_personal_model, protocol_value
from idiolect.runs.config import Config
from idiolect.runs.trials import worth
from idiolect.simulation import metrics
from idiolect.simulation.protocols import protocol as protocol_named

MIB = 2.0**20


def protocol(run: FinishedRun, part: str) -> float | None:
    """`protocol:10`: what the protocol quotes when only ten rounds are known."""
    value = protocol_value(run, int(part))["value"] if part else run.summary["protocol"]["value"]
    return None if value is None else 100 * value


def validation(run: FinishedRun, part: str) -> float | None:
    """What the run is worth where settings are chosen: the protocol's number on validation samples,
    more is better. None if it diverged."""
    rounds, name = metrics.rounds_of(run.table), run.config["protocol"]
    found = worth(rounds, bool(run.summary["diverged"]), name, has_personal_model(run))
    return None if found is None else 100 * found


def client_accuracy(run: Run, part: str) -> float | None:
    """`client_accuracy:3`: client 3 in the round and series of the protocol."""
    chosen, told = protocol_named(run.config["protocol"]), run.summary["protocol"]
    clients = run.series(f"clients.accuracy_{chosen.series}")
    found = {one.item: one.value for one in clients if one.round == told["round"]}
    if clients and part not in {one.item for one in clients}:
        many = len({one.item for one in clients})
        raise UserError(f"client_accuracy:{part}: the run has {many} clients")
    return found.get(part)


def delivered_unless_trained(run: FinishedRun, part: str) -> float | None:
    """Pooled over all clients, best round: those of the round with the model they just trained, all
    others with the model the server has for them. So the authors of FedAS test their baselines."""
    values = []
    for rows in metrics.rounds_of(run.table).values():
        shared = rows.get("accuracy_global", np.full(len(rows["client"]), np.nan))
        delivered = np.where(np.isfinite(shared), shared, rows["accuracy_before"])
        own = rows["started"] & np.isfinite(rows["accuracy_after"])
        accuracy = np.where(own, rows["accuracy_after"], delivered)
        seen = ~rows["unseen"]
        pooled = metrics.stats(accuracy[seen], rows["test_size"][seen])["pooled"]
        values += [] if pooled is None else [pooled]
    return 100 * max(values) if values else None


def bytes_per_client_round(run: FinishedRun, part: str) -> float | None:
    """MiB up and down of one client in one round that it takes part in (`:up`, `:down`)."""
    keys = {"": ("bytes_up", "bytes_down"), "up": ("bytes_up",), "down": ("bytes_down",)}
    if part not in keys:
        raise UserError(f"bytes_per_client_round:{part}: use up or down after the colon")
    started = sum(len(event["started"]) for event in run.events)
    sent = sum(run.summary[key] for key in keys[part])
    return sent / started / MIB if started else None


def flops_per_round(run: FinishedRun, part: str) -> float | None:
    """FLOPs of all clients together in one round; needs `measure: [flops]`."""
    return _per_round(run, "flops")


def passes_per_round(run: FinishedRun, part: str) -> float | None:
    """Network passes of all clients together in one round; needs `measure: [flops]`."""
    return _per_round(run, "passes")


def group_found(run: Run, part: str) -> float | None:
    """`group_found:5`: the share of the others in its group that a client mixes with in round 5,
    mean over clients: of as many partners as the group has, those with the largest weights. A
    weight of zero is no choice. Groups are those of the split."""
    return _of_choices(run, part, lambda right, chosen, others: right / others if others else None)


def group_purity(run: Run, part: str) -> float | None:
    """`group_purity:5`: the share of the partners so chosen that are of the client's own group,
    mean over the clients that chose any."""
    return _of_choices(run, part, lambda right, chosen, others: right / chosen if chosen else None)


def _of_choices(
    run: Run, part: str, share: Callable[[int, int, int], float | None]
) -> float | None:
    """`share` of right partners, chosen partners and others in the group; mean over clients."""
    rounds: dict[int, dict[tuple[int, int], float]] = {}
    for one in run.series("aggregation_weight"):
        if one.item.count(",") == 1:
            client, other = map(int, one.item.split(","))
            rounds.setdefault(one.round, {})[client, other] = one.value
    weights = rounds.get(int(part) if part else max(rounds, default=-1))
    if weights is None:
        return None
    group = _groups(run.config)
    found = []
    for client in sorted({client for client, _ in weights}):
        others = int((group == group[client]).sum()) - 1
        mixed = [(-w, j) for (i, j), w in weights.items() if i == client != j and w > 0]
        chosen = [j for _, j in sorted(mixed)[:others]]
        right = sum(bool(group[j] == group[client]) for j in chosen)
        found.append(share(right, len(chosen), others))
    known = [one for one in found if one is not None]
    return float(np.mean(known)) if known else None


def straggler_weight_ratio(run: FinishedRun, part: str) -> float | None:
    """Mean aggregation weight of the fixed stragglers over that of the others, in the rounds in
    which both take part."""
    late = _stragglers(run)
    ratios = []
    for kept in run.logs.values():
        if "aggregation_weight" not in kept:
            continue
        weights = np.asarray(kept["aggregation_weight"].tolist(), dtype=float)
        weights = weights if weights.ndim == 1 else np.nanmean(weights, axis=0)
        a, b = weights[late], weights[~late]
        if np.isfinite(a).any() and np.isfinite(b).any():
            ratios.append(float(np.nanmean(a) / np.nanmean(b)))
    return float(np.mean(ratios)) if ratios else None


def straggler_trace_ratio(run: FinishedRun, part: str) -> float | None:
    """Mean Fisher trace of the fixed stragglers over that of the others, in one round."""
    late = _stragglers(run)
    moments = [m for m in run.series("clients.fisher_trace") if m.item]
    last = max((m.round for m in moments), default=0)
    at = {int(m.item): m.value for m in moments if m.round == (int(part) if part else last)}
    a = [value for client, value in at.items() if late[client]]
    b = [value for client, value in at.items() if not late[client]]
    return float(np.mean(a) / np.mean(b)) if a and b else None


def fisher_growth(run: FinishedRun, part: str) -> float | None:
    """Mean Fisher trace of the clients that are always online: that of the last round over that of
    the first."""
    always = ~_stragglers(run)
    at: dict[int, list[float]] = {}
    for one in run.series("clients.fisher_trace"):
        if one.item and one.round > 0 and always[int(one.item)]:
            at.setdefault(one.round, []).append(one.value)
    return float(np.mean(at[max(at)]) / np.mean(at[min(at)])) if len(at) > 1 else None


def fisher_top_drop(run: FinishedRun, part: str) -> float | None:
    """Points of accuracy that clients lose with the 5 % of their parameters that have the highest
    Fisher information set to zero; needs `save_models: last`."""
    return _lost(run, "top")


def fisher_random_drop(run: FinishedRun, part: str) -> float | None:
    """The same with 5 % of their parameters drawn by lot."""
    return _lost(run, "random")


def _lost(run: FinishedRun, which: str) -> float:
    return 100 * float(np.nanmean(run.replaced["intact"] - run.replaced[which]))


def classes_per_client(run: FinishedRun, part: str) -> float | None:
    from idiolect.runs.build import load_federation

    made = load_federation(run.config)
    return float(np.mean([len(made.y[rows].unique()) for rows in made.train]))


def train_samples(run: FinishedRun, part: str) -> float | None:
    return _mean_size(run, "train")


def test_samples(run: FinishedRun, part: str) -> float | None:
    return _mean_size(run, "test")


def _mean_size(run: FinishedRun, part: str) -> float:
    from idiolect.runs.build import load_federation

    return float(np.mean([len(rows) for rows in getattr(load_federation(run.config), part)]))


def _per_round(run: FinishedRun, name: str) -> float | None:
    if name not in run.table:
        raise UserError(f"{name} was not measured; set `measure: [flops]`")
    totals = [
        float(np.nansum(rows[name]))
        for t, rows in metrics.rounds_of(run.table).items()
        if t > 0 and np.isfinite(rows[name]).any()
    ]
    return float(np.mean(totals)) if totals else None


def _groups(config: Config) -> np.ndarray:
    """The group of every client, as the split `groups` made them."""
    from idiolect.data.splits import split
    from idiolect.data.splits.groups import Groups

    made = split(config["split"])
    if not isinstance(made, Groups):
        raise UserError("group_found and group_purity need the split `groups`")
    members = made.members()
    return np.concatenate([np.full(len(ids), k) for k, ids in enumerate(members)])


def _stragglers(run: FinishedRun) -> np.ndarray:
    """Clients that take part in fewer rounds than the client that takes part most."""
    n = int(run.table["client"].max()) + 1
    count = np.zeros(n)
    for event in run.events:
        for client in event["started"]:
            count[client] += 1
    return np.asarray(count < count.max())


SPECIAL: dict[str, Callable[[FinishedRun, str], float | None]] = {
    made.__name__: made
    for made in (
        protocol,
        validation,
        client_accuracy,
        delivered_unless_trained,
        bytes_per_client_round,
        flops_per_round,
        passes_per_round,
        group_found,
        group_purity,
        straggler_weight_ratio,
        straggler_trace_ratio,
        fisher_growth,
        fisher_top_drop,
        fisher_random_drop,
        classes_per_client,
        train_samples,
        test_samples,
    )
}

# Those that can be told by the series kept with a record, when the run directory is long gone.
FROM_SERIES: dict[str, Callable[[Run, str], float | None]] = {
    made.__name__: made for made in (client_accuracy, group_found, group_purity)
}
