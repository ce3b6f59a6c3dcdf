"""A federation in one process: payloads go straight to `Client`s, through the same bytes."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from idiolect.deploy import messages
from idiolect.deploy.client import Client
from idiolect.deploy.messages import Payload
from idiolect.deploy.transport import Reply


class LocalTransport:
    """Delivers at once, or as a test wants it: `hold` keeps an answer back, `change` spoils it.
    `keep_blocks`: the bytes of what goes through are kept."""

    def __init__(self, sites: Sequence[Client], keep_blocks: bool = False):
        self.sites = {1000 + site.id: site for site in sites}
        self.keep_blocks = keep_blocks
        self.answers: dict[str, Reply] = {}
        self.hold: Callable[[Payload], bool] = lambda answer: False
        self.change: Callable[[Payload], Payload] = lambda answer: answer
        self.sent: list[tuple[int, Payload]] = []
        self.blocks: list[tuple[str, bytes]] = []  # kind and tensors of all that went through
        self.online = set(self.sites)

    def nodes(self) -> list[int]:
        return sorted(self.online)

    def allow(self, answer: int) -> None:
        """Everything is in one process: `collect` has the limits."""

    def send(self, outgoing: Sequence[tuple[int, Payload]], ttl: float) -> list[str | None]:
        ids: list[str | None] = []
        for node, payload in outgoing:
            self.sent.append((node, payload))
            message = f"m{len(self.sent)}"
            ids.append(message)
            packed = messages.pack(payload)
            request = messages.unpack(*packed, limit=1 << 30)
            answer = self.change(self.sites[node].answer(request))
            if self.keep_blocks:
                self.blocks += [(f"{request.kind} down", packed[1])]
                self.blocks += [(f"{request.kind} up", messages.pack(answer)[1])]
            self.answers[message] = Reply(message, node, answer)
        return ids

    def collect(self, ids: Iterable[str], limits: Mapping[str, int]) -> list[Reply]:
        found = []
        for message in ids:
            reply = self.answers.get(message)
            if reply is None or (reply.payload is not None and self.hold(reply.payload)):
                continue
            found.append(self.answers.pop(message))
            if reply.payload is not None:
                text, block = messages.pack(reply.payload)
                try:
                    payload = messages.unpack(text, block, limits[message])
                except messages.Malformed as error:
                    found[-1] = Reply(message, reply.node, None, str(error), malformed=True)
                else:
                    found[-1] = Reply(message, reply.node, payload)
        return found
