"""Takes answers off Flower's SuperLink part by part.

Flower's own `Grid.pull_messages` waits up to two hours for the parts of one answer, reads them all
whatever their size, and ends with an exception, and with the other answers of that call, when one
is not what Flower expects. Here an answer is taken as far as it has come, up to its limit, and what
is wrong with it is said of its sender only. The calls are those of the pinned version of Flower.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

SECONDS_WITHOUT_A_PART = 60.0  # until an answer whose parts do not come is given up
MAX_PARTS = 4096
SUPERLINK = 1  # Flower's node id of the server


class Unusable(ValueError):
    """An answer that is not a message, is too large or does not come; `stalled`: it took long."""

    def __init__(self, reason: str, stalled: bool = False):
        super().__init__(reason)
        self.stalled = stalled


@dataclass
class _Arriving:
    """An answer whose parts are being taken."""

    message_id: str
    node: int  # its sender, as the SuperLink knows it
    missing: list[str]
    root: str
    parts: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    moved: float = field(default_factory=time.monotonic)


class Incoming:
    """The answers of one run that have begun to arrive, by the request they answer."""

    def __init__(self, grid: Grid):
        self._grid, self._node = grid, Node(node_id=SUPERLINK)
        self._arriving: dict[str, _Arriving] = {}

    def take(
        self, asked: Sequence[str], limits: Mapping[str, int]
    ) -> Iterator[tuple[str, int, Message | Unusable]]:
        """Request, sender and message of every answer that is whole now, or is none."""
        self._claim([m for m in asked if m not in self._arriving])
        for request, answer in list(self._arriving.items()):
            found: Message | Unusable | None
            if request not in limits:  # nobody waits for it any more
                del self._arriving[request]
                self._confirm(answer.root)
                continue
            try:
                found = self._advance(answer, limits[request])
            except Unusable as error:
                found = error
            if found is not None:
                del self._arriving[request]
                self._confirm(answer.root)
                yield request, answer.node, found

    def _claim(self, asked: list[str]) -> None:
        """Begin with the answers that are there."""
        if not asked:
            return
        answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=asked))
        for message, parts in zip(answer.messages_list, answer.message_object_trees, strict=True):
            about = message.metadata
            ids = list(dict.fromkeys(p.object_id for p in iterate_object_tree(parts)))
            self._arriving[about.reply_to_message_id] = _Arriving(
                about.reply_to_message_id, about.src_node_id, ids, about.message_id
            )

    def _advance(self, answer: _Arriving, limit: int) -> Message | None:
        """Take the parts that are there; returns the message once it has them all."""
        if len(answer.missing) + len(answer.parts) > MAX_PARTS:
            raise Unusable(f"more than {MAX_PARTS} parts")
        for part in list(answer.missing):
            got = self._client.PullObject(
                PullObjectRequest(node=self._node, run_id=self._run, object_id=part)
            )
            if not got.object_found:
                raise Unusable("a part of it did not come", stalled=True)
            if not got.object_available:
                break
            answer.missing.remove(part)
            answer.parts[part] = got.object_content
            answer.size += len(got.object_content)
            answer.moved = time.monotonic()
            if answer.size > limit:
                raise Unusable(f"more than {limit} bytes")
        if answer.missing:
            if time.monotonic() - answer.moved > SECONDS_WITHOUT_A_PART:
                waited = f"{SECONDS_WITHOUT_A_PART:.0f} s"
                raise Unusable(f"a part of it did not come within {waited}", stalled=True)
            return None
        return _assembled(answer)

    def _confirm(self, root: str) -> None:
        """Have the SuperLink forget the answer."""
        with contextlib.suppress(Exception):
            self._client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self._node, run_id=self._run, message_object_id=root
                )
            )

    @property
    def _client(self) -> Any:
        return self._grid._runtime_client

    @property
    def _run(self) -> int:
        return int(self._grid.run.run_id)


def _assembled(answer: _Arriving) -> Message:
    try:
        message = inflate_object_from_contents(answer.root, answer.parts)
    except Exception as error:  # the parts come from outside and may be anything
        raise Unusable(f"it is no message ({type(error).__name__}: {str(error)[:80]})") from None
    if not isinstance(message, Message):
        raise Unusable(f"it is a {type(message).__name__}, not a message")
    return message
