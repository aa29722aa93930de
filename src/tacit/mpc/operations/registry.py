"""The table of operations that an exported module may use, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..export import Builder, Refused, Rows, Value

Handler = Callable[..., Any]
HANDLERS: dict[str, Handler] = {}
MASKED: set[str] = set()  # operations that know where numbers are publicly −∞; others get them filled in


def handles(*names: str, masked: bool = False) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        MASKED.update(names if masked else ())
        return handler

    return register


def dimension(x: Value, dim: int) -> int:
    return dim % len(x.size)


def with_vocabulary(x: Value, size: list[Any]) -> list[Any]:
    """The size of a view; token ids have their vocabulary behind it."""
    return size if x.vocabulary is None else [*size, x.vocabulary]


def move(b: Builder, x: Value, op: str, size: list[Any], /, **options: Any) -> Value:
    """A view of a value, which keeps what is known about it."""
    y = b.emit(op, [x], size, **options)
    y.whole, y.bits, y.vocabulary = x.whole, x.bits, x.vocabulary
    return y


def kept_hidden(x: Value, size: list[Any]) -> Tensor | None:
    """What is hidden, where a view only adds or leaves out dimensions of 1 in front."""
    if x.hidden is None:
        return None
    tail = [n for n in x.hidden.shape]
    return x.hidden if size[len(size) - len(tail) :] == tail else None


def hidden_in_either(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    if one is None or two is None:
        return two if one is None else one
    return torch.logical_or(one, two)


def spread(hidden: Tensor | None, size: list[Any]) -> Tensor | None:
    """What is hidden of a value that is broadcast to this size."""
    return None if hidden is None else fill_mask(hidden, size)


def trim(x: Tensor, dims: int) -> Tensor:
    """Without leading dimensions of 1."""
    while x.dim() and x.shape[0] == 1:
        x = x[0]
    if x.dim() > dims:
        raise Refused("a constant has more dimensions than the value")
    return x


def fill_mask(mask: Tensor, size: list[Any]) -> Tensor:
    """A public mask in the full shape of the value's last dimensions, for the mask's dimensions."""
    mask = trim(mask, len(size))
    tail = size[len(size) - mask.dim() :]
    if any(isinstance(n, Rows) for n in tail):
        raise Refused("a public mask differs from row to row of a batch")
    return mask.expand(*tail) if mask.dim() else mask.reshape(1).expand(size[-1])


def dimensions(x: Value, dims: Any) -> list[int]:
    given = list(range(len(x.size))) if dims is None or dims == [] else dims
    result = sorted(dimension(x, d) for d in ([given] if isinstance(given, int) else given))
    if any(isinstance(x.size[d], Rows) for d in result):
        raise Refused("it combines rows of the batch")
    return result


def as_bits(x: Value) -> Value:
    """Mark a result as whole, 0 or 1."""
    x.whole = x.bits = True
    return x
