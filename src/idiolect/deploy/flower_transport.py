"""Payloads as Flower messages: one query per request, pushed and pulled one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from idiolect.deploy import messages
from idiolect.deploy.incoming import Incoming, Unusable
from idiolect.deploy.messages import Malformed, Payload
from idiolect.deploy.proxy_notes import ProxyNotes
from idiolect.deploy.transport import Reply

SERIALIZATION = "safetensors"
MISLAID = (3, 4)  # Flower's error codes: the request, or its answer, is not there any more
UNAVAILABLE = (5, 8)  # the node is gone, its process died


def to_record(payload: Payload) -> RecordDict:
    text, block = messages.pack(payload)
    content = RecordDict({"meta": ConfigRecord({"json": text})})
    if block:
        array = Array("uint8", (len(block),), SERIALIZATION, block)
        content["block"] = ArrayRecord(OrderedDict(block=array))
    return content


def from_record(content: RecordDict, limit: int) -> Payload:
    meta, block = content.get("meta"), content.get("block")
    if not isinstance(meta, ConfigRecord) or not isinstance(meta.get("json"), str):
        raise Malformed("no header")
    if block is None:
        return messages.unpack(str(meta["json"]), b"", limit)
    if not isinstance(block, ArrayRecord) or list(block) != ["block"]:
        raise Malformed("not one block")
    array = block["block"]
    if array.stype != SERIALIZATION:
        raise Malformed(f"the block is '{array.stype[:40]}', not {SERIALIZATION}")
    return messages.unpack(str(meta["json"]), array.data, limit)


class FlowerTransport:
    """A `Transport` over a Flower grid; `folder` is where the proxy and the experiment meet."""

    def __init__(self, grid: Grid, folder: Path):
        self._grid, self._incoming, self._notes = grid, Incoming(grid), ProxyNotes(folder)

    def allow(self, answer: int) -> None:
        self._notes.allow(answer)

    def nodes(self) -> list[int]:
        return [int(node) for node in self._grid.get_node_ids()]

    def send(self, messages: Sequence[tuple[int, Payload]], ttl: float) -> list[str | None]:
        ids: list[str | None] = []
        for node, payload in messages:  # one at a time: a push is one request, models are large
            message = Message(
                to_record(payload),
                dst_node_id=node,
                message_type="query",
                ttl=ttl,
                group_id=str(payload.meta["version"]),
            )
            pushed = list(self._grid.push_messages([message]))
            ids.append(pushed[0] if pushed and pushed[0] else None)
        return ids

    def collect(self, ids: Iterable[str], limits: Mapping[str, int]) -> list[Reply]:
        asked = list(ids)
        turned_away = self._notes.turned_away()
        found = [Reply(m, node, None, reason, malformed=True) for m, node, reason in turned_away]
        # The limit of an answer is that of its block; Flower adds a little to it, the header more.
        wire = {m: limit + 2 * messages.MAX_META_CHARACTERS for m, limit in limits.items()}
        found += [_reply(*taken, limits) for taken in self._incoming.take(asked, wire)]
        return found


def _reply(
    request: str, node: int, message: Message | Unusable, limits: Mapping[str, int]
) -> Reply:
    if isinstance(message, Unusable):
        return Reply(request, node, None, str(message), malformed=True, stalled=message.stalled)
    try:
        if message.has_error():
            code = int(message.error.code)
            problem = f"Flower error {code}: {str(message.error.reason)[:200]!r}"
            gone, lost = code in UNAVAILABLE, code in MISLAID
            return Reply(request, node, None, problem, unavailable=gone, mislaid=lost)
        return Reply(request, node, from_record(message.content, limits.get(request, 0)))
    except Malformed as error:
        return Reply(request, node, None, str(error), malformed=True)
    except Exception as error:  # a message may hold anything
        return Reply(request, node, None, f"no payload ({type(error).__name__})", malformed=True)
