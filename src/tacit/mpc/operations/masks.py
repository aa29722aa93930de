"""Comparisons, truth values, and choices by them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..export import INFINITE, Builder, Constant, Refused, Value, encode_size
from ..functions import FAR_BELOW
from .arithmetic import add, complement, multiply, multiply_by_number, multiply_by_small, subtract
from .registry import as_bits, fill_mask, handles, hidden_in_either, spread, trim


def _truth(b: Builder, x: Any) -> Value | Constant:
    if isinstance(x, Value) and not x.bits:
        raise Refused("it takes a number where a truth value is needed; compare it first")
    return x  # type: ignore[no-any-return]


@handles("bitwise_not", "logical_not")
def invert(b: Builder, x: Value) -> Value:
    truth = _truth(b, x)
    assert isinstance(truth, Value)
    return complement(b, truth)


@handles("__and__", "bitwise_and", "logical_and")
def both(b: Builder, x: Any, y: Any) -> Value:
    x, y = _truth(b, x), _truth(b, y)
    if isinstance(x, Constant):
        x, y = y, x
    if isinstance(y, Constant):
        tensor = b.public(y)
        assert isinstance(x, Value)
        return multiply_by_small(b, x, trim(tensor, len(b.size())).int(), b.size())
    z = b.emit("mul", [x, y], b.size(), whole=True)
    return as_bits(z)


@handles("__or__", "bitwise_or", "logical_or")
def either(b: Builder, x: Any, y: Any) -> Value:
    x, y = _truth(b, x), _truth(b, y)
    if isinstance(x, Constant):
        x, y = y, x
    if isinstance(y, Constant):  # 1 where y, x elsewhere
        tensor, size = trim(b.public(y), len(b.size())), b.size()
        assert isinstance(x, Value)
        kept = b.emit("times_public", [x], size, constant=b.store((~tensor.bool()).int()))
        z = b.emit("add_public", [kept], size, constant=b.store(tensor.long()), whole=True)
    else:
        product = b.emit("mul", [x, y], b.size(), whole=True)
        z = b.emit("sub", [b.emit("add", [x, y], b.size()), product], b.size())
    return as_bits(z)


@handles("ge", "gt", "le", "lt", "eq", "ne")
def compare(b: Builder, x: Any, y: Any) -> Value:
    assert b.node is not None
    name = b.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    if not isinstance(x, Value):
        x, y = y, x
        name = {"ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}.get(name, name)
    if x.vocabulary is not None or (isinstance(y, Value) and y.vocabulary is not None):
        return _compare_ids(b, x, y, name)
    if name in ("eq", "ne") and x.bits and not isinstance(y, Value | Constant) and y in (0, 1):
        return x if (name == "eq") == bool(y) else complement(b, x)
    if name in ("eq", "ne"):
        up, down = _at_least(b, x, y), _at_least(b, y, x)
        z = b.emit("mul", [up, down], b.size(), whole=True)
        z = as_bits(z)
        return z if name == "eq" else invert(b, z)
    if name in ("ge", "lt"):
        z = _at_least(b, x, y)
        return z if name == "ge" else invert(b, z)
    z = _at_least(b, y, x)
    return z if name == "le" else invert(b, z)


def _at_least(b: Builder, x: Any, y: Any) -> Value:
    difference = b.number(subtract(b, x, y))
    z = b.emit("positive", [difference], difference.size)
    return as_bits(z)


def _compare_ids(b: Builder, ids: Any, number: Any, name: str) -> Value:
    """[id = n] is column n of the one-hot rows."""
    if isinstance(number, Constant) and number.tensor.numel() == 1:
        number = int(b.public(number))
    if name not in ("eq", "ne") or isinstance(number, Value | Constant):
        raise Refused("token ids can only be compared by == and != with a number in the code")
    size = b.size()
    if not 0 <= number < ids.vocabulary:
        zero = b.emit("slice", [ids], [*size, 1], dim=len(size), start=0, stop=1, step=1)
        column = b.emit("times", [zero], [*size, 1], factor=0, number=False)
    else:
        column = b.emit(
            "slice", [ids], [*size, 1], dim=len(size), start=int(number), stop=int(number) + 1, step=1
        )
    z = as_bits(b.emit("reshape", [column], size, size=encode_size(size)))
    return z if name == "eq" else invert(b, z)


@handles("where", masked=True)
def where(b: Builder, condition: Any, x: Any, y: Any) -> Value:
    """y + condition·(x − y); a constant far below stands for −∞."""
    size = b.size()
    if isinstance(condition, Constant):
        return _where_public(b, trim(b.public(condition), len(size)).bool(), x, y, size)
    condition = _truth(b, condition)
    first, second = _number_of(b, x), _number_of(b, y)
    if first is not None and second is not None:
        # a mask of two numbers: second + condition·(first − second)
        first, second = (FAR_BELOW if v < INFINITE else v for v in (first, second))
        scaled = b.emit("times", [condition], condition.size, factor=1, number=True)
        scaled = multiply_by_number(b, scaled, first - second)
        z = add(b, scaled, second) if second else scaled
        if second == FAR_BELOW:
            z.hidden = condition.hidden
        return z
    for far, other, sign in ((first, y, 1.0), (second, x, -1.0)):
        if far is not None and far < INFINITE:  # other − condition·∞, or − (1 − condition)·∞
            bit = condition if sign > 0 else invert(b, condition)
            masked = b.emit("times", [bit], condition.size, factor=int(FAR_BELOW), number=True)
            return add(b, other, masked)  # type: ignore[no-any-return]
    x, y = (b.fill(v) if isinstance(v, Value) else v for v in (x, y))
    return add(b, multiply(b, condition, subtract(b, x, y)), y)  # type: ignore[no-any-return]


def _number_of(b: Builder, x: Any) -> float | None:
    if isinstance(x, Constant):
        return float(b.public(x)) if x.tensor.numel() == 1 and not x.private else None
    return None if isinstance(x, Value) else float(x)


def _where_public(b: Builder, mask: Tensor, x: Any, y: Any, size: list[Any]) -> Value:
    for far, other, hidden in ((x, y, mask), (y, x, ~mask)):
        number = None if isinstance(far, Value) else _number_of(b, far)
        if number is not None and isinstance(other, Value) and number < INFINITE:
            z = b.number(other)
            if z.size != size:
                z = b.emit("expand", [z], size, size=encode_size(size))
            z = Value(z.number, z.size)
            z.hidden = hidden_in_either(spread(other.hidden, size), fill_mask(hidden, size))
            return z
    parts: list[Value | Constant] = []
    for part, kept in ((x, mask), (y, ~mask)):
        if isinstance(part, Value):
            parts.append(multiply_by_small(b, b.fill(b.number(part)), kept.int(), size))
        elif isinstance(part, Constant):
            parts.append(b.derived(part, part.tensor * kept.reshape(kept.shape)))
        else:
            parts.append(Constant(kept.double() * float(part), False))
    return add(b, *parts)  # type: ignore[no-any-return]


@handles("masked_fill", "masked_fill_", masked=True)
def masked_fill(b: Builder, x: Any, mask: Any, value: Any) -> Value:
    return where(b, mask, value, x)  # type: ignore[no-any-return]
