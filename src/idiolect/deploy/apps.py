"""ServerApp and ClientApp. What they do is in `hub` and `site`."""

from __future__ import annotations

import json
import logging
import os
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from idiolect.deploy import flower_transport as wiring
from idiolect.deploy.client import Site
from idiolect.deploy.client_data import open_site
from idiolect.deploy.experiment import conduct

REQUEST_LIMIT = 1 << 34  # bytes of one request: what a client takes from its server

server = ServerApp()
client = ClientApp()


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """One experiment into the run directory named in the run's config."""
    run = Path(str(context.run_config["run"]))
    conduct(run, wiring.FlowerPost(grid))


@client.query()  # type: ignore[untyped-decorator]
def answer(message: Message, context: Context) -> Message:
    """One request, in a process that Flower started for it."""
    return reply(_site(os.environ["IDIOLECT_SITE"]), message)


def reply(site: Site, message: Message) -> Message:
    letter = wiring.from_record(message.content, REQUEST_LIMIT)
    return Message(wiring.to_record(site.answer(letter)), reply_to=message)


@lru_cache(maxsize=1)
def _site(settings: str) -> Site:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    return open_site(json.loads(settings))
