"""One self-contained HTML page: tables, figures and settings, readable without a network."""

import json
import time
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape as escape_html
from importlib.resources import files
from string import Template
from typing import Any

from idiolect.core.text import one_line
from idiolect.errors import UserError
from idiolect.report import plots
from idiolect.report.load import Run
from idiolect.report.tables import COLUMNS, Group, Row, best_values, cells, groups, headings, rows
from idiolect.runs import config as settings

MATRICES_SHOWN = 4  # per method; the rest is in matrices.safetensors


def page(found: Sequence[Run], title: str | None = None) -> str:
    """The whole page."""
    plotly = plotly_script()
    title = title or heading(found)
    body, figures = views(found)
    style, script = _text("page.css"), _text("page.js")
    return Template(_text("page.html")).substitute(
        title=escape(title),
        policy=_policy(scripts=(plotly, script), style=style),
        style=style,
        body=f"<h1>{escape(title)}</h1>\n{body}",
        plotly=plotly,
        figures=_inert(figures),
        script=script,
    )


def heading(found: Sequence[Run]) -> str:
    return "Idiolect: " + ", ".join(group.label for group in groups(found))


def views(found: Sequence[Run]) -> tuple[str, list[dict[str, Any]]]:
    """Everything below the title: HTML, and the figures that its `data-figure` numbers name."""
    sets = groups(found)
    figures: list[dict[str, Any]] = []
    body = [
        f'<p class="lead">{escape(_about(found))}</p>',
        _unfinished(found),
        _summary(rows(found), sets),
        _section(
            figures,
            "Accuracy over rounds",
            "Mean over clients; the shaded band reaches down to the bottom decile (p10). Before: "
            "the model a round delivers. After: the one a client holds after its own training.",
            [
                ("before local training", plots.accuracy_over_rounds(sets, "accuracy")),
                ("after local training", plots.accuracy_over_rounds(sets, "accuracy_after")),
            ],
            band=True,
        ),
        _section(
            figures,
            "Who gains, who is harmed",
            "Each client against the same client trained alone, last round. Below zero (or below "
            "the diagonal) collaboration harmed it. Few test samples make this coarse.",
            [
                ("sorted gains", plots.gain_curves(sets, found)),
                ("client by client", plots.local_scatter(sets, found)),
            ],
            missing="No <code>local</code> run on the same clients is in this report.",
        ),
        _section(
            figures,
            "Accuracy for the traffic",
            "Mean accuracy against all bytes sent so far. Methods that send nothing are level "
            "lines.",
            [("", plots.bytes_and_accuracy(sets))],
            missing="Nothing was sent.",
        ),
        _matrices(figures, sets),
        _settings(found),
    ]
    return "\n".join(body), figures


def _inert(figures: list[dict[str, Any]]) -> str:
    """JSON that cannot end, or comment out, the script element it lies in."""
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str], style: str) -> str:
    """The Content-Security-Policy of the page: its own two scripts run, nothing is fetched or sent.
    Plotly adds an empty style element, which it fills by rule, and style attributes."""
    runs = " ".join(map(_hash, scripts))
    looks = " ".join(map(_hash, (style, "")))
    return (
        f"default-src 'none'; script-src {runs}; style-src 'unsafe-inline'; "
        f"style-src-elem {looks}; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def escape(text: str) -> str:
    """Text from a run's files as HTML; line breaks stay, other control characters are shown."""
    return escape_html("\n".join(map(one_line, text.split("\n"))))


def plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError(
            "the HTML report needs plotly, which is not installed: pip install plotly"
        ) from None
    # Browsers read every line end as one; the policy's hash is of what they read.
    script = str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    return script.replace("</script", "<\\/script")


def _text(name: str) -> str:
    return files("idiolect.report").joinpath(name).read_text(encoding="utf-8")


def _about(found: Sequence[Run]) -> str:
    config, summary = found[0].config, found[0].summary
    seeds = sorted({run.seed for run in found})
    parts = [
        f"{_named(config['data'])}, {_named(config['split'])}",
        f"{summary['clients']} clients",
        f"model {config['model'].get('name', 'default')}",
        f"{max(run.summary['rounds'] for run in found)} rounds",
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        time.strftime("%d %B %Y"),
    ]
    if any(run.config[key] != config[key] for run in found for key in ("data", "split", "model")):
        parts = [f"{len(found)} runs with different settings", parts[-1]]
    return " · ".join(parts)


def _named(section: dict[str, Any]) -> str:
    """`dirichlet (alpha 0.1)`: the name and the one option that says most."""
    telling = [key for key in ("alpha", "k", "classes", "shards") if section.get(key) is not None]
    more = ", ".join(f"{key} {section[key]}" for key in telling[:2])
    return f"{section['name']} ({more})" if more else str(section["name"])


def _unfinished(found: Sequence[Run]) -> str:
    late = [run for run in found if not run.finished]
    if not late:
        return ""
    items = [
        escape(f"{run.path.name} (round {run.summary['rounds']} of {run.config['rounds']})")
        for run in late
    ]
    return f'<p class="notice">Not finished yet: {", ".join(items)}.</p>'


def _summary(table: Sequence[Row], sets: Sequence[Group]) -> str:
    best = best_values(table, "accuracy", "best", "pooled", "p10", "worst", "gain")
    head = "".join(
        f'<th scope="col" title="{escape(what)}">{escape(text)}</th>'
        for text, (_, _, what) in zip(headings(table), COLUMNS, strict=True)
    )
    lines = []
    for row, group in zip(table, sets, strict=True):
        line = []
        for (key, _, _), cell in zip(COLUMNS, cells(row), strict=True):
            if key == "method":
                dot = f'<i class="dot" data-colour="{plots.colour(group)[1:]}"></i>'
                line.append(f'<th scope="row">{dot}{escape(cell)}</th>')
                continue
            top = len(table) > 1 and key in best and row[key] == best[key]
            line.append(f"<td{' class=top' if top else ''}>{escape(cell)}</td>")
        lines.append(f"<tr>{''.join(line)}</tr>")
    notes = "; ".join(
        f"{text}: {what}"
        for text, (_, _, what) in zip(headings(table), COLUMNS, strict=True)
        if what
    )
    return (
        '<section><h2>Summary</h2><div class="scroll"><table class="summary"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<p class="note">{escape(notes)}.</p></section>'
    )


def _section(
    figures: list[dict[str, Any]],
    title: str,
    note: str,
    tabs: Sequence[tuple[str, plots.Figure | None]],
    missing: str = "Nothing was measured yet.",
    band: bool = False,
) -> str:
    drawn = [(name, figure) for name, figure in tabs if figure is not None]
    if not drawn:
        return f'<section><h2>{title}</h2><p class="note">{missing}</p></section>'
    chosen, places = [], []
    for n, (name, figure) in enumerate(drawn):
        hidden, pressed = (" hidden", "false") if n else ("", "true")
        places.append(f'<div class="plot" data-figure="{len(figures)}"{hidden}></div>')
        chosen.append(f'<button type="button" aria-pressed="{pressed}">{escape(name)}</button>')
        figures.append(figure)
    controls = f'<div class="tabs">{"".join(chosen)}</div>' if len(drawn) > 1 else ""
    if band:
        few = sum(not trace.get("band") for trace in drawn[0][1]["data"]) <= 3
        checked = " checked" if few else ""
        controls += f'<label><input type="checkbox" class="band"{checked}> p10 band</label>'
    return (
        f'<section><h2>{title}</h2><p class="note">{note}</p>'
        f'<div class="controls">{controls}</div>{"".join(places)}</section>'
    )


def _matrices(figures: list[dict[str, Any]], sets: Sequence[Group]) -> str:
    shown = []
    for group in sets:
        for name, values in list(group.runs[0].matrices.items())[:MATRICES_SHOWN]:
            made = plots.matrix(values)
            if made is None:
                continue
            figure, note = made
            shown.append(
                f"<figure><figcaption><b>{escape(group.label)}</b> {escape(name)} "
                f"<span>{escape(note)}</span></figcaption>"
                f'<div class="plot square" data-figure="{len(figures)}"></div></figure>'
            )
            figures.append(figure)
    if not shown:
        return ""
    return (
        '<section><h2>What the methods logged</h2><p class="note">Aggregation weights, '
        f'similarities and the like, first seed.</p><div class="grid">{"".join(shown)}</div>'
        "</section>"
    )


def _settings(found: Sequence[Run]) -> str:
    blocks = []
    for run in found:
        shown = ("command", "started", "device_name", "platform", "commit", "packages")
        env = {key: run.env[key] for key in shown if run.env.get(key)}
        blocks.append(
            f"<details><summary>{escape(str(run.path))}</summary>"
            f"<pre>{escape(settings.dump(run.config))}</pre>"
            f"<pre>{escape(settings.dump(env))}</pre></details>"
        )
    return f"<section><h2>Settings</h2>{''.join(blocks)}</section>"
