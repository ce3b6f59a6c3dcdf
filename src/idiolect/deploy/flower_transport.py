"""Payloads as Flower messages: one query per request, pushed and pulled one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from idiolect.deploy import messages
from idiolect.deploy.messages import Malformed, Payload
from idiolect.deploy.transport import Reply

SERIALIZATION = "safetensors"
UNAVAILABLE = (3, 5, 8)  # Flower's error codes: no reply in time, node gone, its process died


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
    """A `Transport` over a Flower grid."""

    def __init__(self, grid: Grid):
        self._grid = grid

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
        if not asked:
            return []
        return [_reply(m, limits) for m in self._grid.pull_messages(asked)]


def _reply(message: Message, limits: Mapping[str, int]) -> Reply:
    request, node = message.metadata.reply_to_message_id, message.metadata.src_node_id
    if message.has_error():
        code = int(message.error.code)
        problem = f"Flower error {code}: {str(message.error.reason)[:200]}"
        return Reply(request, node, None, problem, unavailable=code in UNAVAILABLE)
    try:
        return Reply(request, node, from_record(message.content, limits.get(request, 0)))
    except Malformed as error:
        return Reply(request, node, None, str(error), malformed=True)
