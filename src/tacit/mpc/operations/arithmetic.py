"""Sums, products and functions of single numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..export import INFINITE, Builder, Constant, Refused, Value, encode_size, reduce_rows
from ..functions import FAR_BELOW
from .registry import (
    as_bits,
    dimension,
    dimensions,
    fill_mask,
    handles,
    hidden_in_either,
    kept_hidden,
    move,
    spread,
    trim,
)


@handles("add", "add_", masked=True)
def add(b: Builder, x: Any, y: Any, *, alpha: float = 1) -> Value:
    if isinstance(y, Value) and alpha != 1:
        y = multiply(b, b.fill(y), alpha)
    if isinstance(y, Constant) and alpha != 1:
        y = b.derived(y, y.tensor * alpha)
    if not isinstance(x, Value):
        x, y = y, x
    size = b.size() if b.node is not None and not isinstance(b.node.meta["val"], list | tuple) else x.size
    if isinstance(y, Value):
        if x.whole and y.whole and x.vocabulary is y.vocabulary is None:
            z = b.emit("add", [x, y], size)
            z.whole = True
            return z
        p, q = b.number(x), b.number(y)
        z = b.emit("add", [p, q], size)
        z.hidden = hidden_in_either(spread(p.hidden, size), spread(q.hidden, size))
        return z
    return add_constant(b, x, y if isinstance(y, Constant) else torch.tensor(y), size)


def add_constant(b: Builder, x: Value, y: Any, size: list[Any]) -> Value:
    if isinstance(y, Constant) and y.private:
        x = b.number(x)
        tensor = trim(reduce_rows(y), len(size))
        shape = list(tensor.shape)
        shift = b.weighted("shift", y, None, shape, transform=lambda w: w.reshape(shape), key=str(shape))
        z = b.layer(x, [shift], x.size)
        z.size = size
        z.hidden = spread(x.hidden, size)
        return z
    tensor = trim(b.public(y), len(size)) if isinstance(y, Constant) else y
    if x.whole and x.vocabulary is None and not tensor.is_floating_point():
        z = b.emit("add_public", [x], size, constant=b.store(tensor), whole=True)
        z.whole = True
        return z
    x = b.number(x)
    far = tensor.double() < INFINITE
    hidden = None
    if bool(far.any()):  # −∞ of a mask
        tensor = tensor.double().masked_fill(far, 0.0)
        hidden = far
    z = x
    if bool((tensor != 0).any()) or size != x.size:
        z = b.emit("add_public", [x], size, constant=b.store(tensor.double()), whole=False)
    elif hidden is not None:
        z = Value(x.number, x.size)
    z.hidden = hidden_in_either(spread(x.hidden, size), spread(hidden, size))
    return z


@handles("sub", "sub_")
def subtract(b: Builder, x: Any, y: Any, *, alpha: float = 1) -> Value:
    if isinstance(y, Value):
        if y.bits and not isinstance(x, Value | Constant) and alpha * x == x == 1:
            return complement(b, y)
        if isinstance(x, Value) and alpha == 1 and (x.whole == y.whole) and y.vocabulary is None:
            both = [v if v.whole else b.number(v) for v in (x, y)]
            z = b.emit("sub", both, b.size())
            z.whole = x.whole
            return z
        minus = multiply(b, y, -alpha) if alpha != 1 else negate(b, y)
        return add(b, x, minus)  # type: ignore[no-any-return]
    if isinstance(y, Constant):
        return add(b, x, b.derived(y, -alpha * y.tensor))  # type: ignore[no-any-return]
    return add(b, x, -alpha * y)  # type: ignore[no-any-return]


@handles("rsub")
def subtract_from(b: Builder, x: Any, y: Any, *, alpha: float = 1) -> Value:
    return subtract(b, y, x, alpha=alpha)  # type: ignore[no-any-return]


def complement(b: Builder, x: Value) -> Value:
    """1 − a bit."""
    one = b.store(torch.ones((), dtype=torch.int64))
    return as_bits(b.emit("add_public", [negate(b, x)], x.size, constant=one, whole=True))


@handles("neg")
def negate(b: Builder, x: Value) -> Value:
    x = x if x.whole and x.vocabulary is None else b.number(x)
    y = b.emit("neg", [x], x.size)
    y.whole = x.whole
    return y


@handles("sum")
def total(b: Builder, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    x = x if x.whole and x.vocabulary is None else b.number(x)
    y = b.emit("sum", [x], b.size(), dims=dimensions(x, dims), keepdim=keepdim)
    y.whole = x.whole
    return y


@handles("mean")
def mean(b: Builder, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return b.emit("mean", [b.number(x)], b.size(), dims=dimensions(x, dims), keepdim=keepdim)


@handles("mul", "mul_")
def multiply(b: Builder, x: Any, y: Any) -> Value:
    if not isinstance(x, Value):
        x, y = y, x
    current = None if b.node is None else b.node.meta.get("val")
    size = b.size() if isinstance(current, Tensor) else x.size
    if isinstance(y, Value):
        if x.number == y.number and not x.whole and x.affine is y.affine:
            return b.emit("square", [b.number(x)], x.size)
        whole = x.whole or y.whole
        parts = [v if v.whole and v.vocabulary is None else b.number(v) for v in (x, y)]
        z = b.emit("mul", parts, size, whole=whole)
        z.whole, z.bits = x.whole and y.whole, x.bits and y.bits
        return z
    if not isinstance(y, Constant):
        return multiply_by_number(b, x, float(y))
    if y.private:
        if size == x.size and list(y.tensor.shape) == size[-1:] and x.affine is None and not x.whole:
            return Value(
                x.number, x.size, affine=(y, None, b.place)
            )  # a linear layer that follows takes it in
        tensor = trim(reduce_rows(y), len(size))
        shape = list(tensor.shape)
        layer = b.weighted("affine", y, None, shape, transform=lambda w: w.reshape(shape), key=str(shape))
        z = b.layer(x, [layer], size)
        return z
    tensor = trim(b.public(y), len(size))
    if tensor.numel() == 1 and size == x.size:
        return multiply_by_number(b, x, float(tensor))
    return multiply_by_small(b, x, tensor, size)


def multiply_by_small(b: Builder, x: Value, tensor: Tensor, size: list[Any]) -> Value:
    """Times public numbers: locally if they are small and whole."""
    if bool((tensor == tensor.round()).all()) and bool((tensor.abs() <= 1).all()):
        x = x if x.whole and x.vocabulary is None else b.number(x)
        z = b.emit("times_public", [x], size, constant=b.store(tensor.to(torch.int32)))
        z.whole, z.bits = x.whole, x.bits and bool((tensor >= 0).all())
        if z.whole:
            z.hidden = hidden_in_either(kept_hidden(x, size), fill_mask(tensor == 0, size))
        return z
    return b.emit("mul_public", [b.number(x)], size, constant=b.store(tensor.double()))


def multiply_by_number(b: Builder, x: Value, factor: float) -> Value:
    if not math.isfinite(factor):
        raise Refused(f"it multiplies by {factor}")
    if factor == 1:
        return x
    if factor == round(factor) and abs(factor) <= 16:
        x = x if x.whole and x.vocabulary is None else b.number(x)
        y = b.emit("times", [x], x.size, factor=int(factor), number=False)
        y.whole = x.whole
        return y
    if x.whole and x.vocabulary is None and factor < INFINITE:  # (1 − mask) · −∞
        y = b.emit("times", [x], x.size, factor=int(FAR_BELOW), number=True)
        return y
    return b.emit("scale", [b.number(x)], x.size, factor=factor)


@handles("div", "div_", "true_divide")
def divide(b: Builder, x: Any, y: Any, *, rounding_mode: Any = None) -> Value:
    if rounding_mode is not None:
        raise Refused("it rounds")
    if isinstance(y, Value):
        inverse = b.emit("reciprocal", [b.number(y)], y.size)
        return inverse if not isinstance(x, Value | Constant) and x == 1 else multiply(b, x, inverse)
    if isinstance(y, Constant):
        return multiply(b, x, b.derived(y, 1 / y.tensor))  # type: ignore[no-any-return]
    return multiply_by_number(b, x, 1 / y)


@handles("reciprocal")
def reciprocal(b: Builder, x: Value) -> Value:
    return b.emit("reciprocal", [b.number(x)], x.size)


@handles("pow", "square")
def power(b: Builder, x: Any, exponent: Any = 2) -> Value:
    if not isinstance(x, Value) or isinstance(exponent, Value | Constant):
        raise Refused("the exponent must be a number in the code")
    value: Value = b.number(x)
    roots = {0.5: ["sqrt"], -0.5: ["rsqrt"], -1: ["reciprocal"], -2: ["reciprocal", "square"]}
    if exponent in roots:
        for op in roots[exponent]:
            value = b.emit(op, [value], value.size)
        return value
    if exponent not in (1, 2, 3, 4):
        raise Refused(f"the exponent {exponent} is not 1, 2, 3, 4, -1, -2, 0.5 or -0.5")
    if exponent == 1:
        return value
    square = b.emit("square", [value], value.size)
    if exponent == 2:
        return square
    return (
        b.emit("square", [square], value.size)
        if exponent == 4
        else b.emit("mul", [square, value], value.size)
    )


@handles("exp", "log", "sqrt", "rsqrt")
def unary(b: Builder, x: Value) -> Value:
    assert b.node is not None
    return b.emit(b.node.target.overloadpacket.__name__, [b.number(x)], x.size)  # type: ignore[union-attr]


def relu(b: Builder, x: Value) -> Value:
    return b.layer(x, [{"kind": "relu"}], x.size)


@handles("abs")
def absolute(b: Builder, x: Value) -> Value:
    return subtract(b, multiply_by_number(b, relu(b, x), 2.0), x)  # type: ignore[no-any-return]


@handles("clamp", "hardtanh", "clamp_min", "clamp_max", "relu6")
def clamp(b: Builder, x: Value, low: Any = None, high: Any = None) -> Value:
    assert b.node is not None
    name = b.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    if name == "clamp_max":
        low, high = None, low
    elif name == "relu6":
        low, high = 0.0, 6.0
    elif name == "hardtanh":
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    if isinstance(low, Value | Constant) or isinstance(high, Value | Constant):
        raise Refused("its limits must be numbers in the code")
    if low is not None:
        x = add(b, relu(b, add(b, x, -float(low))), float(low))
    if high is not None:
        x = subtract(b, float(high), relu(b, subtract(b, float(high), x)))
    return x


@handles("maximum")
def maximum(b: Builder, x: Any, y: Any) -> Value:
    return add(b, relu(b, subtract(b, x, y)), y)  # type: ignore[no-any-return]


@handles("minimum")
def minimum(b: Builder, x: Any, y: Any) -> Value:
    return subtract(b, x, relu(b, subtract(b, x, y)))  # type: ignore[no-any-return]


@handles("amax")
def amax(b: Builder, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    x = b.number(x)
    over = dimensions(x, dims)
    if len(over) != 1:
        raise Refused("it must be over one dimension")
    size = [n for d, n in enumerate(x.size) if d != over[0]]
    y = b.emit("max", [x], size, dim=over[0])
    return move(b, y, "reshape", b.size(), size=encode_size(b.size())) if keepdim else y


@handles("max")
def largest(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if not isinstance(dim, int):
        raise Refused("it must be over one dimension")
    x = b.number(x)
    dim = dimension(x, dim)
    y = b.emit("max", [x], [n for d, n in enumerate(x.size) if d != dim], dim=dim)
    size = b.size(0)
    return (move(b, y, "reshape", size, size=encode_size(size)) if keepdim else y, None)
