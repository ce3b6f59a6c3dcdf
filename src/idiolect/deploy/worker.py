"""A client process that lives as long as the client: it takes messages from the SuperNode, and runs
the code installed at the site.

Flower's own way starts a process per message, which unpacks the app that came from the server,
imports it and loads the data again. This one holds data and model in memory and ignores the shipped
app, so nobody who reaches the server can run code at a site.

Flower has no public interface for this: the calls below are those of `flwr-clientapp` in the pinned
version. `idiolect client --worker flower` does without this file.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import (
    pull_task_input,
    push_message,
    push_task_output,
)

from idiolect.deploy.apps import reply
from idiolect.deploy.client import Site
from idiolect.deploy.client_data import open_site
from idiolect.errors import UserError

log = logging.getLogger("idiolect.site")

POLL = 0.1  # seconds between questions to the SuperNode on the same machine
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def serve(site: Site, address: str, secret: bytes | None, parent: int) -> None:
    """Answer messages until the SuperNode is gone."""
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    if secret is not None:
        interceptors.append(
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE)
        )
    acquire = _client(address, interceptors)
    while _alive(parent):
        try:
            found = acquire.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
        except Exception as error:
            log.debug("the SuperNode does not answer: %s", error)
            time.sleep(10 * POLL)
            continue
        if found.HasField("task") and found.token:
            _answer_one(site, address, found.token)
        else:
            time.sleep(POLL)


def _answer_one(site: Site, address: str, token: str) -> None:
    client = _client(
        address,
        [
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(token),
        ],
    )
    beat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    beat.start()
    context, status, details = None, SubStatus.FAILED, "the client's worker failed"
    try:
        message, context, _, _ = pull_task_input(client)
        push_message(client, reply(site, message), context)
        status, details = SubStatus.COMPLETED, ""
    except Exception as error:
        log.exception("a message could not be answered")
        details = type(error).__name__
    finally:
        push_task_output(client, context, status, details)
        if beat.is_running:
            beat.stop()
        client.close()


def _client(address: str, interceptors: list[Any]) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # the SuperNode's own port, on the loopback interface
        root_certificates=None,
        interceptors=interceptors,
        retry_invoker=make_simple_http_retry_invoker(),
    )


def _alive(pid: int) -> bool:
    return os.getppid() == pid


def main() -> None:
    """`python -m idiolect.deploy.worker`, as `idiolect client` starts it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    settings = json.loads(os.environ["IDIOLECT_SITE"])
    secret = None
    if settings.get("secret"):
        with open(settings["secret"], "rb") as file:
            secret = file.read()
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        site = open_site(settings)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    sizes = {p: len(getattr(site.data, p)[0]) for p in ("train", "val", "test")}
    log.info("ready: client %d, samples %s, %d classes", site.client, sizes, site.data.classes)
    serve(site, settings["runtime"], secret, parent)


def _end_with(parent: int) -> None:
    """A worker whose client was killed must not go on alone."""
    while _alive(parent):
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
