"""Encode plain values, as arguments and results of programs in other processes.

None, bool, int, float, str, bytes, tensors, numpy's numbers and arrays, and lists, tuples and dicts of these.
Functions and other objects are refused.
"""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import torch

from ..errors import BadParameter, ProtocolError
from ..parties.forms import DTYPES, NAMES, raw


def pack(value: Any, where: str) -> bytes:
    packed: bytes = msgpack.packb(_to_plain(value, where))
    return packed


def unpack(data: bytes) -> Any:
    try:
        return _from_plain(msgpack.unpackb(data, strict_map_key=False))
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"a value from another process cannot be read: {error}") from None


def _to_plain(value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value)) if value.dtype.kind in "biuf" else value
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 64 else ["i", str(value)]
    if isinstance(value, torch.Tensor) and value.dtype in NAMES:
        return [
            "t",
            NAMES[value.dtype],
            list(value.shape),
            raw(value).numpy().tobytes() if value.numel() else b"",
        ]
    if isinstance(value, tuple):
        return ["u", *(_to_plain(v, where) for v in value)]
    if isinstance(value, list):
        return ["l", *(_to_plain(v, where) for v in value)]
    if isinstance(value, dict):
        return ["d", *([_to_plain(k, where), _to_plain(v, where)] for k, v in value.items())]
    raise BadParameter(
        f"{where} contains a {type(value).__name__}, which cannot be sent to another process. Use plain "
        "values: numbers, text, bytes, tensors, and lists, tuples and dicts of these."
    )


def _from_plain(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    tag, *rest = value
    match tag:
        case "i":
            return int(rest[0])
        case "t":
            flat = (
                torch.frombuffer(bytearray(rest[2]), dtype=DTYPES[rest[0]])
                if rest[2]
                else torch.empty(0, dtype=DTYPES[rest[0]])
            )
            return flat.reshape(rest[1])
        case "u":
            return tuple(_from_plain(v) for v in rest)
        case "l":
            return [_from_plain(v) for v in rest]
    return {_from_plain(k): _from_plain(v) for k, v in rest}
