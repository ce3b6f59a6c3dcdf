"""Letters as Flower messages: one query per request, pushed and pulled one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from idiolect.deploy import messages
from idiolect.deploy.messages import Letter, Malformed
from idiolect.deploy.registry import Arrival

STYPE = "safetensors"
GONE = (3, 5, 8)  # Flower's error codes: no reply in time, node unavailable, its process died


def to_record(letter: Letter) -> RecordDict:
    text, block = messages.pack(letter)
    content = RecordDict({"meta": ConfigRecord({"json": text})})
    if block:
        array = Array("uint8", (len(block),), STYPE, block)
        content["block"] = ArrayRecord(OrderedDict(block=array))
    return content


def from_record(content: RecordDict, limit: int) -> Letter:
    meta, block = content.get("meta"), content.get("block")
    if not isinstance(meta, ConfigRecord) or not isinstance(meta.get("json"), str):
        raise Malformed("no header")
    if block is None:
        return messages.unpack(str(meta["json"]), b"", limit)
    if not isinstance(block, ArrayRecord) or list(block) != ["block"]:
        raise Malformed("not one block")
    array = block["block"]
    if array.stype != STYPE:
        raise Malformed(f"the block is '{array.stype[:40]}', not {STYPE}")
    return messages.unpack(str(meta["json"]), array.data, limit)


class FlowerPost:
    """A `Post` over a Flower grid."""

    def __init__(self, grid: Grid):
        self._grid = grid

    def nodes(self) -> list[int]:
        return [int(node) for node in self._grid.get_node_ids()]

    def send(self, parcels: Sequence[tuple[int, Letter]], ttl: float) -> list[str | None]:
        ids: list[str | None] = []
        for node, letter in parcels:  # one at a time: a push is one request, and models are large
            message = Message(
                to_record(letter),
                dst_node_id=node,
                message_type="query",
                ttl=ttl,
                group_id=str(letter.meta["version"]),
            )
            pushed = list(self._grid.push_messages([message]))
            ids.append(pushed[0] if pushed and pushed[0] else None)
        return ids

    def collect(self, ids: Iterable[str], limits: dict[str, int]) -> list[Arrival]:
        asked = list(ids)
        if not asked:
            return []
        found = []
        for reply in self._grid.pull_messages(asked):
            message, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if reply.has_error():
                code = int(reply.error.code)
                reason = f"Flower error {code}: {str(reply.error.reason)[:200]}"
                found.append(Arrival(message, node, None, reason, code in GONE))
                continue
            try:
                letter = from_record(reply.content, limits.get(message, 0))
            except Malformed as error:
                found.append(Arrival(message, node, None, str(error), malformed=True))
            else:
                found.append(Arrival(message, node, letter))
        return found
