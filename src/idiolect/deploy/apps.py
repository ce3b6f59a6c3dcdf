"""Flower's ServerApp and ClientApp; what they do is in `experiment` and `client`."""

from __future__ import annotations

import json
import logging
import os
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from idiolect.deploy import flower_transport, processes
from idiolect.deploy.client import Client
from idiolect.deploy.client_data import open_client
from idiolect.deploy.experiment import proxy_folder, run_experiment

MAX_REQUEST_BYTES = 1 << 34  # what a client accepts from its server

server = ServerApp()
client = ClientApp()


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Run one experiment into the directory that the Flower run's config names."""
    processes.end_with(int(os.environ["IDIOLECT_SERVER"]))
    run = Path(str(context.run_config["run"]))
    run_experiment(run, flower_transport.FlowerTransport(grid, proxy_folder(run)))


@client.query()  # type: ignore[untyped-decorator]
def answer(message: Message, context: Context) -> Message:
    """Answer one request, in a process that Flower started for it."""
    return reply(_client(os.environ["IDIOLECT_SITE"]), message)


def reply(site: Client, message: Message) -> Message:
    request = flower_transport.from_record(message.content, MAX_REQUEST_BYTES)
    return Message(flower_transport.to_record(site.answer(request)), reply_to=message)


@lru_cache(maxsize=1)
def _client(settings: str) -> Client:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    return open_client(json.loads(settings))
