"""Frames whose tensors stay on the GPU, on a fake one (`tests/card.py`)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tacit.errors import BadFrame
from tacit.parties.codec import decode, encode, encode_on_device, kind_of
from tacit.parties.device_frame import DeviceFrame
from tacit.parties.ledger import Ledger
from tacit.parties.message import Message
from tacit.runtimes.inprocess import InProcess

from .. import card


class SharedOnCard(Message, reveals="nothing: for tests"):
    first: bytes
    values: list[Tensor]
    name: str
    more: Tensor


def message(device: str) -> SharedOnCard:
    values = [
        torch.arange(6).reshape(2, 3),
        torch.tensor([True, False, True]),
        torch.zeros(0, 4),
        torch.tensor(2.5, dtype=torch.float64),
        torch.arange(12, dtype=torch.uint8).reshape(3, 4).t(),  # not contiguous
    ]
    return SharedOnCard(b"abc", [v.to(device) for v in values], "x", torch.arange(5, dtype=torch.int16))


def test_a_frame_on_a_device_has_the_bytes_of_a_frame_on_the_wire():
    wire = encode(message("cpu"))
    with card.pretended():
        frame = encode_on_device(message("cuda"))
        assert isinstance(frame, DeviceFrame)
        assert (len(frame), kind_of(frame)) == (len(wire), "SharedOnCard")
        assert bytes(frame) == wire
        read = decode(frame, SharedOnCard)
        assert [v.is_cuda for v in read.values] == [
            True,
            True,
            False,
            True,
            True,
        ]  # an empty one has no memory
        assert (read.first, read.name, read.more.tolist()) == (b"abc", "x", [0, 1, 2, 3, 4])
        for a, b in zip(read.values, message("cpu").values):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.cpu().tolist() == b.tolist()


def test_without_tensors_of_a_gpu_a_frame_is_bytes():
    assert encode_on_device(message("cpu")) == encode(message("cpu"))


def test_parties_on_one_card_cannot_change_each_others_tensors():
    async def sender(me):
        sent = message("cuda")
        await me.send(["b", "c"], sent)
        sent.values[0].zero_()  # after it was sent

    async def receiver(me):
        read = await me.recv("a", SharedOnCard)
        assert read.values[0].is_cuda
        found = read.values[0].cpu().tolist()
        read.values[0].fill_(-1)  # the other receiver must not see it
        return found

    ledger = Ledger()
    with card.pretended():
        found = InProcess().run_sync({"a": sender, "b": receiver, "c": receiver}, ledger=ledger)
    assert found["b"] == found["c"] == [[0, 1, 2], [3, 4, 5]]
    assert {line.bytes for line in ledger.seen} == {len(encode(message("cpu")))}


def test_a_tensor_of_another_type_than_announced_is_refused():
    with card.pretended():
        frame = encode_on_device(message("cuda"))
        piece = next(p for p in frame._pieces.values() if hasattr(p, "tensor"))
        piece.tensor = piece.tensor.double()
        with pytest.raises(BadFrame, match=r"announced as torch\.int64 and holds torch\.float64"):
            decode(frame, SharedOnCard)
