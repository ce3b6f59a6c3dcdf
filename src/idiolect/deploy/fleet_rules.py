"""What a site may send to Flower's SuperLink: answers of its own, and no more bytes than asked for.

Flower lets every enrolled node store messages for other nodes, in the server's name, and take all
the space it wants. The proxy asks these rules about every request before Flower sees it. The
messages are those of the pinned version of Flower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

PUSH_MESSAGES, PUSH_OBJECT = "/v1/fleet/push-messages", "/v1/fleet/push-object"
CHECKED = {PUSH_MESSAGES: PushMessagesRequest, PUSH_OBJECT: PushObjectRequest}
MAX_REQUEST_BYTES = 64 << 20  # Flower cuts arrays into smaller pieces
MAX_SMALL_REQUEST_BYTES = 256 << 10  # of every request that carries no part of an answer
MAX_PARTS = 4096
ROOM = 4 << 20  # an answer's header, and what Flower adds to it
SUPERLINK = 1  # Flower's node id of the server


@dataclass(frozen=True)
class Refusal:
    """Why a request is not passed on, who says that it sends it, and what it answers, if known."""

    reason: str
    node: int = 0
    answers: str = ""


class FleetRules:
    """`allowed` tells how many bytes an answer may have now."""

    def __init__(self, allowed: Callable[[], int]):
        self._allowed = allowed
        self._answering: dict[int, str] = {}  # node -> the message whose answer it is sending
        self._left: dict[int, int] = {}  # node -> bytes it may still send for that answer

    def limit(self, path: str) -> int:
        """Bytes a request to this path may have."""
        if path == PUSH_OBJECT:
            return min(self._allowed() + ROOM, MAX_REQUEST_BYTES)
        return MAX_SMALL_REQUEST_BYTES

    def sender(self, path: str, body: bytes) -> int:
        """The node that says it sends this; 0 where the rules do not look at the content."""
        request = _parsed(path, body)
        return 0 if request is None else int(request.node.node_id)

    def too_large(self, path: str, beginning: bytes) -> Refusal:
        """The refusal of a request that exceeds its limit; its sender is its first field."""
        node = 0
        if path == PUSH_OBJECT and beginning[:1] == b"\x0a" and len(beginning) > 1:
            with contextlib.suppress(DecodeError):
                node = int(Node.FromString(beginning[2 : 2 + beginning[1]]).node_id)
        return self._too_large(node)

    def _too_large(self, node: int) -> Refusal:
        allowed = self._allowed() + ROOM
        return Refusal(
            f"an answer of more than {allowed} bytes", node, self._answering.get(node, "")
        )

    def refusal(self, path: str, body: bytes) -> Refusal | None:
        """Why this must not be passed on, or None."""
        request = _parsed(path, body)
        if request is None:
            return Refusal("not a request of Flower's") if path in CHECKED else None
        if path == PUSH_MESSAGES:
            return _wrong_answer(request)
        node = int(request.node.node_id)
        too_large = len(request.object_content) > self._left.get(node, 0)
        return self._too_large(node) if too_large else None

    def passed(self, path: str, body: bytes) -> None:
        """The SuperLink knows the sender and has taken this."""
        request = _parsed(path, body)
        if request is None:
            return
        node = int(request.node.node_id)
        if path == PUSH_MESSAGES:
            self._answering[node] = request.messages_list[0].metadata.reply_to_message_id
            self._left[node] = self._allowed() + ROOM
        else:
            self._left[node] -= len(request.object_content)

    @staticmethod
    def sign_of_life(node: int) -> tuple[str, bytes]:
        """Path and body of a request that the SuperLink answers to that node only."""
        request = SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=30)
        return "/v1/fleet/send-node-heartbeat", request.SerializeToString()


def _parsed(path: str, body: bytes) -> Any:
    """The request, if its path is one whose content is checked."""
    with contextlib.suppress(DecodeError):
        return CHECKED[path].FromString(body) if path in CHECKED else None
    return None


def _wrong_answer(request: PushMessagesRequest) -> Refusal | None:
    node = int(request.node.node_id)
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return Refusal("not one answer", node)
    about = request.messages_list[0].metadata
    if not about.reply_to_message_id or about.dst_node_id != SUPERLINK:
        return Refusal("a message that answers nothing: sites ask nobody", node)
    if about.src_node_id != node:
        return Refusal("an answer in another site's name", node)
    if _parts(request.message_object_trees[0]) > MAX_PARTS:
        return Refusal(f"an answer of more than {MAX_PARTS} parts", node, about.reply_to_message_id)
    return None


def _parts(tree: ObjectTree) -> int:
    return 1 + sum(_parts(child) for child in tree.children)
