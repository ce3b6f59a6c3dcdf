"""One self-contained HTML page: tables, figures and settings, readable without a network."""

import gzip
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from idiolect.core.text import one_line
from idiolect.errors import UserError
from idiolect.report import log_plots, page_tables, plots
from idiolect.report.load import Run
from idiolect.report.page_tables import escape
from idiolect.report.run_groups import COLOURS, FADED, Group, groups
from idiolect.report.tables import rows
from idiolect.report.verdict import verdict

TITLED = 4  # methods named in the title
SPLITS_SHOWN = 4  # of runs with different data or split
MATRICES_SHOWN = 4  # per method; the rest is in matrices.safetensors


def page(found: Sequence[Run], title: str | None = None, target: float | None = None) -> str:
    """The whole page."""
    plotly = plotly_script()
    title = title or heading(found)
    body, figures = views(found, target=target)
    style, script = _text("page.css"), _text("page.js")
    return Template(_text("page.html")).substitute(
        title=escape(title),
        policy=_policy(scripts=(plotly, script), style=style),
        style=style,
        body=f"<h1>{escape(title)}</h1>\n{body}",
        plotly=b64encode(packed_plotly()).decode(),
        figures=_inert(figures),
        script=script,
    )


def heading(found: Sequence[Run]) -> str:
    """`Idiolect: local, fedavg and 5 more`: methods, not every setting of a sweep."""
    settings_of = Counter(group.method for group in groups(found))
    names = [
        f"{one_line(name)} ({count} settings)" if count > 1 else one_line(name)
        for name, count in settings_of.items()
    ]
    more = len(names) - TITLED
    return "Idiolect: " + ", ".join(names[:TITLED]) + (f" and {more} more" if more > 0 else "")


def views(
    found: Sequence[Run], squares: bool = True, target: float | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """Everything below the title: HTML, and the figures that its `data-figure` numbers name.
    `squares`: with client × client matrices, which the live page draws by itself."""
    sets = groups(found)
    figures: list[dict[str, Any]] = []
    many = sum(group.colour == FADED for group in sets)
    grey = f" The best {COLOURS} are coloured; point at a grey line for its name." if many else ""
    body = [
        f'<p class="verdict">{escape(verdict(sets, found))}</p>',
        f'<p class="lead">{escape(page_tables.about(found))}</p>',
        page_tables.unfinished(found),
        page_tables.unlike_runs(found),
        page_tables.summary(rows(found, target), sets),
        _section(
            figures,
            f"{_measure(sets)} over rounds, traffic and time",
            "Mean over clients and seeds. Delivered: the model a round delivers. After: the one a "
            "client holds after its own training. Methods that send nothing are level lines."
            + grey,
            [
                ("rounds, delivered", plots.accuracy_over_rounds(sets, "accuracy")),
                ("rounds, after", plots.accuracy_over_rounds(sets, "accuracy_after")),
                ("megabytes", plots.accuracy_over_bytes(sets)),
                ("seconds", plots.accuracy_over_seconds(sets)),
            ],
        ),
        _section(
            figures,
            "Who gains, who is harmed",
            "Each client against the same client trained alone, last round. Below zero (or below "
            "the diagonal) collaboration harmed it. Few test samples make this coarse." + grey,
            [
                ("sorted gains", plots.gain_curves(sets, found)),
                ("client by client", plots.local_scatter(sets, found)),
            ],
            missing="No <code>local</code> run on the same clients is in this report.",
        ),
        page_tables.clients(sets, found),
        _splits(figures, sets),
        _held_out(figures, sets),
        _section(
            figures,
            "Training loss",
            "As local training reports it, mean over the clients of a round and over seeds.",
            [("", plots.training_loss(sets))],
        ),
        _lateness(figures, sets),
        _logged(figures, sets, squares),
        page_tables.what_was_done(sets),
        page_tables.how_to_repeat(found),
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


def plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError(
            "the HTML report needs plotly, which is not installed: pip install plotly"
        ) from None
    # Browsers read every line end as one; the policy's hash is of what they read.
    script = str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    # Styles of maps, which no figure here is: the page's policy refuses styles it does not know.
    script = re.sub(r"'\.maplibregl-map\{(?:[^'\\]|\\.)*'", "''", script)
    return script.replace("</script", "<\\/script")


@lru_cache(maxsize=1)
def packed_plotly() -> bytes:
    """The same, a third of its size."""
    return gzip.compress(plotly_script().encode(), mtime=0)


def _text(name: str) -> str:
    return files("idiolect.report").joinpath(name).read_text(encoding="utf-8")


def _section(
    figures: list[dict[str, Any]],
    title: str,
    note: str,
    tabs: Sequence[tuple[str, plots.Figure | None]],
    missing: str = "Nothing was measured yet.",
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
    traces = [trace for _, figure in drawn for trace in figure["data"]]
    few = len({trace.get("group") for trace in traces}) <= 3
    for kind, words, checked in (
        ("seeds", "± 1 standard deviation over seeds", True),
        ("p10", "down to the bottom decile (p10)", few),
    ):
        if any(trace.get("band") == kind for trace in traces):
            on = " checked" if checked else ""
            box = f'<input type="checkbox" class="band" value="{kind}"{on}>'
            controls += f"<label>{box} {words}</label>"
    return (
        f'<section><h2>{title}</h2><p class="note">{note}</p>'
        f'<div class="controls">{controls}</div>{"".join(places)}</section>'
    )


def _measure(sets: Sequence[Group]) -> str:
    """What clients are judged by, as the first word of a heading."""
    names = list(dict.fromkeys(group.metric.name for group in sets))
    return "Accuracy" if names == ["accuracy"] else " / ".join(names)


def _held_out(figures: list[dict[str, Any]], sets: Sequence[Group]) -> str:
    unseen, validation = plots.unseen_over_rounds(sets), plots.validation_over_rounds(sets)
    if unseen is None and validation is None:
        return ""
    return _section(
        figures,
        "Unseen clients and validation",
        "Mean over clients and seeds of the delivered model. Unseen clients took no part in "
        "training; <code>best</code> is the round that is best on validation data.",
        [("unseen clients", unseen), ("validation", validation)],
    )


def _splits(figures: list[dict[str, Any]], sets: Sequence[Group]) -> str:
    """Which classes the clients hold, once for every split; of several seeds the first."""
    shown: dict[str, str] = {}
    for group in sets:
        run = group.runs[0]
        which = json.dumps([run.config["data"], run.config["split"]], sort_keys=True)
        made = log_plots.split(run) if which not in shown and len(shown) < SPLITS_SHOWN else None
        if made is None:
            continue
        name = f"{page_tables.named(run.config['data'])}, {page_tables.named(run.config['split'])}"
        note = f"seed {run.seed}: {made[1]}"
        shown[which] = _picture(figures, made[0], name, "", note)
    told = "Training samples of each client and class: the darker, the more."
    return _grid("The split", told, list(shown.values()))


def _lateness(figures: list[dict[str, Any]], sets: Sequence[Group]) -> str:
    """Rounds late, client by round, for the first seed of every method that had stragglers."""
    shown = []
    for group in (one for one in sets if one.colour != FADED):
        figure = log_plots.staleness(group.runs[0])
        if figure is not None:
            shown.append(_picture(figures, figure, group.label, "rounds late", "blank: not there"))
    return _grid("Who answered late", "How many rounds old a client's work was on arrival.", shown)


def _logged(figures: list[dict[str, Any]], sets: Sequence[Group], squares: bool) -> str:
    shown = []
    for group in (one for one in sets if one.colour != FADED):
        for name, values in list(group.runs[0].matrices.items())[:MATRICES_SHOWN]:
            made = log_plots.matrix(values, group.runs[0])
            if made is None or ("frames" in made[0] and not squares):
                continue
            shown.append(_picture(figures, made[0], group.label, name, made[1]))
    note = "Aggregation weights, similarities and the like, first seed; absent clients are blank."
    return _grid("What the methods logged", note, shown)


def _picture(
    figures: list[dict[str, Any]], figure: plots.Figure, of: str, name: str, note: str
) -> str:
    """One figure of a grid: of which method or split, what it is. An empty one is its note."""
    controls, place = "", ""
    if len(rounds := figure.get("rounds", ())) > 1:
        controls = (
            f'<label>round <output>{rounds[-1]}</output> <input type="range" class="round" min="0" '
            f'max="{len(rounds) - 1}" value="{len(rounds) - 1}"></label>'
        )
    if "order" in figure:
        controls += '<label><input type="checkbox" class="order"> similar clients together</label>'
    if figure:
        place = f'<div class="plot square" data-figure="{len(figures)}"></div>'
        figures.append(figure)
    return (
        f"<figure><figcaption><b>{escape(of)}</b> {escape(name)} "
        f'<span>{escape(note)}</span></figcaption><div class="controls">{controls}</div>'
        f"{place}</figure>"
    )


def _grid(title: str, note: str, shown: Sequence[str]) -> str:
    if not shown:
        return ""
    return (
        f'<section><h2>{title}</h2><p class="note">{note}</p>'
        f'<div class="grid">{"".join(shown)}</div></section>'
    )
