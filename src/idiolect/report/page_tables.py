"""The tables and texts of the HTML page; every word from a run's files is escaped."""

import time
from collections.abc import Sequence
from html import escape as escape_html
from typing import Any

import numpy as np

from idiolect.core.text import command_typed, one_line, without_folders
from idiolect.report.load import Run
from idiolect.report.plots import score_axis
from idiolect.report.run_groups import Group
from idiolect.report.significance import BOLD, NOTHING_BOLD
from idiolect.report.tables import Row, cells, columns, headings, is_bold, meanings, score
from idiolect.report.unlike import unlike
from idiolect.runs import config as settings
from idiolect.simulation import metrics

CLIENTS_SHOWN = 500  # rows of the table of clients; all are in clients.parquet
METHODS_SHOWN = 8  # columns of it


def escape(text: str) -> str:
    """Text from a run's files as HTML; line breaks stay, other control characters are shown."""
    return escape_html("\n".join(map(one_line, text.split("\n"))))


def about(found: Sequence[Run]) -> str:
    config, summary = found[0].config, found[0].summary
    seeds = sorted({run.seed for run in found})
    parts = [
        f"{named(config['data'])}, {named(config['split'])}",
        f"{summary['clients']} clients",
        f"model {config['model'].get('name', 'default')}",
        f"{max(run.summary['rounds'] for run in found)} rounds",
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        time.strftime("%d %B %Y"),
    ]
    if any(run.config[key] != config[key] for run in found for key in ("data", "split", "model")):
        parts = [f"{len(found)} runs with different settings", parts[-1]]
    return " · ".join(parts)


def named(section: dict[str, Any]) -> str:
    """`dirichlet (alpha 0.1)`: the name and the one option that says most."""
    telling = [key for key in ("alpha", "k", "classes", "shards") if section.get(key) is not None]
    more = ", ".join(f"{key} {section[key]}" for key in telling[:2])
    return f"{section['name']} ({more})" if more else str(section["name"])


def unfinished(found: Sequence[Run]) -> str:
    late = [run for run in found if not run.finished]
    if not late:
        return ""
    items = [
        escape(f"{run.path.name} (round {run.summary['rounds']} of {run.config['rounds']})")
        for run in late
    ]
    return f'<p class="notice">Not finished yet: {", ".join(items)}.</p>'


def unlike_runs(found: Sequence[Run]) -> str:
    """Why some of the runs should not be compared."""
    return "".join(f'<p class="notice">{escape(line)}.</p>' for line in unlike(found))


def summary(table: Sequence[Row], sets: Sequence[Group]) -> str:
    """One row per method; bold: the best, and with ≈ what is not distinguishable from it."""
    lines, shown = [], columns(table)
    ranked = sorted(zip(table, sets, strict=True), key=lambda pair: -pair[1].goodness)
    for row, group in ranked:
        line = []
        for (key, _, _), cell in zip(shown, cells(row, shown), strict=True):
            if key == "method":
                line.append(_row_head(group, cell))
                continue
            bold = ' class="top"' if is_bold(row, key) else ""
            mark = " ≈" if bold and row["standing"] == "equal" else ""
            line.append(f'<td{bold} data-value="{_value(row[key])}">{escape(cell)}{mark}</td>')
        lines.append(f"<tr>{''.join(line)}</tr>")
    named = headings(table)
    heads = list(zip(named, meanings(table), strict=True))
    notes = "; ".join(f"{text}: {what}" for text, what in heads if what)
    tested = any(row["standing"] for row in table)
    told = f"{BOLD}; ≈ marks the latter. " if tested else f"{NOTHING_BOLD}. "
    marks = told[0].upper() + told[1:] if len(table) > 1 else ""
    finder = ""
    if len(sets) > METHODS_SHOWN:
        finder = '<input type="search" class="find" placeholder="find a method" aria-label="find">'
    return (
        f'<section><h2>Summary</h2><div class="controls">{finder}</div>'
        f"{_table('summary', heads, lines, named[1])}"
        f'<p class="note">{escape(marks)}Press a heading to sort by it.</p>'
        "<details><summary>What the columns are</summary>"
        f'<p class="note">{escape(notes)}.</p></details></section>'
    )


def what_was_done(sets: Sequence[Group]) -> str:
    """What each method really did: settings that decide the work, and the work."""
    heads = [
        ("method", ""),
        ("local lr", ""),
        ("epochs", "of a client's training in a round"),
        ("steps", "instead of epochs, where not 0"),
        ("batch", "samples of a step"),
        ("rounds", ""),
        ("million samples", "trained on, all clients and rounds, mean over seeds"),
        ("seconds", "of all rounds, mean over seeds"),
    ]
    unseen = {group: _unseen(group) for group in sets}
    if any(value is not None for value in unseen.values()):
        heads.append((f"unseen {score_axis(sets)}", "clients that took no part in training"))
    lines = []
    for group in sets:
        method = group.runs[0].config["method"]
        samples = [sum(event["samples"] for event in run.events) / 1e6 for run in group.runs]
        values = [
            *(method.get(key) for key in ("lr", "epochs", "steps", "batch_size")),
            min(run.summary["rounds"] for run in group.runs),
            float(np.mean(samples)),
            float(np.mean([run.summary["seconds"] for run in group.runs])),
            unseen[group],
        ][: len(heads) - 1]
        line = "".join(
            f'<td data-value="{_value(value)}">{escape(_short(value))}</td>' for value in values
        )
        lines.append(f"<tr>{_row_head(group, group.label)}{line}</tr>")
    notes = "; ".join(f"{text}: {what}" for text, what in heads if what)
    return (
        f"<section><h2>What each method did</h2>{_table('did', heads, lines)}"
        f'<p class="note">{escape(notes)}.</p></section>'
    )


def clients(sets: Sequence[Group], found: Sequence[Run]) -> str:
    """Every client under every method, last round, mean over seeds."""
    ranked = sorted(sets, key=lambda group: -group.goodness)
    shown = [g for g in sets if g.method == "local" or g in ranked[:METHODS_SHOWN]]
    values = {group: _by_client(group) for group in shown}
    everyone = sorted({client for column in values.values() for client in column})
    if not everyone:
        return ""
    names = {client: name for run in found for client, name in run.names.items()}
    sizes = {k: n for run in found for k, (_, n) in metrics.client_accuracy(run.table).items()}
    lines = []
    for client in everyone[:CLIENTS_SHOWN]:
        name = names.get(client, "")
        line = [f'<th scope="row" data-value="{client}">{escape(f"{client} {name}".strip())}</th>']
        line.append(f'<td data-value="{sizes[client]}">{sizes[client]}</td>')
        for group in shown:
            value = values[group].get(client)
            told = score(value, group.metric.share)
            line.append(f'<td data-value="{_value(value)}">{told}</td>')
        lines.append(f"<tr>{''.join(line)}</tr>")
    heads = [("client", ""), ("test samples", ""), *((group.label, "") for group in shown)]
    told_as = " / ".join(
        dict.fromkeys(g.metric.name + (" %" if g.metric.share else "") for g in shown)
    )
    more = len(everyone) - CLIENTS_SHOWN
    rest = f" The first {CLIENTS_SHOWN}; {more} more are in clients.parquet." if more > 0 else ""
    return (
        f"<section><details><summary>Client by client, {told_as} in the last round</summary>"
        f'<p class="note">Mean over seeds.{rest}</p>{_table("clients tall", heads, lines)}'
        "</details></section>"
    )


def how_to_repeat(found: Sequence[Run]) -> str:
    """Commands and versions, then the settings of every run."""
    commands = dict.fromkeys(
        command_typed(str(run.env["command"])) for run in found if run.env.get("command")
    )
    shown = ("device_name", "platform", "python", "commit", "packages")
    places = dict.fromkeys(
        settings.dump({key: run.env[key] for key in shown if run.env.get(key)}) for run in found
    )
    blocks = [f"<pre>{escape(chr(10).join(commands))}</pre>"] if commands else []
    blocks += [f"<pre>{escape(place)}</pre>" for place in list(places)[:3] if place.strip() != "{}"]
    blocks += [
        f"<details><summary>{escape('/'.join(run.path.parts[-2:]))}</summary>"
        f"<pre>{escape(without_folders(settings.dump(run.config)))}</pre></details>"
        for run in found
    ]
    note = "The commands, versions and machine of these runs; below, the settings of each."
    return (
        f'<section><h2>Settings, and how to repeat it</h2><p class="note">{note}</p>'
        f"{''.join(blocks)}</section>"
    )


def _row_head(group: Group, text: str) -> str:
    dot = f'<i class="dot" data-colour="{group.colour}"></i>'
    return f'<th scope="row" data-value="{escape(text)}">{dot}{escape(text)}</th>'


def _table(kind: str, heads: Sequence[tuple[str, str]], lines: Sequence[str], by: str = "") -> str:
    """`by`: the column whose largest values come first already."""
    head = "".join(
        f'<th scope="col" title="{escape(what)}"{_sorted_by(text == by)}>'
        f'<button type="button">{escape(text)}</button></th>'
        for text, what in heads
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{kind.split()[0]}">'
        f'<table class="{kind} sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _sorted_by(this: bool) -> str:
    return ' aria-sort="descending"' if this else ""


def _by_client(group: Group) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for run in group.runs:
        for client, (value, _) in metrics.client_accuracy(run.table).items():
            found.setdefault(client, []).append(value)
    return {client: float(np.mean(values)) for client, values in found.items()}


def _unseen(group: Group) -> float | None:
    """Percent where the metric is a share; mean over seeds."""
    lasts = [(run.summary.get("unseen") or {}).get("last") for run in group.runs]
    means = [last.get("mean") for last in lasts if isinstance(last, dict)]
    known = [value for value in means if isinstance(value, int | float)]
    return group.scale * float(np.mean(known)) if known else None


def _short(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _value(value: Any) -> str:
    """What a column is sorted by."""
    return escape(str(value)) if isinstance(value, int | float) else ""
