"""Types of message fields and their encoding.

| in Python                                       | in the msgpack head              | in the body        |
|-------------------------------------------------|----------------------------------|--------------------|
| bool int float str, unions of these and None    | itself                           |                    |
| bytes                                           | its length                       | its bytes          |
| Tensor                                          | [dtype, d1, …, dn]               | little-endian rows |
| list[X], tuple[X, ...], tuple[X, Y]             | array of X                       | what X puts there  |
| dict[str, X]                                    | map of X                         | what X puts there  |
| X | None                                        | [] or [X]                        | what X puts there  |

Reading follows the declared type, never the received bytes: depth, sizes and dtypes are checked before
anything is allocated.
"""

from __future__ import annotations

import math
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import BadFrame, ProtocolError
from .device_frame import DeviceBody, DeviceFrame, DevicePiece

if sys.byteorder != "little":
    raise ImportError(
        "tacit's wire format is little-endian and copies memory directly; big-endian machines are not "
        "supported."
    )

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_DIMS = 16
MAX_ITEMS = (
    1 << 22
)  # values in all lists and maps of a message: one byte of an empty list takes about 64 in memory
MAX_TENSORS = (
    4096  # an empty tensor is 7 bytes on the wire and several hundred in memory: this bounds the ratio
)
ALIGN = 8  # alignment of each piece of the body, so that a tensor can use the frame's memory

Frame = bytes | bytearray | memoryview | DeviceFrame
View = memoryview | DeviceFrame  # of a frame that is read: its slices are bytes, or a tensor on a device


class Reader:
    """A frame being read: `unpacker` reads the head, `at` is the position in the body."""

    def __init__(self, unpacker: Any, head: int, view: View, at: int, reuse: bool):
        self.unpacker, self.head, self.view, self.at, self.reuse = unpacker, head, view, at, reuse
        self.tensors = self.items = 0

    def _next(self, step: Callable[[], Any], where: str, expected: str) -> Any:
        # msgpack's errors share no useful base class
        try:
            return step()
        except Exception as error:
            raise BadFrame(f"{where} is not {expected} ({type(error).__name__}).") from None

    def scalar(self, where: str) -> Any:
        return self._next(self.unpacker.unpack, where, "one plain value")

    def array(self, where: str) -> int:
        return self._bounded(self._next(self.unpacker.read_array_header, where, "a list"), where)

    def map(self, where: str) -> int:
        return self._bounded(self._next(self.unpacker.read_map_header, where, "a table"), where)

    def _bounded(self, n: int, where: str) -> int:
        left = self.head - self.unpacker.tell()
        if n > left:  # every item takes at least a byte: refuse before looping or allocating
            raise BadFrame(f"{where} claims {n} items, but {left} bytes are left.")
        self.items += n
        if self.items > MAX_ITEMS:
            raise BadFrame(
                f"{where}: the lists and tables of a message hold at most {MAX_ITEMS} values. Send many "
                "numbers as a Tensor or as bytes."
            )
        return n

    def text(self, where: str) -> str:
        value = self.scalar(where)
        if type(value) is not str:
            raise BadFrame(f"{where} must be str, got {type(value).__name__}.")
        return value

    def piece(self, n: int, where: str, what: str) -> Any:
        start, end = self.at, self.at + n
        if end > len(self.view):
            raise BadFrame(f"{where}: {what} takes {n} bytes, but {len(self.view) - start} are left.")
        self.at = end + -end % ALIGN
        if self.at > len(self.view) or any(self.view[end : self.at]):
            raise BadFrame(f"{where} is not padded with zeros to a multiple of {ALIGN} bytes.")
        return self.view[start:end]


class Unexpected(Exception):
    """A short head is not what it should be: it is read again with `Reader`, which says why."""


class Pairs(list[tuple[str, Any]]):
    """A table of a head: its entries as they were sent, a key perhaps twice."""


class Body:
    """The body of a frame whose head was read as a whole; `at` is the position."""

    def __init__(self, view: View, at: int, reuse: bool):
        self.view, self.at, self.reuse = view, at, reuse
        self.piece(0)  # the head's padding

    def piece(self, n: int) -> Any:
        start, end = self.at, self.at + n
        self.at = end + -end % ALIGN
        if self.at > len(self.view) or (self.at > end and any(self.view[end : self.at])):
            raise Unexpected
        return self.view[start:end]


class FieldType(ABC):
    """One field type: its name in error messages, `pack` for the sender, `unpack` for the receiver.

    `take` does what `unpack` does with a head that msgpack has read; it raises Unexpected for anything that
    `unpack` refuses.
    """

    name: str

    @abstractmethod
    def take(self, value: Any, body: Body) -> Any: ...

    @abstractmethod
    def pack(self, value: Any, where: str, body: list[Any]) -> Any: ...

    @abstractmethod
    def unpack(self, reader: Reader, where: str) -> Any: ...

    def refuse(self, value: Any, where: str, why: str = "") -> ProtocolError:
        return ProtocolError(f"{where} must be {self.name}, got {type(value).__name__}{why}.")


@dataclass(frozen=True)
class ScalarField(FieldType):
    """bool, int, float, str, None, or one of several of them."""

    types: tuple[type, ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return " | ".join("None" if t is type(None) else t.__name__ for t in self.types)

    def pack(self, value: Any, where: str, body: list[Any]) -> Any:
        if type(value) not in self.types:
            # subclasses such as numpy.float64 or an IntEnum are sent as their base type
            for kind in (str, int, float):
                if kind in self.types and isinstance(value, kind) and not isinstance(value, bool):
                    value = kind(value)
                    break
            else:
                if float not in self.types or not isinstance(value, int) or isinstance(value, bool):
                    raise self.refuse(value, where)
                try:
                    value = float(value)  # Python's rule: an int is accepted for a float
                except OverflowError:
                    raise self.refuse(value, where, " too large for a float") from None
        if type(value) is int and not -(1 << 63) <= value < 1 << 64:
            raise self.refuse(value, where, " of more than 64 bits; send large numbers as bytes")
        if type(value) is str and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise self.refuse(value, where, " with a lone surrogate, which has no UTF-8") from None
        return value

    def unpack(self, reader: Reader, where: str) -> Any:
        value = reader.scalar(where)
        if type(value) not in self.types:
            raise BadFrame(f"{where} must be {self.name}, got {type(value).__name__}.")
        return value

    def take(self, value: Any, body: Body) -> Any:
        if type(value) not in self.types:
            raise Unexpected
        return value


class BytesField(FieldType):
    name = "bytes"

    def pack(self, value: Any, where: str, body: list[Any]) -> int:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise self.refuse(value, where)
        view = memoryview(value).cast("B") if not isinstance(value, bytes) else value
        body.append(view)
        return len(view)

    def unpack(self, reader: Reader, where: str) -> bytes:
        n = reader.scalar(where)
        if type(n) is not int or n < 0:
            raise BadFrame(
                f"{where}: the length of bytes must be a whole number of at least 0, got {n!r:.40}."
            )
        return bytes(reader.piece(n, where, "this field"))

    def take(self, value: Any, body: Body) -> bytes:
        if type(value) is not int or value < 0:
            raise Unexpected
        return bytes(body.piece(value))


def raw(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, row by row: a view of its memory if contiguous on the CPU."""
    whole = tensor.detach().cpu().resolve_neg().contiguous()
    # as_strided, not reshape: a single element counts as contiguous whatever its stride, and is then not
    # viewable as bytes
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous()


def is_byte_vector(value: Any) -> bool:
    """Return whether this is a vector of bytes whose memory is sent as it is."""
    return type(value) is Tensor and value.dtype is torch.uint8 and value.ndim == 1 and _is_plain(value)


class TensorField(FieldType):
    name = "Tensor"

    def pack(self, value: Any, where: str, body: list[Any]) -> list[Any]:
        if is_byte_vector(value):
            n = value.numel()  # most of what is sent, in fewer calls: a view of the tensor's memory
            body.append(value.numpy().data if n else b"")
            return ["uint8", n]
        if not isinstance(value, Tensor):
            raise self.refuse(value, where)
        dtype = NAMES.get(value.dtype)
        if (
            dtype is None
            or value.layout is not torch.strided
            or value.device.type == "meta"
            or value.dim() > MAX_DIMS
        ):
            raise self.refuse(
                value,
                where,
                f" of {value.dtype}, {value.layout}, {value.dim()} dimensions on {value.device}; "
                f"allowed are dense tensors of at most {MAX_DIMS} dimensions and " + ", ".join(DTYPES),
            )
        if value.is_cuda and value.numel() and isinstance(body, DeviceBody):
            body.append(DevicePiece(value))
        else:  # a view of the tensor's memory if it is contiguous and on the CPU
            body.append(raw(value).numpy().data if value.numel() else b"")
        return [dtype, *value.shape]

    def unpack(self, reader: Reader, where: str) -> Tensor:
        n = reader.array(where)
        if not 1 <= n <= 1 + MAX_DIMS:
            raise BadFrame(f"{where}: a tensor is a dtype and at most {MAX_DIMS} dimensions, got {n} items.")
        reader.tensors += 1
        if reader.tensors > MAX_TENSORS:
            raise BadFrame(f"{where}: a message holds at most {MAX_TENSORS} tensors.")
        name = reader.text(where)
        dtype = DTYPES.get(name)
        if dtype is None:
            raise BadFrame(f"{where}: dtype {name!r:.40} cannot be sent; allowed: {', '.join(DTYPES)}.")
        shape = tuple(reader.scalar(where) for _ in range(n - 1))
        if not all(type(d) is int and d >= 0 for d in shape):
            raise BadFrame(f"{where}: dimensions must be whole numbers of at least 0, got {shape!r:.80}.")
        if math.prod(d or 1 for d in shape) >= 1 << 48:  # zero-sized, but with strides that overflow
            raise BadFrame(f"{where}: a tensor of shape {shape!r:.80} is larger than any that can be sent.")
        size = math.prod(shape) * dtype.itemsize
        data = reader.piece(size, where, f"a {name} tensor of shape {shape!r}")
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        if isinstance(data, DevicePiece):
            return data.read(dtype, where).reshape(shape)
        # without `reuse` this is the only copy, writable and owned by the tensor
        memory = data if reader.reuse else bytearray(data)
        tensor = torch.frombuffer(memory, dtype=dtype)
        if dtype is torch.bool and int(tensor.view(torch.uint8).max()) > 1:
            raise BadFrame(f"{where}: a bool tensor contains a byte that is neither 0 nor 1.")
        return tensor.reshape(shape)

    def take(self, value: Any, body: Body) -> Tensor:
        if type(value) is not list or len(value) != 2:  # other shapes than a vector are read with care
            raise Unexpected
        name, n = value
        dtype = DTYPES.get(name) if type(name) is str else None
        if dtype is None or dtype is torch.bool or type(n) is not int or n < 0:
            raise Unexpected
        data = body.piece(n * dtype.itemsize)
        if n == 0:
            return torch.empty(0, dtype=dtype)
        if isinstance(data, DevicePiece):
            return data.read(dtype, "a tensor")
        return torch.frombuffer(data if body.reuse else bytearray(data), dtype=dtype)


@dataclass(frozen=True)
class OptionalField(FieldType):
    item: FieldType

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.item.name} | None"

    def pack(self, value: Any, where: str, body: list[Any]) -> list[Any]:
        return [] if value is None else [self.item.pack(value, where, body)]

    def unpack(self, reader: Reader, where: str) -> Any:
        n = reader.array(where)
        if n > 1:
            raise BadFrame(f"{where} must be {self.name}, got {n} values.")
        return self.item.unpack(reader, where) if n else None

    def take(self, value: Any, body: Body) -> Any:
        if type(value) is not list or len(value) > 1:
            raise Unexpected
        return self.item.take(value[0], body) if value else None


@dataclass(frozen=True)
class ListField(FieldType):
    """list[X] or tuple[X, ...]."""

    make: type
    item: FieldType

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.make.__name__} of {self.item.name}"

    def pack(self, value: Any, where: str, body: list[Any]) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise self.refuse(value, where)
        return [self.item.pack(v, f"{where}[{i}]", body) for i, v in enumerate(value)]

    def unpack(self, reader: Reader, where: str) -> Any:
        return self.make([self.item.unpack(reader, where) for _ in range(reader.array(where))])

    def take(self, value: Any, body: Body) -> Any:
        if type(value) is not list:
            raise Unexpected
        return self.make([self.item.take(v, body) for v in value])


@dataclass(frozen=True)
class TupleField(FieldType):
    """tuple[X, Y]."""

    items: tuple[FieldType, ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"a tuple of ({', '.join(f.name for f in self.items)})"

    def pack(self, value: Any, where: str, body: list[Any]) -> list[Any]:
        if not isinstance(value, list | tuple) or len(value) != len(self.items):
            raise self.refuse(value, where)
        return [f.pack(v, f"{where}[{i}]", body) for i, (f, v) in enumerate(zip(self.items, value))]

    def unpack(self, reader: Reader, where: str) -> tuple[Any, ...]:
        n = reader.array(where)
        if n != len(self.items):
            raise BadFrame(f"{where} must be {self.name}, got {n} values.")
        return tuple(f.unpack(reader, where) for f in self.items)

    def take(self, value: Any, body: Body) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(self.items):
            raise Unexpected
        return tuple(f.take(v, body) for f, v in zip(self.items, value))


@dataclass(frozen=True)
class DictField(FieldType):
    """dict[str, X]."""

    item: FieldType

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"a dict of str to {self.item.name}"

    def pack(self, value: Any, where: str, body: list[Any]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(value, where)
        return {
            KEY.pack(k, f"a key of {where}", body): self.item.pack(v, f"{where}[{k!r}]", body)
            for k, v in value.items()
        }

    def unpack(self, reader: Reader, where: str) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for _ in range(reader.map(where)):
            key = reader.text(f"a key of {where}")
            if key in table:
                raise BadFrame(f"{where} has the key {key!r:.80} twice.")
            table[key] = self.item.unpack(reader, where)
        return table

    def take(self, value: Any, body: Body) -> dict[str, Any]:
        if type(value) is not Pairs:
            raise Unexpected
        table = {}
        for key, v in value:
            if type(key) is not str or key in table:
                raise Unexpected
            table[key] = self.item.take(v, body)
        return table


KEY = ScalarField((str,))
_PLAIN = (bool, int, float, str, type(None))


def field_type_of(hint: Any, where: str) -> FieldType:
    """Return the field type of an annotation, or raise an error that lists the allowed types."""
    if hint is None or hint in _PLAIN:
        return ScalarField((type(None) if hint is None else hint,))
    if hint is bytes:
        return BytesField()
    if hint is Tensor:
        return TensorField()
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if all(a in _PLAIN for a in args):
            return ScalarField(args)
        rest = [a for a in args if a is not type(None)]
        if len(rest) == 1:
            return OptionalField(field_type_of(rest[0], where))
    elif origin is dict and args[0] is str:
        return DictField(field_type_of(args[1], where))
    elif origin is list:
        return ListField(list, field_type_of(args[0], where))
    elif origin is tuple and args:
        return (
            ListField(tuple, field_type_of(args[0], where))
            if args[-1] is Ellipsis
            else TupleField(tuple(field_type_of(a, where) for a in args))
        )
    raise ProtocolError(
        f"{where} is declared as {hint}, which cannot be sent. A field is bool, int, float, str, bytes, "
        "None, Tensor, dict[str, X], list[X] or tuple[X, ...] of these, or X | None."
    )
