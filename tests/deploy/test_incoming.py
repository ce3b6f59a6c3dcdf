"""Answers that are not what Flower expects: each costs its sender, and nobody waits for it."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'idiolect[deploy]'")

from types import SimpleNamespace
from typing import Any

from flwr.app import Message, Metadata
from flwr.app.message import make_message
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import validate_object_content

from idiolect.deploy import flower_transport, incoming
from idiolect.deploy.messages import Payload

NODE = 77


class SuperLink:
    """What the SuperLink holds, as its runtime interface shows it: answers and their parts."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[Any, ObjectTree]] = {}
        self.objects: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.run = SimpleNamespace(run_id=5)
        self._runtime_client = self

    def add(self, request: str, tree: ObjectTree, objects: dict[str, bytes]) -> None:
        about = SimpleNamespace(
            reply_to_message_id=request, src_node_id=NODE, message_id=tree.object_id
        )
        self.answers[request] = (SimpleNamespace(metadata=about), tree)
        self.objects |= objects

    def PullMessages(self, request: Any) -> Any:
        here = [self.answers.pop(m) for m in request.message_ids if m in self.answers]
        return SimpleNamespace(
            messages_list=[m for m, _ in here], message_object_trees=[t for _, t in here]
        )

    def PullObject(self, request: Any) -> PullObjectResponse:
        content = self.objects.get(request.object_id)
        found = content is not None
        return PullObjectResponse(
            object_found=found, object_available=bool(content), object_content=content or b""
        )

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)


def honest(payload: Payload) -> tuple[ObjectTree, dict[str, bytes]]:
    """The parts of an answer as a site sends it."""
    about = Metadata(
        run_id=5,
        message_id="",
        src_node_id=NODE,
        dst_node_id=1,
        reply_to_message_id="m",
        group_id="",
        created_at=1e9,
        ttl=60.0,
        message_type="query",
    )
    message = make_message(metadata=about, content=flower_transport.to_record(payload))
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    return get_object_tree(message), parts


def taken(link: SuperLink, *asked: str, limit: int = 1 << 20) -> dict[str, Any]:
    begun = incoming.Incoming(link)  # type: ignore[arg-type]
    return {m: found for m, _, found in begun.take(asked, dict.fromkeys(asked, limit))}


def test_answer_of_an_unknown_class_spoils_no_other() -> None:
    """Flower lets this class pass, and then knows none of that name."""
    link = SuperLink()
    evil = b"CustomDataClass  3\x00abc"
    validate_object_content(evil)
    link.add("evil", ObjectTree(object_id=get_object_id(evil)), {get_object_id(evil): evil})
    link.add("good", *honest(Payload({"kind": "fit"})))
    found = taken(link, "evil", "good")
    assert isinstance(found["evil"], incoming.Unusable)
    assert "CustomDataClass" in str(found["evil"])
    assert isinstance(found["good"], Message)
    assert len(link.confirmed) == 2  # both are forgotten


def test_answer_without_its_parts_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    link = SuperLink()
    tree, parts = honest(Payload({"kind": "fit"}))
    link.add("late", tree, dict.fromkeys(parts, b""))
    link.add("good", *honest(Payload({"kind": "evaluate"})))
    begun = incoming.Incoming(link)  # type: ignore[arg-type]
    limits = {"late": 1 << 20, "good": 1 << 20}
    assert [m for m, _, _ in begun.take(["late", "good"], limits)] == ["good"]
    assert list(begun.take(["late"], limits)) == []
    monkeypatch.setattr(incoming, "SECONDS_WITHOUT_A_PART", 0.0)
    ((_, node, given_up),) = begun.take(["late"], limits)
    assert isinstance(given_up, incoming.Unusable) and given_up.stalled and node == NODE


def test_answer_whose_parts_come_one_by_one_is_taken() -> None:
    link = SuperLink()
    tree, parts = honest(Payload({"kind": "fit"}))
    link.add("slow", tree, dict.fromkeys(parts, b""))
    begun = incoming.Incoming(link)  # type: ignore[arg-type]
    assert list(begun.take(["slow"], {"slow": 1 << 20})) == []
    link.objects |= parts
    ((_, _, message),) = begun.take(["slow"], {"slow": 1 << 20})
    assert isinstance(message, Message)


def test_answer_is_read_up_to_its_limit() -> None:
    link = SuperLink()
    link.add("giant", *honest(Payload({"kind": "fit", "more": "x" * 200_000})))
    read = []
    pull = link.PullObject
    link.PullObject = lambda r: (read.append(1), pull(r))[1]  # type: ignore[method-assign]
    found = taken(link, "giant", limit=1000)
    assert str(found["giant"]) == "more than 1000 bytes" and len(read) == 1


def test_answer_that_is_no_message_or_lacks_parts() -> None:
    link = SuperLink()
    tree, parts = honest(Payload({"kind": "fit"}))
    record = tree.children[0]
    link.add("record", record, parts)
    link.add("cut", ObjectTree(object_id=tree.object_id), parts)
    found = taken(link, "record", "cut")
    assert str(found["record"]) == "it is a RecordDict, not a message"
    assert "it is no message (KeyError" in str(found["cut"])
