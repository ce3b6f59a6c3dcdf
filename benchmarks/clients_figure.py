"""Seconds a round against the number of clients: `clients_figure.py RESULT.json… -o scale.svg`.

RESULT.json is what `idiolect bench scale --out` wrote; one line for each, named by its machine.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idiolect.report.paper_plot import COLOURS, MARKERS, drawing


def draw(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Both axes begin where nothing is hidden: seconds at 0, clients at the fewest measured."""
    with drawing(file) as axes:
        for k, result in enumerate(results):
            rows, machine = result["rows"], result["machine"]
            threads = "" if machine["device"] == "cuda" else f", {machine['threads']} threads"
            axes.plot(
                [row["clients"] for row in rows],
                [row["seconds"] for row in rows],
                color=COLOURS[k],
                marker=MARKERS[k],
                markersize=4,
                label=machine["device_name"] + threads,
            )
        sizes = sorted({row["clients"] for result in results for row in result["rows"]})
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
        axes.set_xlabel("clients, each with a private model on disk")
        axes.set_ylabel(f"seconds a round of {results[0]['rows'][-1]['cohort']} clients")
        axes.legend(loc="lower right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    draw([json.loads(file.read_text(encoding="utf-8")) for file in given.results], given.out)


if __name__ == "__main__":
    main()
