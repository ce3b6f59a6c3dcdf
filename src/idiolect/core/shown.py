"""How results show themselves: a line for `repr`, a table for notebooks, a frame for pandas."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from idiolect.errors import UserError

NOTHING = "–"


def html_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A plain table, which a notebook draws in its own style."""
    above = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines
    )
    return f"<table><thead><tr>{above}</tr></thead><tbody>{body}</tbody></table>"


def html_lines(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def score(summary: Mapping[str, Any], share: bool, which: str = "mean") -> str:
    """A number of the last round: in percent where it is a share."""
    value = summary["accuracy"]["last"][which]
    if value is None:
        return NOTHING
    return f"{100 * value:.1f} %" if share else f"{value:.4g}"


def result_table(summary: Mapping[str, Any], share: bool, rounds: int) -> str:
    """A run in one row, for notebooks."""
    named = str(summary.get("metric", {}).get("name", "accuracy"))
    head = ["method", "rounds", named, "p10", "worst", "MB up", "MB down"]
    scores = [score(summary, share, which) for which in ("mean", "p10", "worst")]
    sent = [f"{summary[key] / 1e6:.1f}" for key in ("bytes_up", "bytes_down")]
    return html_table(head, [[str(summary["method"]), str(rounds), *scores, *sent]])


def frame(rows: Any) -> Any:
    """Rows, or columns by name, as a pandas DataFrame."""
    try:
        import pandas
    except ImportError:
        raise UserError("a frame needs pandas; pip install pandas") from None
    return pandas.DataFrame(rows)
