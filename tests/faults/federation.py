"""A server and its sites in one process, as a command: all of them die at once, or share a full
disk."""

import logging
import sys
from pathlib import Path

from idiolect.deploy import experiment
from idiolect.deploy.terms import FederationTerms
from idiolect.errors import UserError
from tests.deploy.local_federation import EXPERIMENT, LocalTransport, clients_on_disk, config

CLIENTS = 2


def serve(words: list[str]) -> int:
    """`METHOD RUN`: plan the run unless it is planned, then begin or continue it."""
    method, run = words[0], Path(words[1])
    logging.raiseExceptions = False  # a log that cannot be written stops nothing
    try:
        if not (run / experiment.FOLDER / experiment.TERMS).exists():
            terms = FederationTerms(EXPERIMENT, CLIENTS, poll=0.001, timeout=20.0, patience=5.0)
            experiment.plan(run, config(method, rounds=2, epochs=1), terms)
        transport = LocalTransport(clients_on_disk(Path("sites"), CLIENTS))
        experiment.run_experiment(run, transport)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
