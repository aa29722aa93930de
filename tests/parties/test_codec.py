"""What goes out comes back bit for bit, and no bytes whatever do anything to the reader but give a message or
BadFrame.
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.errors import BadFrame, ProtocolError
from tacit.parties import codec
from tacit.parties.codec import MAGIC, decode, encode, encode_parts, kind_of
from tacit.parties.forms import DTYPES, MAX_TENSORS
from tacit.parties.message import Message


class Everything(Message, reveals="all that a message can hold"):
    flag: bool
    count: int
    rate: float
    word: str
    blob: bytes
    nothing: None
    perhaps: float | None
    number: int | float | str
    w: Tensor
    spare: Tensor | None
    state: dict[str, Tensor]
    metrics: dict[str, float | int | str]
    ids: list[int]
    shares: tuple[bytes, ...]
    pair: tuple[str, Tensor]
    nested: list[dict[str, list[float]]]


class Vector(Message, reveals="a vector"):
    w: Tensor


class Count(Message, reveals="a number"):
    n: int


class Numbers(Message, reveals="numbers"):
    items: list[list[int]]


class Stack(Message, reveals="tensors"):
    items: list[Tensor]


def frame(head: object, body: bytes = b"", magic: bytes = MAGIC) -> bytes:
    packed = head if isinstance(head, bytes) else msgpack.packb(head)
    return magic + struct.pack("<I", len(packed)) + packed + bytes(-len(packed) % 8) + body


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype, 0 to 4 dimensions, possibly empty, any bits (NaN payloads included), often not
    contiguous.
    """
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    n = 1
    for d in shape:
        n *= d
    raw = bytearray(draw(st.binary(min_size=n * dtype.itemsize, max_size=n * dtype.itemsize)))
    if dtype is torch.bool:
        raw = bytearray(b & 1 for b in raw)
    t = torch.frombuffer(raw, dtype=dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)
    return draw(
        st.sampled_from(
            [
                t,
                t.movedim(0, -1) if t.dim() else t,
                t[..., ::2] if t.dim() else t,
                t.unsqueeze(0).expand(2, *t.shape),
            ]
        )
    )


ints = st.integers(-(1 << 63), (1 << 64) - 1)
texts = st.text(max_size=8)
everything = st.builds(
    Everything,
    flag=st.booleans(),
    count=ints,
    rate=st.floats(),
    word=texts,
    blob=st.binary(max_size=30),
    nothing=st.none(),
    perhaps=st.none() | st.floats(),
    number=ints | st.floats() | texts,
    w=tensors(),
    spare=st.none() | tensors(),
    state=st.dictionaries(texts, tensors(), max_size=3),
    metrics=st.dictionaries(texts, ints | st.floats() | texts, max_size=3),
    ids=st.lists(ints, max_size=5),
    shares=st.lists(st.binary(max_size=9), max_size=3).map(tuple),
    pair=st.tuples(texts, tensors()),
    nested=st.lists(st.dictionaries(texts, st.lists(st.floats(), max_size=3), max_size=2), max_size=2),
)


@given(everything)
@settings(max_examples=150, deadline=None)
def test_every_message_round_trips_bit_for_bit(message):
    sent = encode(message)
    assert decode(sent) == decode(sent, Everything) == decode(sent, (Vector, Everything)) == message
    assert decode(bytearray(sent), reuse=True) == message
    assert encode(decode(sent)) == sent
    assert kind_of(sent) == "Everything"


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_raise_nothing_but_bad_frame(data, headed):
    with contextlib.suppress(BadFrame):  # anything else that is raised fails the test
        decode(frame(data) if headed else data)


@given(everything, st.data())
@settings(max_examples=120, deadline=None)
def test_a_damaged_frame_raises_nothing_but_bad_frame(message, data):
    sent = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sent) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "double"])):
            case "flip":
                sent[at] = data.draw(st.integers(0, 255))
            case "cut":
                del sent[at : at + data.draw(st.integers(1, 8))]
            case "insert":
                sent[at:at] = data.draw(st.binary(max_size=8))
            case "double":
                sent += sent[at:]
        if not sent:
            break
    try:
        got = decode(sent)
    except BadFrame:
        return
    assert decode(encode(got)) == got  # what is accepted is a message like any other


@given(everything, st.data())
@settings(max_examples=80, deadline=None)
def test_short_heads_are_read_as_long_ones_are(message, data):
    """A short head is read in one call. Both ways accept the same frames and read the same from them."""
    sent = bytearray(encode(message))
    for _ in range(data.draw(st.integers(0, 2))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    found = []
    for limit in (1 << 20, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codec, "_SHORT_HEAD", limit)
            try:
                found.append(decode(sent))
            except BadFrame as error:
                found.append(str(error))
    assert found[0] == found[1]


def test_a_cut_or_lengthened_frame_is_always_refused():
    sent = encode(Vector(torch.arange(5.0)))
    for n in range(len(sent)):
        with pytest.raises(BadFrame):
            decode(sent[:n])
    with pytest.raises(BadFrame, match="followed by 8 unexpected bytes"):
        decode(sent + bytes(8))


w = {"w": ["float32", 2]}
BAD = {
    "another program's": (b"GET / HTTP/1.1\r\n", "are not a tacit frame"),
    "another version's": (
        frame(["Vector", w], bytes(8), magic=b"TCT\x02"),
        "are not a tacit frame",
    ),
    "head too long": (
        MAGIC + struct.pack("<I", 1 << 31) + b"x",
        "head claims 2147483648 bytes, but the frame has 1",
    ),
    "no kind": (frame({"a": 1}), "the frame is not a list"),
    "unknown kind": (frame(["Nobody", {}]), r"'Nobody', an unknown kind\. Import the module"),
    "missing field": (frame(["Vector", {}]), "Vector lacks the field 'w'"),
    "extra field": (frame(["Vector", {**w, "v": 1}], bytes(8)), "Vector has no field 'v'"),
    "double field": (frame(b"\x92\xa5Count\x82\xa1n\x01\xa1n\x02"), "Count has twice the field 'n'"),
    "wrong type": (frame(["Count", {"n": "1"}]), "Count.n must be int, got str"),
    "bool for int": (frame(["Count", {"n": True}]), "Count.n must be int, got bool"),
    "list for int": (frame(["Count", {"n": [1]}]), "Count.n is not one plain value"),
    "extension": (frame(["Count", {"n": msgpack.ExtType(4, b"x")}]), "Count.n is not one plain value"),
    "bad text": (frame(b"\x92\xa5Count\x81\xa1\xff\x01"), "a field's name in Count is not one plain value"),
    "unknown dtype": (
        frame(["Vector", {"w": ["object", 1]}], bytes(8)),
        "dtype 'object' cannot be sent; allowed: bool",
    ),
    "too few bytes": (
        frame(["Vector", {"w": ["float32", 4]}], bytes(8)),
        r"shape \(4,\) takes 16 bytes, but 8 are left",
    ),
    "too many bytes": (frame(["Vector", {"w": ["float32", 2]}], bytes(16)), "followed by 8 unexpected bytes"),
    "negative dimension": (
        frame(["Vector", {"w": ["float32", -2, -1]}], bytes(8)),
        "dimensions must be whole numbers of at least 0",
    ),
    "overflowing shape": (
        frame(["Vector", {"w": ["float32", 0, 1 << 62, 1 << 62]}]),
        "larger than any that can be sent",
    ),
    "17 dimensions": (frame(["Vector", {"w": ["float32"] + [1] * 17}], bytes(8)), "at most 16 dimensions"),
    "a bool of 2": (
        frame(["Vector", {"w": ["bool", 1]}], b"\2" + bytes(7)),
        "a byte that is neither 0 nor 1",
    ),
    "hidden bytes": (frame(["Vector", {"w": ["uint8", 1]}], b"\1secret!"), "not padded with zeros"),
    "nested too deep": (
        frame(b"\x92\xa7Numbers\x81\xa5items" + b"\x91" * 500),
        "Numbers.items is not one plain value",
    ),
    "more after the head": (
        frame(msgpack.packb(["Count", {"n": 1}]) + b"\x01"),
        "Count is followed by 1 unexpected bytes",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_is_refused_with_the_reason(name):
    data, reason = BAD[name]
    with pytest.raises(BadFrame, match=reason):
        decode(data)


def test_an_unexpected_kind_and_a_frame_over_the_limit_are_refused():
    sent = encode(Count(1))
    with pytest.raises(BadFrame, match="the frame is a 'Count', expected Vector or Stack"):
        decode(sent, (Vector, Stack))
    with pytest.raises(BadFrame, match=f"a frame of {len(sent)} bytes, more than the 10 allowed here"):
        decode(sent, max_bytes=10)
    with pytest.raises(
        ProtocolError, match=r"Vector takes .* bytes, more than the 64 a frame may have. Send it in parts"
    ):
        encode(Vector(torch.zeros(100)), max_bytes=64)


def test_claimed_sizes_allocate_nothing():
    """Lists that claim 2³² items, lists in lists that each claim all that is left, tensors that claim a
    terabyte: refused at once.
    """
    filler = b"\x01" * 100_000
    hostile = [
        frame(b"\x92\xa7Numbers\x81\xa5items\xdd\xff\xff\xff\xff" + filler),
        frame(
            b"\x92\xa7Numbers\x81\xa5items\xdd\x00\x01\x80\x00" + (b"\xdd\x00\x01\x80\x00" * 1000) + filler
        ),
        frame(b"\x92\xa7Numbers\x81\xa5items" + b"\xdd\x00\x01\x80\x00" * 1000 + filler),
        frame(b"\xdf\xff\xff\xff\xff" + filler),
        frame(b"\x92\xdb\xff\xff\xff\xff" + filler),
        frame(["Vector", {"w": ["float64", 1 << 37]}], filler),
        frame(b"\x92\xa5Count\x81\xa1n" + b"\xc9\xff\xff\xff\xff\x01" + filler),
    ]
    for data in hostile:
        tracemalloc.start()
        with pytest.raises(BadFrame):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * len(data) + 100_000


def test_a_frame_of_many_empty_tensors_is_refused():
    with pytest.raises(BadFrame, match=f"at most {MAX_TENSORS} tensors"):
        decode(frame(["Stack", {"items": [["bool", 0]] * (MAX_TENSORS + 1)}]))


def test_received_tensors_are_writable_and_belong_to_the_receiver():
    mine = torch.arange(4.0)
    sent = encode(Vector(mine))
    got = decode(sent, Vector)
    got.w.zero_()
    assert mine.tolist() == [0, 1, 2, 3]
    assert decode(sent, Vector).w.tolist() == [0, 1, 2, 3]


def test_a_reused_frame_is_not_copied():
    sent = bytearray(encode(Vector(torch.arange(4.0))))
    got = decode(sent, Vector, reuse=True)
    sent[-16:] = bytes(16)
    assert got.w.tolist() == [0, 0, 0, 0]
    with pytest.raises(ProtocolError, match="pass a bytearray"):
        decode(bytes(sent), Vector, reuse=True)


def test_parts_are_views_of_the_tensors_memory():
    x = torch.zeros(1000)
    parts = encode_parts(Vector(x))
    x += 1
    assert decode(b"".join(parts), Vector).w.tolist() == [1.0] * 1000


def test_gradients_parameters_and_transposed_tensors_can_be_sent():
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    got = decode(encode(Vector(weight.T)), Vector).w
    assert torch.equal(got, weight.detach().T)
    assert not got.requires_grad


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Count(1.5), "Count.n must be int, got float"),
        (Count(True), "Count.n must be int, got bool"),
        (Count(1 << 64), "of more than 64 bits; send large numbers as bytes"),
        (Vector([1.0]), "Vector.w must be Tensor, got list"),
        (
            Vector(torch.zeros(2, dtype=torch.complex64)),
            "got Tensor of torch.complex64.*allowed are dense tensors",
        ),
        (Vector(torch.zeros(2).to_sparse()), "torch.sparse_coo"),
        (Vector(torch.zeros(2, device="meta")), "on meta"),
        (Stack([torch.zeros(1), "x"]), r"Stack.items\[1\] must be Tensor, got str"),
        (Numbers([[1], 2]), r"Numbers.items\[1\] must be list of int, got int"),
    ],
)
def test_an_error_names_the_field_that_cannot_be_sent(message, reason):
    with pytest.raises(ProtocolError, match=reason):
        encode(message)


def test_text_without_utf8_and_wrong_optional_values_are_refused_at_the_sender():
    good = dict(
        flag=True,
        count=1,
        rate=1.0,
        word="",
        blob=b"",
        nothing=None,
        perhaps=None,
        number=1,
        w=torch.zeros(1),
        spare=None,
        state={},
        metrics={},
        ids=[],
        shares=(),
        pair=("a", torch.zeros(1)),
        nested=[],
    )
    for change, reason in [
        ({"word": "\ud800"}, "lone surrogate"),
        ({"perhaps": "x"}, r"must be float \| None, got str"),
        ({"spare": 1}, "must be Tensor"),
        ({"pair": ("a",)}, "must be a tuple of"),
        ({"state": []}, "must be a dict of str"),
        ({"state": {1: torch.zeros(1)}}, "a key of"),
        ({"blob": "x"}, "must be bytes"),
        ({"rate": 10**400}, "too large for a float"),
        ({"ids": 3}, "must be list"),
    ]:
        with pytest.raises(ProtocolError, match=reason):
            encode(Everything(**{**good, **change}))
    assert decode(encode(Everything(**{**good, "rate": 3})), Everything).rate == 3.0


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000])
def test_a_vector_of_bytes_has_the_frame_that_any_message_has(n):
    """It is encoded and read in fewer calls."""
    for vector in (torch.arange(n).to(torch.uint8), torch.arange(2 * n).to(torch.uint8)[::2], torch.ones(n)):
        message = Vector(vector)
        frame = encode(message)
        assert frame == b"".join(encode_parts(message))
        assert decode(frame, Vector) == message
        own = bytearray(frame)
        assert decode(own, (Count, Vector), reuse=True) == message


def test_a_damaged_vector_of_bytes_is_refused_with_the_reason():
    """Its head is remembered, and every frame is checked against it."""
    good = encode(Vector(torch.arange(13).to(torch.uint8)))
    assert len(good) % 8 == 0
    assert decode(good, Vector).w.tolist() == list(range(13))
    for bad, why in (
        (good[:-8], "are left"),
        (good + bytes(8), "followed by 8 unexpected bytes"),
        (good[:-1] + b"\1", "not padded with zeros"),
    ):
        with pytest.raises(BadFrame, match=why):
            decode(bad, Vector)
    with pytest.raises(BadFrame, match="expected Count"):
        decode(good, Count)
    with pytest.raises(ProtocolError, match="more than the 64"):
        encode(Vector(torch.zeros(100, dtype=torch.uint8)), 64)
