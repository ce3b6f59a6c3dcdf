"""From per-client accuracies to the numbers people quote.

A table is a dict of equally long columns, one row per client and round (`clients.parquet`). Series
`before` is the model the round delivered, before further local training; `after` is the client's
own model as it last left local training, NaN if that one was never tested; `global` is the one
shared model, where there is one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from idiolect.core.task import ACCURACY, Metric, metric_named
from idiolect.simulation.protocols import Protocol, Series, protocol

Table = Mapping[str, np.ndarray]
Stats = dict[str, float | None]

STATS = ("mean", "pooled", "std", "p10", "worst")


def metric_of(rows: Table) -> Metric:
    """The metric that a table's clients are judged by: its columns have its name."""
    names = (name.removesuffix("_before") for name in rows if name.endswith("_before"))
    own = [n for n in names if n != "loss" and not n.startswith(("val_", "train_"))]
    return metric_named(own[0]) if own else ACCURACY


def stats(accuracy: np.ndarray, size: np.ndarray, lower: bool = False) -> Stats:
    """Mean, pooled by test size, spread, bottom decile and worst over clients; NaN is absent.
    `lower`: less is better, so the worst is the largest."""
    known = np.isfinite(accuracy)
    if not known.any():
        return dict.fromkeys(STATS)
    value, size = accuracy[known].astype(np.float64), size[known].astype(np.float64)
    pooled = float(np.average(value, weights=size)) if size.sum() > 0 else None
    return {
        "mean": float(value.mean()),
        "pooled": pooled,
        "std": float(value.std()),
        "p10": float(np.percentile(value, 90 if lower else 10)),
        "worst": float(value.max() if lower else value.min()),
    }


def round_stats(rows: Table, series: Series = "before", unseen: bool = False) -> Stats:
    """Stats of one round over the clients that train (or over the unseen ones)."""
    column = f"{metric_of(rows).name}_{series}"
    return _stats(rows, column, "test_size", rows["unseen"] == unseen)


def measured(rows: Table, logs: Mapping[str, Any]) -> dict[str, Any]:
    """What `measure` asked for, of one round, in one number each (one per layer for updates). Loss
    and accuracy on training samples are means over all samples of all clients (Eq. 1 of PFLEGO)."""
    seen = ~rows["unseen"]
    trained = seen & rows["started"]
    found: dict[str, Any] = {}
    metric = metric_of(rows).name
    for what in ("loss", metric):
        for series, keep in (("before", seen), ("after", trained)):
            value = _stats(rows, f"train_{what}_{series}", "train_size", keep)["pooled"]
            found[f"train_{what}" + ("" if series == "before" else "_after")] = value
    guided = _stats(rows, f"{metric}_guidance", "test_size", seen)["pooled"]
    found[f"guidance_{metric}"] = guided
    found["fisher_trace"] = _stats(rows, "fisher_trace", "train_size", seen)["mean"]
    for what in ("flops", "passes"):
        found[what] = _stats(rows, what, "train_size", trained)["mean"]
    found["gradient_similarity"] = {
        name.removeprefix(LAYERS): _between(value) for name, value in logs.items() if LAYERS in name
    }
    return {name: value for name, value in found.items() if value not in (None, {})}


LAYERS = "gradient_similarity/"


def _between(cosine: Any) -> float | None:
    """Mean over pairs of different clients."""
    values: np.ndarray = cosine.double().numpy().copy()
    np.fill_diagonal(values, np.nan)
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def selection(rows: Table, name: str = "default", series: Series | None = None) -> float | None:
    """What one round is judged by when the best round is chosen, more is better: validation where
    there is any."""
    chosen = protocol(name)
    series = series or chosen.series
    metric, prefix, size = metric_of(rows), "", "test_size"
    if has_validation(rows):
        prefix, size = "val_", "val_size"
    column = f"{prefix}{metric.name}_{series}"
    value = _stats(rows, column, size, ~rows["unseen"])[chosen.weighting]
    return None if value is None else metric.sign * value


def metric_section(metric: Metric) -> dict[str, Any]:
    """What the key `accuracy` of an event or summary holds, where it is another metric."""
    if metric is ACCURACY:
        return {}
    return {"metric": {"name": metric.name, "better": "lower" if metric.lower else "higher"}}


def has_validation(rows: Table) -> bool:
    return bool("val_size" in rows and (rows["val_size"] > 0).any())


def on_validation(rows: Table) -> Table:
    """The rows with validation samples in the place of test samples, of which nothing is left."""
    scores = f"val_{metric_of(rows).name}_"
    kept = {name: rows[name] for name in ("client", "started", "unseen")}
    kept |= {k.removeprefix("val_"): column for k, column in rows.items() if k.startswith(scores)}
    return {**kept, "test_size": rows["val_size"]}


def rounds_of(table: Table) -> dict[int, dict[str, np.ndarray]]:
    """The table cut into rounds, in order."""
    number = np.asarray(table["round"])
    order = np.argsort(number, kind="stable")
    cuts = np.flatnonzero(np.diff(number[order])) + 1
    pieces = np.split(order, cuts) if len(order) else []
    return {
        int(number[piece[0]]): {name: np.asarray(column)[piece] for name, column in table.items()}
        for piece in pieces
    }


def summarise(
    table: Table, protocol: str = "default", personal_model: bool = True
) -> dict[str, Any]:
    """All summaries of a run, as plain JSON values (None where nothing was measured).
    `personal_model`: whether clients hold a model of their own besides the locally trained one."""
    rounds = rounds_of(table)
    last = rounds[max(rounds)] if rounds else {}
    seen = int((~last["unseen"]).sum()) if last else 0
    unseen = int(last["unseen"].sum()) if last else 0
    validated = has_validation(last) if last else False
    return {
        "accuracy": _over_rounds(rounds, "before", protocol),
        "accuracy_after": _over_rounds(rounds, "after", protocol),
        "accuracy_global": _over_rounds(rounds, "global", protocol, optional=True),
        "unseen": _over_rounds(rounds, "before", protocol, unseen=True) if unseen else None,
        "unseen_after": _over_rounds(rounds, "after", protocol, unseen=True) if unseen else None,
        "selected_on": "validation" if validated else "test",
        "clients": seen + unseen,
        "clients_unseen": unseen,
        **metric_section(metric_of(last)),
        "protocol": {"name": protocol, **protocol_value(rounds, protocol, personal_model)},
    }


def protocol_value(
    rounds: Mapping[int, Table], name: str, personal_model: bool = True
) -> dict[str, Any]:
    """The protocol's one number, the round it comes from and what it is."""
    chosen = protocol(name)
    series = chosen.series
    if name == "plga" and not personal_model:  # its client column is then the trained model
        series = "after"
    if chosen.when == "selected":
        if rounds and has_validation(rounds[max(rounds)]):
            best = _best(rounds, series, name)
            value = None if best is None else round_stats(rounds[best], series)[chosen.weighting]
            return {"value": value, "round": best, "what": chosen.what}
        values = _protocol_series(rounds, chosen, series)
        return {**_last(values), "what": chosen.what}
    values = _protocol_series(rounds, chosen, series)
    if chosen.when == "best":
        sign = metric_of(rounds[max(rounds)]).sign if rounds else 1.0
        best = max(values, key=lambda t: sign * values[t], default=None)
        value = None if best is None else values[best]
        return {"value": value, "round": best, "what": chosen.what}
    if chosen.when == "last10":
        final = max(rounds, default=0)
        tail = [value for t, value in values.items() if t > max(final - 10, 0)]
        mean = float(np.mean(tail)) if tail else None
        return {"value": mean, "round": max(values, default=None), "what": chosen.what}
    report = {**_last(values), "what": chosen.what}
    if name == "plga":
        server = {t: round_stats(rows, "global")["pooled"] for t, rows in rounds.items()}
        report["server"] = _last({t: v for t, v in server.items() if v is not None})["value"]
    return report


def client_accuracy(table: Table, series: Series = "before") -> dict[int, tuple[float, int]]:
    """Each training client's accuracy and test size in the last evaluated round."""
    if not len(table.get("round", ())):
        return {}
    value, number = table[f"{metric_of(table).name}_{series}"], table["round"]
    known = np.isfinite(value) & ~table["unseen"]
    if not known.any():
        return {}
    keep = known & (number == number[known].max())
    columns = (table["client"][keep], value[keep], table["test_size"][keep])
    return {int(k): (float(a), int(n)) for k, a, n in zip(*columns, strict=True)}


def gain(table: Table, reference: Table) -> dict[str, Any] | None:
    """What clients win over another run (usually `local`), and the share of them it harms; a win
    is positive, also where less of the metric is better.

    None when the two runs do not hold the same clients.
    """
    ours, theirs = client_accuracy(table), client_accuracy(reference)
    if not ours or ours.keys() != theirs.keys():
        return None
    if any(ours[k][1] != theirs[k][1] for k in ours):
        return None
    clients = sorted(ours)
    metric = metric_of(table)
    delta = metric.sign * np.array([ours[k][0] - theirs[k][0] for k in clients])
    # Accuracies are counts over the test size: half a sample separates equal from different.
    # Other metrics are equal where they differ by rounding only.
    half = np.array([0.5 / max(ours[k][1], 1) for k in clients])
    if metric is not ACCURACY:
        half = 1e-9 * np.array([1 + abs(theirs[k][0]) for k in clients])
    return {
        "mean": float(delta.mean()),
        "worst": float(delta.min()),
        "harmed": float((delta < -half).mean()),
        "clients": clients,
        "per_client": delta.tolist(),
    }


def _stats(rows: Table, column: str, size: str, keep: np.ndarray) -> Stats:
    if column not in rows:
        return dict.fromkeys(STATS)
    lower = "loss" not in column and metric_of(rows).lower
    return stats(rows[column][keep], rows[size][keep], lower)


def _best(rounds: Mapping[int, Table], series: Series, name: str) -> int | None:
    """Round with the best selection value; the untrained round 0 only if there is no other."""
    scores = {t: selection(rows, name, series) for t, rows in rounds.items()}
    known = {t: score for t, score in scores.items() if score is not None}
    trained = {t: score for t, score in known.items() if t > 0} or known
    return max(trained, key=lambda t: trained[t], default=None)


def _over_rounds(
    rounds: Mapping[int, Table],
    series: Series,
    name: str,
    unseen: bool = False,
    optional: bool = False,
) -> dict[str, Any] | None:
    each = {t: round_stats(rows, series, unseen) for t, rows in rounds.items()}
    known = {t: value for t, value in each.items() if value["mean"] is not None}
    if not known:
        empty: dict[str, Any] = {**dict.fromkeys(STATS), "round": None}
        return None if optional else {"best": empty, "last": empty, "last10": empty}
    # The shared model has no validation column of its own: it follows the delivered models' choice.
    best = _best({t: rounds[t] for t in known}, "before" if series == "global" else series, name)
    final = max(known)
    tail = [known[t] for t in known if t > max(max(rounds) - 10, 0)] or [known[final]]
    result = {
        "best": {**known.get(best if best is not None else final, known[final]), "round": best},
        "last": {**known[final], "round": final},
        "last10": {**{key: _mean([row[key] for row in tail]) for key in STATS}, "round": final},
    }
    if any(has_validation(rows) for rows in rounds.values()):
        weighting = protocol(name).weighting
        trained = {t: row for t, row in known.items() if t > 0} or known
        sign = metric_of(rounds[max(rounds)]).sign
        peak = max(trained, key=lambda t: sign * (trained[t][weighting] or 0.0))
        result["best_on_test"] = {**known[peak], "round": peak}
    return result


def _protocol_series(
    rounds: Mapping[int, Table], chosen: Protocol, series: Series
) -> dict[int, float]:
    values: dict[int, float] = {}
    metric = metric_of(rounds[max(rounds)]) if rounds else ACCURACY
    trained: np.ndarray | bool = False  # clients that started once
    for t, rows in rounds.items():
        trained = trained | rows["started"]
        accuracy, keep = rows.get(f"{metric.name}_{series}"), ~rows["unseen"]
        if accuracy is None:
            continue
        if chosen.clients == "started":
            keep = keep & rows["started"]
        if chosen.clients == "next":
            # The clients of round t are tested with what round t - 1 left them.
            if t - 1 not in rounds:
                continue
            keep = keep & rows["started"]
            accuracy = rounds[t - 1][f"{metric.name}_{series}"]
        elif series == "after" and chosen.clients == "all":
            # A client that never trained still holds the model it started from.
            start = rounds[min(rounds)][f"{metric.name}_before"]
            accuracy = np.where(np.isfinite(accuracy) | trained, accuracy, start)
        value = stats(accuracy[keep], rows["test_size"][keep], metric.lower)[chosen.weighting]
        evaluated = np.isfinite(rows[f"{metric.name}_before"]).any() or chosen.clients == "next"
        if value is not None and evaluated:
            values[t] = value
    return values


def _last(values: Mapping[int, float]) -> dict[str, Any]:
    if not values:
        return {"value": None, "round": None}
    return {"value": values[max(values)], "round": max(values)}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
