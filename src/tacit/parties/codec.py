"""Encode messages to bytes and back. A frame contains no code (never pickle) and is untrusted input.

    frame = "TCT" 0x01 | length of head, uint32 | head | body
    head  = msgpack [kind, {field: value}], padded with zeros to a multiple of 8
    body  = raw little-endian bytes of tensors and byte strings in the order of the head, each padded to a
            multiple of 8

Sizes claimed in the head are checked against the available bytes before anything is allocated. Reading takes
one copy of the body, and the memory of the head's Python values (at worst about 64 bytes for each byte of
empty tables, and at most forms.MAX_ITEMS values). Sending copies a contiguous CPU tensor once, into the
frame; `encode_parts` does not copy it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgpack
import torch

from ..errors import BadFrame, ProtocolError
from .device_frame import DeviceBody, DeviceFrame, DevicePiece
from .forms import ALIGN, Body, Frame, Pairs, Reader, Unexpected, View, is_byte_vector
from .message import KINDS, Message

MAGIC = b"TCT\x01"
MAX_BYTES = 1 << 30  # 268 million float32 parameters; a transport may ask for less
_START = len(MAGIC) + 4
_PAD = [bytes(n) for n in range(ALIGN)]
# msgpack's: a list of two; a text of less than 32 bytes, its length in the lower five bits
_PAIR, _SHORT = 0x92, 0xA0
# a head of so many bytes is read in one call: its values, and what its lists claim, are then below 1 MB
_SHORT_HEAD, _FEW = 1024, 128
_KIND_BYTES = 512  # more than any class name: enough of the head to tell the kind


def encode_parts(
    message: Message, max_bytes: int = MAX_BYTES, body: list[Any] | None = None
) -> list[bytes | memoryview]:
    """Return the frame in pieces; tensors are views of their memory, so write them before they change."""
    body = [] if body is None else body
    fields = {
        name: form.pack(getattr(message, name), where, body)
        for name, (form, where) in message.field_places.items()
    }
    head = _pack([message.kind, fields])
    n = len(head)
    parts: list[bytes | memoryview] = [MAGIC, n.to_bytes(4, "little"), head]
    size = _START + n + -n % ALIGN
    if n % ALIGN:
        parts.append(_PAD[-n % ALIGN])
    for piece in body:
        n = len(piece)
        parts.append(piece)
        if n % ALIGN:
            parts.append(_PAD[-n % ALIGN])
        size += n + -n % ALIGN
    if size > max_bytes:
        raise ProtocolError(
            f"{message.kind} takes {size} bytes, more than the {max_bytes} a frame may have. "
            "Send it in parts or raise max_bytes at all parties."
        )
    return parts


def _pack(value: Any) -> bytes:
    try:
        return _PACKER.pack(value)  # type: ignore[no-any-return]
    except Exception:
        _PACKER.reset()
        raise


_PACKER = msgpack.Packer()  # one for all messages: making it takes longer than a short head


def encode(message: Message, max_bytes: int = MAX_BYTES) -> bytes:
    """Encode a message as one frame."""
    if message.vector is not None:  # most of what is sent: in fewer calls
        value = getattr(message, message.vector)
        if is_byte_vector(value) and 0 < (n := value.numel()) <= max_bytes - _SHORT_HEAD:
            start = _start_of_vector(message.kind, message.vector, n)
            return b"".join((start, value.numpy().data, _PAD[-n % ALIGN]))
    return b"".join(encode_parts(message, max_bytes))


@lru_cache(64)  # of one length
def _start_of_vector(kind: str, name: str, n: int) -> bytes:
    """Return the frame of a message that is one vector of `n` bytes, up to these."""
    head = _pack([kind, {name: ["uint8", n]}])
    return b"".join((MAGIC, len(head).to_bytes(4, "little"), head, _PAD[-len(head) % ALIGN]))


def encode_on_device(message: Message, max_bytes: int = MAX_BYTES) -> bytes | DeviceFrame:
    """Encode a message for a party of this process: tensors of a GPU stay there."""
    body = DeviceBody()
    parts: list[Any] = encode_parts(message, max_bytes, body)
    return DeviceFrame(parts) if any(isinstance(piece, DevicePiece) for piece in body) else b"".join(parts)


def _head(frame: Frame, max_bytes: int) -> tuple[View, int]:
    """Return (frame, length of its head), checked against each other."""
    view = frame if isinstance(frame, DeviceFrame) else memoryview(frame)
    if len(view) > max_bytes:
        raise BadFrame(f"a frame of {len(view)} bytes, more than the {max_bytes} allowed here.")
    if len(view) < _START or bytes(view[: len(MAGIC)]) != MAGIC:
        raise BadFrame(
            "these bytes are not a tacit frame. Does the other side run another program or version?"
        )
    head = int.from_bytes(view[len(MAGIC) : _START], "little")
    if head > len(view) - _START:
        raise BadFrame(f"the frame's head claims {head} bytes, but the frame has {len(view) - _START}.")
    return view, head


def _unpacker(data: memoryview) -> Any:
    # no lists, maps or extensions: the reader opens each container itself, after checking its size
    unpacker = msgpack.Unpacker(
        max_buffer_size=max(len(data), 1),
        max_str_len=len(data),
        max_bin_len=0,
        max_array_len=0,
        max_map_len=0,
        max_ext_len=0,
        raw=False,
        strict_map_key=True,
    )
    unpacker.feed(data)
    return unpacker


def kind_of(frame: Frame, max_bytes: int = MAX_BYTES) -> str:
    """Return the kind a frame claims to be; nothing else is read."""
    if type(frame) is bytes and frame.startswith(MAGIC) and _START + 2 < len(frame) <= max_bytes:
        n, head = frame[_START + 1] - _SHORT, int.from_bytes(frame[4:_START], "little")
        if frame[_START] == _PAIR and 0 <= n < 32 and n + 2 <= head <= len(frame) - _START:
            name = frame[_START + 2 : _START + 2 + n]  # the common case: called for every arriving message
            if name.isascii():
                return name.decode()
    view, head = _head(frame, max_bytes)
    return _kind(Reader(_unpacker(view[_START : _START + min(head, _KIND_BYTES)]), head, view, 0, False))


def _kind(reader: Reader) -> str:
    if reader.array("the frame") != 2:
        raise BadFrame("the frame's head must be a kind and its fields.")
    return reader.text("the kind")


@lru_cache(64)  # vectors of one length have one head; nothing changes what was read
def _read_head(head: bytes) -> tuple[Any, Any]:
    """Return the kind and the fields of a short head; raise Unexpected if it has others."""
    try:
        kind, fields = msgpack.unpackb(
            head,
            object_pairs_hook=Pairs,
            max_array_len=_FEW,
            max_map_len=_FEW,
            max_bin_len=0,
            max_ext_len=0,
        )
    except Exception:  # msgpack's errors share no useful base class
        raise Unexpected from None
    return kind, fields


@lru_cache(64)
def _read_vector_head(head: bytes) -> tuple[str, str, int] | None:
    """Return kind, field and length of a short head of one vector of bytes; None for any other."""
    kind, fields = _read_head(head)
    if type(kind) is not str or type(fields) is not Pairs or len(fields) != 1:
        return None
    name, value = fields[0]
    is_vector = type(value) is list and len(value) == 2 and value[0] == "uint8"
    if not is_vector or type(name) is not str or type(value[1]) is not int or value[1] <= 0:
        return None
    return kind, name, value[1]


def _take(
    view: View, head: int, expected: type[Message] | tuple[type[Message], ...] | None, reuse: bool
) -> Message:
    """Decode a frame whose head is short and as it should be; raise Unexpected for any other."""
    start = _START + head
    head_bytes = bytes(view[_START:start])
    vector = _read_vector_head(head_bytes)
    kind, fields = _read_head(head_bytes)
    cls = None
    if expected is None:
        cls = KINDS.get(kind) if type(kind) is str else None
    else:
        for one in expected if isinstance(expected, tuple) else (expected,):
            if one.kind == kind:
                cls = one
    if cls is None or type(fields) is not Pairs or len(fields) != len(cls.forms):
        raise Unexpected
    body = Body(view, start, reuse)
    if vector is not None and cls.vector == vector[1] and isinstance(view, memoryview):
        data = body.piece(vector[2])
        if body.at != len(view):
            raise Unexpected
        tensor = torch.frombuffer(data if reuse else bytearray(data), dtype=torch.uint8)
        return cls(**{cls.vector: tensor})
    values = {}
    for name, value in fields:
        form = cls.forms.get(name) if type(name) is str else None
        if form is None or name in values:
            raise Unexpected
        values[name] = form.take(value, body)
    if body.at != len(view):
        raise Unexpected
    return cls(**values)


def decode(
    frame: Frame,
    expected: type[Message] | tuple[type[Message], ...] | None = None,
    max_bytes: int = MAX_BYTES,
    *,
    reuse: bool = False,
) -> Message:
    """Decode a frame, or raise BadFrame.

    Tensors are writable and own their memory. With `reuse` they use the memory of the frame (a bytearray that
    the caller gives up), without a copy.
    """
    if reuse and (isinstance(frame, DeviceFrame) or memoryview(frame).readonly):
        raise ProtocolError("decode(reuse=True) needs a writable frame; pass a bytearray.")
    view, head = _head(frame, max_bytes)
    if head <= _SHORT_HEAD:  # read in one call
        try:
            return _take(view, head, expected, reuse)
        except Unexpected:
            pass  # and say why below
    start = _START + head
    reader = Reader(_unpacker(view[_START:start]), head, view, start, reuse)
    kind = _kind(reader)
    known = (
        KINDS
        if expected is None
        else {c.kind: c for c in (expected if isinstance(expected, tuple) else (expected,))}
    )
    cls = known.get(kind)
    if cls is None:
        raise BadFrame(
            f"the frame is a {kind!r:.80}, "
            + (
                f"expected {' or '.join(known)}."
                if expected is not None
                else "an unknown kind. Import the module that declares it, or use the same version at all "
                "parties."
            )
        )
    reader.piece(0, "the head", "nothing")  # its padding
    values: dict[str, Any] = {}
    for _ in range(reader.map(kind)):
        name = reader.text(f"a field's name in {kind}")
        if name not in cls.forms or name in values:
            raise BadFrame(
                f"{kind} has {'twice the' if name in values else 'no'} field {name!r:.80}. Do all parties "
                "run the same version?"
            )
        values[name] = cls.forms[name].unpack(reader, f"{kind}.{name}")
    missing = [name for name in cls.forms if name not in values]
    if missing:
        raise BadFrame(
            f"{kind} lacks the field {', '.join(map(repr, missing))}. Do all parties run the same version?"
        )
    if reader.unpacker.tell() != head or reader.at != len(view):
        raise BadFrame(
            f"{kind} is followed by {head - reader.unpacker.tell() + len(view) - reader.at} unexpected bytes."
        )
    return cls(**values)
