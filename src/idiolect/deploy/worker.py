"""The client's worker process: it takes messages from the SuperNode and answers them.

Flower itself starts a process per message, which unpacks the app that came from the server, imports
it and loads the data again. This worker lives as long as the client, keeps data and model in memory
and runs only what is installed at the site: nobody who reaches the server can run code here.

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
from pathlib import Path
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
from idiolect.deploy.client import Client
from idiolect.deploy.client_data import open_client
from idiolect.deploy.processes import BAD_SETTINGS
from idiolect.errors import UserError

log = logging.getLogger("idiolect.client")

SECONDS_BETWEEN_POLLS = 0.1  # the SuperNode is on the same machine
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"  # `idiolect client` shows the warnings
ACQUIRE_METHODS = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def serve(client: Client, address: str, secret: bytes | None, parent: int) -> None:
    """Answer messages until the SuperNode is gone."""
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    if secret is not None:
        interceptors.append(
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE_METHODS)
        )
    acquire = _connect(address, interceptors)
    while _alive(parent):
        try:
            found = acquire.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
        except Exception as error:
            log.debug("the SuperNode does not answer: %s", error)
            time.sleep(10 * SECONDS_BETWEEN_POLLS)
            continue
        if found.HasField("task") and found.token:
            _answer_one(client, address, found.token)
        else:
            time.sleep(SECONDS_BETWEEN_POLLS)


def _answer_one(client: Client, address: str, token: str) -> None:
    connection = _connect(
        address,
        [
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(token),
        ],
    )
    beat = HeartbeatSender(make_task_heartbeat_fn_http(connection))
    beat.start()
    context, status, details = None, SubStatus.FAILED, "the client's worker failed"
    try:
        message, context, _, _ = pull_task_input(connection)
        push_message(connection, reply(client, message), context)
        status, details = SubStatus.COMPLETED, ""
    except Exception as error:
        log.exception("a message could not be answered")
        details = type(error).__name__
    finally:
        push_task_output(connection, context, status, details)
        if beat.is_running:
            beat.stop()
        connection.close()


def _connect(address: str, interceptors: list[Any]) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # the SuperNode's port is on the loopback interface
        root_certificates=None,
        interceptors=interceptors,
        retry_invoker=make_simple_http_retry_invoker(),
    )


def _alive(pid: int) -> bool:
    return os.getppid() == pid


def main() -> None:
    """`python -m idiolect.deploy.worker`, as `idiolect client` starts it."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # of tries until its SuperNode is there
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    settings = json.loads(os.environ["IDIOLECT_SITE"])
    secret = Path(settings["secret"]).read_bytes() if settings.get("secret") else None
    parent = os.getppid()
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    try:
        client = open_client(settings)
    except Exception as error:  # whatever is wrong with the data, starting again mends nothing
        if not isinstance(error, UserError):
            log.exception("the client cannot start")
        reason = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        print(f"error: {' '.join(str(reason).split())}", file=sys.stderr, flush=True)
        os._exit(BAD_SETTINGS)
    classes = client.data.classes
    log.info("ready: client %d, samples %s, %d classes", client.id, client.sizes, classes)
    serve(client, settings["runtime"], secret, parent)


def _end_with_parent(parent: int) -> None:
    """End this worker once the `idiolect client` that started it is gone."""
    while _alive(parent):
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
