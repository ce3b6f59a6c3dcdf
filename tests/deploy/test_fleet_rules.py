"""What a site may send through the proxy."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'idiolect[deploy]'")

import asyncio
from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import (
    Message,
    Metadata,
    ObjectTree,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node

from idiolect.deploy.fleet_rules import PUSH_MESSAGES, PUSH_OBJECT, ROOM, FleetRules
from idiolect.deploy.proxy import FleetProxy

SITE, OTHER = 77, 78
STORED = PushObjectResponse(stored=True).SerializeToString()


def answer(**change: Any) -> bytes:
    about = {"src_node_id": SITE, "dst_node_id": 1, "reply_to_message_id": "m1"} | change
    return PushMessagesRequest(
        node=Node(node_id=SITE),
        messages_list=[Message(metadata=Metadata(**about))],
        message_object_trees=[ObjectTree(object_id="a")],
    ).SerializeToString()


def part(size: int, node: int = SITE) -> bytes:
    content = bytes(size)
    return PushObjectRequest(node=Node(node_id=node), object_content=content).SerializeToString()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reply_to_message_id": "", "src_node_id": 1, "dst_node_id": OTHER}, "sites ask nobody"),
        ({"dst_node_id": OTHER}, "sites ask nobody"),
        ({"src_node_id": OTHER}, "another site's name"),
    ],
)
def test_a_site_speaks_for_itself_and_to_the_server_only(
    change: dict[str, Any], words: str
) -> None:
    """Flower would store a request to another site, in the server's name: a forged round."""
    rules = FleetRules(lambda: 1000)
    assert rules.refusal(PUSH_MESSAGES, answer()) is None
    refusal = rules.refusal(PUSH_MESSAGES, answer(**change))
    assert refusal is not None and words in refusal.reason and refusal.node == SITE


def test_what_is_not_flowers_is_refused() -> None:
    rules = FleetRules(lambda: 1000)
    assert rules.refusal(PUSH_MESSAGES, b"\xff\xff\xff") is not None
    many = ObjectTree(children=[ObjectTree(object_id=str(i)) for i in range(5000)])
    request = PushMessagesRequest.FromString(answer())
    request.message_object_trees[0].CopyFrom(many)
    refusal = rules.refusal(PUSH_MESSAGES, request.SerializeToString())
    assert refusal is not None and "parts" in refusal.reason and refusal.answers == "m1"


def test_an_answer_has_as_many_bytes_as_was_asked_for() -> None:
    rules = FleetRules(lambda: 1000)
    assert rules.refusal(PUSH_OBJECT, part(1)) is not None  # it answers nothing yet
    rules.passed(PUSH_MESSAGES, answer(), b"")
    half = part(ROOM // 2 + 500)
    for _ in range(2):
        assert rules.refusal(PUSH_OBJECT, half) is None
        rules.passed(PUSH_OBJECT, half, STORED)
        rules.passed(PUSH_OBJECT, half, b"")  # sent again because the reply was lost
    refusal = rules.refusal(PUSH_OBJECT, part(1))
    assert refusal is not None and refusal.answers == "m1"
    assert rules.limit(PUSH_OBJECT) == 1000 + ROOM
    assert rules.too_large(PUSH_OBJECT, part(3 * ROOM)[:100]).node == SITE
    assert rules.limit("/v1/fleet/pull-messages") < ROOM


class Inner:
    """The SuperLink behind the proxy: it knows one site."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def request(self, method: str, path: str, headers: Any, content: bytes) -> Any:
        self.seen.append(path)
        good = dict(headers).get(b"key") == b"site"
        headers = type("Headers", (), {"raw": []})
        return type("Answer", (), {"status_code": 200 if good else 401, "content": STORED,
                                   "headers": headers})  # fmt: skip


def sent(
    proxy: FleetProxy, path: str, pieces: list[bytes], key: bytes = b"site"
) -> tuple[int, int]:
    """The status the sender gets, and how many pieces of its request were read."""
    told: list[Any] = []
    left = list(pieces)

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(event: Any) -> None:
        told.append(event)

    scope = {"type": "http", "path": path, "method": "POST", "headers": [(b"key", key)]}
    asyncio.run(proxy(scope, receive, send))
    return told[0]["status"], len(pieces) - len(left)


def test_a_giant_is_cut_off_while_it_is_received_and_said() -> None:
    away: list[tuple[str, int, str]] = []
    rules = FleetRules(lambda: 1000)
    proxy = FleetProxy("http://inner", None, rules, lambda *what: away.append(what))
    proxy._client = inner = Inner()
    assert sent(proxy, PUSH_MESSAGES, [answer()]) == (200, 1)
    giant = part(4 * ROOM)
    pieces = [giant[i : i + ROOM] for i in range(0, len(giant), ROOM)]
    assert sent(proxy, PUSH_OBJECT, pieces) == (413, 2)
    assert away == [("m1", SITE, f"an answer of more than {1000 + ROOM} bytes")]
    assert PUSH_OBJECT not in inner.seen
    # A stranger who says it is that site is refused too, but the site's answer stands.
    assert sent(proxy, PUSH_OBJECT, pieces, key=b"stranger") == (413, 2)
    assert len(away) == 1
    assert sent(proxy, PUSH_OBJECT, [part(900)]) == (200, 1)
