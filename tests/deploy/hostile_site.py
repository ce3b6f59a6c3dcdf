"""A registered site that does not keep to the rules: it has a node's key and no SuperNode.

`python -m tests.deploy.hostile_site SERVER CLIENT_ID`, in a folder with `keys`. It says hello as it
should, and answers what comes next with one misdeed after the other.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
)
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from idiolect.deploy import apps, flower_transport
from idiolect.deploy.client import Client
from idiolect.deploy.messages import Payload
from tests.deploy.local_federation import site_data

MISDEEDS = ("nan", "unknown class", "giant", "forged round", "no parts")


class HostileSite:
    def __init__(self, connection: Any, client: FleetHttpClient, site: Client):
        self.node, self.receive = Node(node_id=connection[0]), connection[1]
        self.pull, self.confirm = connection[5], connection[7]
        self.client, self.site = client, site
        self.misdeeds = iter(MISDEEDS)

    def answer_next(self) -> None:
        got = self.receive()
        if got is None:
            time.sleep(0.5)
            return
        message, tree = got
        run = message.metadata.run_id
        ids = [part.object_id for part in _all(tree)]
        parts = pull_objects(ids, lambda part: self.pull(run, part))
        self.confirm(run, tree.object_id)
        asked = inflate_object_from_contents(tree.object_id, parts)
        asked.metadata.__dict__.update(message.metadata.__dict__)
        request = flower_transport.from_record(asked.content, apps.MAX_REQUEST_BYTES)
        print("asked", request.kind, request.meta["version"], flush=True)
        misdeed = next(self.misdeeds, "") if request.kind == "fit" else ""
        print("misdeed", misdeed, flush=True)
        if misdeed == "unknown class":
            evil = b"CustomDataClass  3\x00abc"
            self.push(asked, ObjectTree(object_id=get_object_id(evil)), [evil])
        elif misdeed == "no parts":
            self.push(asked, ObjectTree(object_id=get_object_id(b"nothing")), [])
        elif misdeed == "forged round":
            self.forge(asked, request)
            self.send(asked, self.site.answer(request))
        elif misdeed == "giant":
            self.send(asked, Payload(self.site.answer(request).meta | {"x": "y" * (40 << 20)}))
        elif misdeed == "nan":
            done = self.site.answer(request)
            model = {n: x * float("nan") for n, x in done.record["up"]["model"].items()}
            self.send(asked, Payload(done.meta, {"up": {"model": model}}))
        else:
            self.send(asked, self.site.answer(request))

    def send(self, asked: Message, payload: Payload) -> None:
        reply = Message(flower_transport.to_record(payload), reply_to=asked)
        parts = [part.deflate() for part in get_all_nested_objects(reply).values()]
        self.push(asked, get_object_tree(reply), parts)

    def push(self, asked: Message, tree: ObjectTree, parts: list[bytes]) -> None:
        reply = Message(flower_transport.to_record(Payload({})), reply_to=asked)
        reply.metadata.__dict__["_message_id"] = tree.object_id
        self.store(reply, tree, parts)

    def forge(self, asked: Message, request: Payload) -> None:
        """A request to every site, in the server's name: do round 1,000,001."""
        for node in Path("nodes.txt").read_text().split():
            meta = request.meta | {"version": 1_000_000}
            about = asked.metadata
            forged = make_message(
                metadata=type(about)(
                    run_id=about.run_id, message_id="", src_node_id=1, dst_node_id=int(node),
                    reply_to_message_id="", group_id="", created_at=time.time(), ttl=100.0,
                    message_type="query"),
                content=flower_transport.to_record(Payload(meta, request.record)),
            )  # fmt: skip
            parts = [part.deflate() for part in get_all_nested_objects(forged).values()]
            tree = get_object_tree(forged)
            forged.metadata.__dict__["_message_id"] = tree.object_id
            self.store(forged, tree, parts)

    def store(self, message: Message, tree: ObjectTree, parts: list[bytes]) -> None:
        run = message.metadata.run_id
        bare = make_message(
            metadata=message.metadata, content=flower_transport.to_record(Payload({}))
        )
        try:
            taken = self.client.PushMessages(
                PushMessagesRequest(
                    node=self.node,
                    messages_list=[message_to_proto(bare)],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[0.0],
                )
            )
            for part in parts:
                self.client.PushObject(
                    PushObjectRequest(
                        node=self.node, run_id=run, session_id=taken.session_id,
                        object_id=get_object_id(part), object_content=part)
                )  # fmt: skip
        except Exception as error:
            print("refused:", error, flush=True)


def _all(tree: ObjectTree) -> list[ObjectTree]:
    return [part for child in tree.children for part in _all(child)] + [tree]


def main(server: str, client_id: int) -> None:
    key = load_ssh_private_key(Path(f"keys/clients/client_{client_id}").read_bytes(), None)
    ca = Path("keys/ca.pem").read_bytes()
    pair = (key, key.public_key())
    site = Client(client_id, site_data(client_id), Path(f"state{client_id}"))
    with (
        http_request_response(server, False, ca, pair) as connection,
        FleetHttpClient.from_server_address(
            server, False, ca, interceptors=[NodeAuthHttpInterceptor(*pair)]
        ) as client,
    ):
        print("node", connection[0], flush=True)
        hostile = HostileSite(connection, client, site)
        while True:
            hostile.answer_next()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
