"""What the server needs from a network: who is online, send, collect.

`flower_transport.py` is the real one; the tests have one that calls clients directly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from idiolect.deploy.messages import Payload


@dataclass(frozen=True)
class Reply:
    """What came back for one message: a payload, or the reason why there is none."""

    message_id: str
    node: int
    payload: Payload | None
    problem: str = ""
    unavailable: bool = False  # the node is gone, not just this answer
    malformed: bool = False  # bytes came, but they are no payload
    stalled: bool = False  # … and it took long to see that: parts of it did not come
    mislaid: bool = False  # the network lost it: the node is here and can be asked again


class Transport(Protocol):
    """Carries payloads between the server and the nodes."""

    def nodes(self) -> list[int]:
        """Nodes that are online."""

    def allow(self, answer: int) -> None:
        """Answers of up to that many bytes are expected from now on."""

    def send(self, messages: Sequence[tuple[int, Payload]], ttl: float) -> list[str | None]:
        """Send each payload to its node; returns message ids, None where sending failed."""

    def collect(self, ids: Iterable[str], limits: Mapping[str, int]) -> list[Reply]:
        """The replies to these messages that are here now. `limits`: bytes allowed by message."""
