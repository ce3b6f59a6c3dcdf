"""Named benchmarks: how long a round takes, what stacking costs, how it grows.

A benchmark is a list of jobs that are timed, ours and, with `peers`, by another library's own
code on the same data in the same run; or a function that makes its rows by itself. Timings are
medians after a first round, in which kernels are chosen and graphs captured; it is given apart.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect.bench import adapter_tax, headline, job, nets, scale, seeds, start, table, tax
from idiolect.bench import round_time as rounds
from idiolect.bench.against_peers import AgainstPeers
from idiolect.bench.job import Job, Row
from idiolect.core.text import command_typed
from idiolect.engine import select
from idiolect.errors import UserError, did_you_mean
from idiolect.runs.environment import machine


@dataclass(frozen=True)
class Benchmark:
    """What it measures, and how: `rows(device, quick, **options)`, or `jobs(quick, device,
    **options)` that are measured one by one."""

    what: str
    rows: Callable[..., Iterable[Row]] | None = None
    jobs: Callable[..., list[Job]] | None = None
    measure: Callable[[Job, str, str], Row] = job.measure
    peers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # names of what else `rows` or `jobs` takes


BENCHMARKS = {
    "pfllib-round": Benchmark(
        "seconds a round, evaluation of all clients included: 20 clients of 596 to 4,768 samples, "
        "CNN, batch 16, 5 epochs",
        jobs=rounds.pfllib_jobs,
        peers=("pfllib", "fedas", "flbench", "blazefl"),
        options=("only",),
    ),
    "pfl-headline": Benchmark(
        "1,500 rounds of FedAvg: CIFAR-10, 1,000 IID users of 50 samples, 50 a round, batch 10, "
        "one epoch, evaluation every 10 rounds",
        jobs=headline.headline_jobs,
        measure=headline.measure,
        peers=("pfl",),
    ),
    "cpu": Benchmark(
        "seconds a round of FedAvg, evaluation included: MNIST, 20 clients, Dir(0.1), batch 128 "
        "and 10, one epoch",
        jobs=rounds.cpu_jobs,
        peers=("pfllib",),
    ),
    "tax": Benchmark("a stacked epoch against centralized big-batch training", tax.tax),
    "nets": Benchmark(
        "a step of many networks: stacked, client by client, and one model on the same samples",
        nets.nets,
        options=("dtype", "only"),
    ),
    "adapters": Benchmark(
        "a step of 20 and 100 clients with adapters of rank 8 on a network of 50 M parameters: "
        "time and memory against one model on the same samples",
        adapter_tax.adapters,
        options=("dtype",),
    ),
    "table": Benchmark(
        "seconds of one column of a paper's table: FedAS's CIFAR-10, beta 0.1, P = 1, 10 methods, "
        "3 seeds",
        table.table,
        options=("dtype", "only", "jobs", "results"),
    ),
    "seeds": Benchmark("a round of three seeds in one stack against one seed", seeds.seeds),
    "scale": Benchmark(
        "seconds a round, memory and disk as the number of clients grows: cohorts of 100, private "
        "models on disk",
        scale.scale,
        options=("clients", "rounds"),
    ),
    "start": Benchmark(
        "seconds from a fresh process to its first round: FedAvg, 20 clients, digits and CIFAR-10",
        start.start,
        options=("dtype",),
    ),
    "server": Benchmark("server algebra against clients and parameters", scale.server),
}


def measured_on(device: str) -> dict[str, Any]:
    """As of a run; the files are published, so the command is told without folders."""
    here = machine(device)
    return here | {"command": command_typed(here["command"])}


def run(
    name: str,
    device: str = "auto",
    quick: bool = False,
    against: Mapping[str, Path] | None = None,
    peer_rounds: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
    **options: Any,
) -> dict[str, Any]:
    """One benchmark: its rows, and the machine they are from.

    `against` names peers and where their code lies; those this benchmark has jobs for are run
    for `peer_rounds` rounds after a first one (not set: the benchmark's own number). A peer that
    does not run is a line in `failed`; our own rows are there all the same. `keep` gets the result
    so far, marked `unfinished`, whenever a row, a job or a peer is done.
    """
    if name not in BENCHMARKS:
        raise did_you_mean(name, BENCHMARKS, "benchmark")
    device, benchmark = select.pick_device(device).type, BENCHMARKS[name]
    for option in options:
        if option not in benchmark.options:
            takes = [n for n, b in BENCHMARKS.items() if option in b.options]
            raise UserError(f"benchmark '{name}' has no --{option}; {', '.join(takes)} has")
    about = {"name": name, "what": benchmark.what, "quick": quick}
    result: dict[str, Any] = about | {"rows": [], "machine": measured_on(device)}

    def note() -> None:
        keep(result | {"unfinished": True})

    if benchmark.jobs is None:
        assert benchmark.rows is not None
        for row in benchmark.rows(device, quick, **options):
            result["rows"].append(row)
            note()
        return result
    with tempfile.TemporaryDirectory(prefix="idiolect-bench-") as folder:
        asked = {peer: path for peer, path in (against or {}).items() if peer in benchmark.peers}
        theirs = AgainstPeers(result, asked, device, peer_rounds, Path(folder), say)
        done: list[tuple[Job, list[Row]]] = []  # ours first: peers take minutes each
        for one in benchmark.jobs(quick, device, **options):
            ours = []
            for engine in one.engines:
                which = {"engine": engine} if len(one.engines) > 1 else {}
                ours.append(one.label | which | benchmark.measure(one, device, engine))
            done.append((one, ours))
            result["rows"] += ours
            note()
        for one, ours in done:
            for whose in one.peers:
                theirs.add(one, ours, whose)
                note()
    return result
