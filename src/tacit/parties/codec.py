"""Messages as bytes and back. There is no code in a frame (never pickle), and a frame is read as hostile
until it has been read to its end.

    frame = "TCT" 0x01 | length of head, uint32 | head | body
    head  = msgpack [kind, {field: value}], padded with zeros to a multiple of 8
    body  = the raw little-endian bytes of tensors and byte strings in the order the head names them, each padded to a multiple of 8

Bounds: the head's claimed sizes are held to the bytes that are really there before anything is made of
them. Reading takes one copy of the body, and of the head at most what its Python values weigh (the worst
kind, empty tables, about 64 bytes for each byte, and no more than forms.MAX_ITEMS values). Sending copies
a contiguous CPU tensor once, into the frame; `encode_parts` does not copy it at all.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack

from ..errors import BadFrame, ProtocolError
from .forms import ALIGN, Frame, Reader
from .message import KINDS, Message

MAGIC = b"TCT\x01"
MAX_BYTES = 1 << 30  # 268 million float32 parameters; a transport may ask for less
_START = len(MAGIC) + 4
_PAD = [bytes(n) for n in range(ALIGN)]
_PAIR, _SHORT = (
    0x92,
    0xA0,
)  # msgpack's: a list of two; a text of less than 32 bytes, its length in the lower five bits
_KIND_BYTES = 512  # more than any class name: enough of the head to tell the kind


def encode_parts(message: Message, max_bytes: int = MAX_BYTES) -> list[bytes | memoryview]:
    """The frame in pieces, the tensors as views of their own memory: write them out before the tensors
    change.
    """
    body: list[Any] = []
    fields = {
        name: form.pack(getattr(message, name), f"{message.kind}.{name}", body)
        for name, form in message.forms.items()
    }
    head = msgpack.packb([message.kind, fields])
    parts: list[bytes | memoryview] = [
        MAGIC,
        len(head).to_bytes(4, "little"),
        head,
        _PAD[-(len(head)) % ALIGN],
    ]
    for piece in body:
        parts += (piece, _PAD[-len(piece) % ALIGN])
    size = sum(map(len, parts))
    if size > max_bytes:
        raise ProtocolError(
            f"{message.kind} takes {size} bytes, more than the {max_bytes} a frame may have. "
            "Send it in parts or raise max_bytes at all parties."
        )
    return parts


def encode(message: Message, max_bytes: int = MAX_BYTES) -> bytes:
    """The message as one frame."""
    return b"".join(encode_parts(message, max_bytes))


def _head(frame: Frame, max_bytes: int) -> tuple[memoryview, int]:
    """The frame as bytes and the length of its head, both checked against each other."""
    view = memoryview(frame)
    if len(view) > max_bytes:
        raise BadFrame(f"a frame of {len(view)} bytes, more than the {max_bytes} allowed here.")
    if len(view) < _START or view[: len(MAGIC)] != MAGIC:
        raise BadFrame(
            "these bytes do not start as a tacit frame does; is the other side running another program or "
            "version?"
        )
    head = int.from_bytes(view[len(MAGIC) : _START], "little")
    if head > len(view) - _START:
        raise BadFrame(f"the frame's head claims {head} bytes, but {len(view) - _START} are there.")
    return view, head


def _unpacker(data: memoryview) -> Any:
    # no lists, tables or extensions except those we ask for by name: the reader opens each one itself and
    # knows its size first
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
    """What kind of message the frame claims to be; nothing else is read."""
    view, head = _head(frame, max_bytes)
    if (
        head > 2
        and view[_START] == _PAIR
        and view[_START + 1] & 0xE0 == _SHORT
        and (n := view[_START + 1] & 0x1F) <= head - 2
    ):
        with suppress(
            UnicodeDecodeError
        ):  # as most frames begin, read by hand: every message that arrives is asked for its kind
            return str(view[_START + 2 : _START + 2 + n], "utf-8")
    reader = Reader(_unpacker(view[_START : _START + min(head, _KIND_BYTES)]), head, view, 0, False)
    return _kind(reader)


def _kind(reader: Reader) -> str:
    if reader.array("the frame") != 2:
        raise BadFrame("the frame's head must be a kind and its fields.")
    return reader.text("the kind")


def decode(
    frame: Frame,
    expected: type[Message] | tuple[type[Message], ...] | None = None,
    max_bytes: int = MAX_BYTES,
    *,
    reuse: bool = False,
) -> Message:
    """The message in a frame, or BadFrame.

    Tensors are writable and own their memory. With `reuse` they lie in the frame itself (a bytearray its
    owner gives up): no copy is made.
    """
    if reuse and memoryview(frame).readonly:
        raise ProtocolError("decode(reuse=True) needs a frame that may be written to; give it a bytearray.")
    view, head = _head(frame, max_bytes)
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
                else "a kind not known here; import the module that declares it, or bring all parties to "
                "the same version."
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
            f"{kind} comes without its field {', '.join(map(repr, missing))}. Do all parties run the same "
            "version?"
        )
    if reader.unpacker.tell() != head or reader.at != len(view):
        raise BadFrame(
            f"{kind} is followed by {head - reader.unpacker.tell() + len(view) - reader.at} bytes that "
            "belong to nothing."
        )
    return cls(**values)
