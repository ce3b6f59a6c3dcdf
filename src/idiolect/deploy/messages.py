"""Messages: a small JSON dict and a record, the record as one safetensors block.

safetensors holds names, dtypes, shapes and raw bytes and nothing that could be executed. One block
instead of one array per tensor: Flower fetches every array with a request of its own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from idiolect.core import tree
from idiolect.core.tree import Record
from idiolect.simulation import server_state

MAX_META_CHARACTERS = 1 << 20  # of JSON; configs and metrics are a few thousand


class Malformed(ValueError):
    """Bytes that are not a message."""


@dataclass(frozen=True)
class Payload:
    """The content of one request or answer: JSON `meta` and tensors."""

    meta: dict[str, Any]
    record: Record = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.meta.get("kind", ""))


def pack(payload: Payload) -> tuple[str, bytes]:
    """JSON text and safetensors block."""
    from safetensors.torch import save

    leaves = server_state.on_host(payload.record)
    return json.dumps(payload.meta, allow_nan=False), save(leaves) if leaves else b""


def unpack(text: str, block: bytes, limit: int) -> Payload:
    """Inverse of `pack`; refuses what is too large before it looks inside."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if len(text) > MAX_META_CHARACTERS:
        raise Malformed(f"header of {len(text)} characters, at most {MAX_META_CHARACTERS} allowed")
    if len(block) > limit:
        raise Malformed(f"{len(block)} bytes, at most {limit} expected")
    try:
        meta = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"header is not JSON ({error})") from None
    if not isinstance(meta, dict):
        raise Malformed("header is not a JSON object")
    try:
        leaves = load(block) if block else {}
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise Malformed(f"not a safetensors block ({error})") from None
    try:
        return Payload(meta, tree.nest(leaves))
    except ValueError as error:  # `a` and `a/b` in one block
        raise Malformed(f"names contradict one another ({error})") from None


def printable(text: str) -> str:
    """Text from outside as one line without control characters, which could drive a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def max_bytes(record: Record) -> int:
    """Most bytes such a record may take on the wire: its tensors, and room for the names."""
    leaves = tree.leaves(record)
    return sum(x.numel() * x.element_size() + 4 * len(n) + 512 for n, x in leaves.items()) + 4096


def ordered_like(record: Record, like: Mapping[str, Any]) -> Record:
    """The same leaves in the order of `like`: safetensors keeps no order, and sums over leaves
    must not depend on it."""
    return {
        name: ordered_like(record[name], part) if isinstance(part, Mapping) else record[name]
        for name, part in like.items()
    }


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
