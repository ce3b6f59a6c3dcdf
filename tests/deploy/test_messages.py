"""Messages survive the wire; what is no message is refused."""

from __future__ import annotations

import pytest
import torch

from idiolect.deploy import messages
from idiolect.deploy.messages import Malformed, Payload


def test_payload_survives_the_wire() -> None:
    record = {"up": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, "none": {}}
    payload = Payload({"kind": "fit", "x": 1.5}, record)
    back = messages.unpack(*messages.pack(payload), limit=10_000)
    assert back.meta == payload.meta
    assert torch.equal(back.record["up"]["w"], record["up"]["w"])
    assert back.record["up"]["n"].dtype == torch.int64 and back.record["none"] == {}


@pytest.mark.parametrize(
    ("text", "block", "words"),
    [
        ("{}", b"x" * 101, "101 bytes, at most 100"),
        ("[1]", b"", "not a JSON object"),
        ('{"a": NaN}', b"", "not JSON"),
        ("{", b"", "not JSON"),
        ("{}", b"\x80\x04K\x01.", "not a safetensors block"),
        ("{}", b"\xff" * 50, "not a safetensors block"),
        ('"' + "a" * (1 << 20) + '"', b"", "header of"),
    ],
)
def test_what_is_no_payload_is_malformed(text: str, block: bytes, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        messages.unpack(text, block, limit=100)


def test_contradicting_names_are_malformed() -> None:
    from safetensors.torch import save

    block = save({"a": torch.zeros(1), "a/b": torch.zeros(1)})
    with pytest.raises(Malformed, match="contradict"):
        messages.unpack("{}", block, limit=10_000)


def test_max_bytes_allows_what_is_expected() -> None:
    record = {"up": {f"layer.{i}.weight": torch.zeros(7) for i in range(50)}}
    assert len(messages.pack(Payload({}, record))[1]) <= messages.max_bytes(record)
