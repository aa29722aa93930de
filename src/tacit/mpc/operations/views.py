"""Views and rearrangements, which cost nothing."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..export import ROWS, Builder, Constant, Refused, Rows, Value, encode_size
from .arithmetic import add
from .registry import dimension, handles, kept_hidden, move, with_vocabulary


@handles("dropout", "feature_dropout", "alpha_dropout", masked=True)
def dropout(b: Builder, x: Value, p: float = 0.5, training: bool = False) -> Value:
    if training:
        raise Refused("it drops values at random in evaluation mode, too; use training=self.training")
    return x


@handles(
    *("alias", "clone", "contiguous", "detach", "to", "_to_copy", "type_as", "lift_fresh_copy"), masked=True
)
def same(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    assert b.node is not None
    kind = b.node.meta["val"].dtype
    if (not x.whole and not kind.is_floating_point) or (
        kind is torch.bool and not x.bits and not x.vocabulary
    ):
        raise Refused("a secret number cannot be made an integer or a truth value; compare it instead")
    if x.vocabulary is not None and (kind.is_floating_point or kind is torch.bool):
        raise Refused("token ids can only be looked up in an embedding, or compared with a number")
    return x


@handles(
    *("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as"),
    masked=True,
)
def reshape(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    size = b.size()
    if size == x.size:
        return x
    if kept_hidden(x, size) is None:
        x = b.fill(x)
    keeps_last = x.affine is not None and size and size[-1] == x.size[-1]
    y = move(
        b,
        x if keeps_last or x.affine is None else b.number(x),
        "reshape",
        size,
        size=encode_size(with_vocabulary(x, size)),
    )
    if keeps_last:
        y.affine = x.affine
    y.hidden = kept_hidden(x, size)
    return y


@handles("permute")
def permute(b: Builder, x: Value, dims: list[int]) -> Value:
    x = x if x.whole else b.number(x)
    dims = [dimension(x, d) for d in dims]
    size = [x.size[d] for d in dims]
    more = [] if x.vocabulary is None else [len(dims)]
    return move(b, x, "permute", size, dims=dims + more)


@handles("mT", "adjoint", "matrix_H")
def matrix_transpose(b: Builder, x: Value) -> Value:
    return transpose(b, x, -2, -1)  # type: ignore[no-any-return]


@handles("transpose", "swapaxes", "swapdims")
def transpose(b: Builder, x: Value, one: int, two: int) -> Value:
    dims = list(range(len(x.size)))
    one, two = dimension(x, one), dimension(x, two)
    dims[one], dims[two] = dims[two], dims[one]
    return permute(b, x, dims)  # type: ignore[no-any-return]


@handles("t", "numpy_T")
def t(b: Builder, x: Value) -> Value:
    return x if len(x.size) < 2 else transpose(b, x, 0, 1)


@handles("movedim", "moveaxis")
def movedim(b: Builder, x: Value, source: Any, to: Any) -> Value:
    if not isinstance(source, int):
        raise Refused("it moves several dimensions; use permute")
    dims = list(range(len(x.size)))
    dims.insert(dimension(x, to), dims.pop(dimension(x, source)))
    return permute(b, x, dims)  # type: ignore[no-any-return]


@handles("expand", "expand_as", "broadcast_to", masked=True)
def expand(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    x = x if x.whole else b.number(x)
    size = b.size()
    if size == x.size:
        return x
    if kept_hidden(x, size) is None:
        x = b.fill(x)
    y = move(b, x, "expand", size, size=encode_size(with_vocabulary(x, size)))
    y.hidden = kept_hidden(x, size)
    return y


@handles("slice")
def narrow(
    b: Builder, x: Value, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Value:
    x, dim = x if x.whole else b.number(x), dimension(x, dim)
    if isinstance(x.size[dim], Rows):
        if (start or 0) == 0 and (stop is None or isinstance(stop, Rows) or stop >= 1 << 62) and step == 1:
            return x
        raise Refused("it selects rows of the batch")
    begin, end, step = slice(start, stop, step).indices(x.size[dim])
    size = [*x.size]
    size[dim] = len(range(begin, end, step))
    return x if size == x.size else move(b, x, "slice", size, dim=dim, start=begin, stop=end, step=step)


@handles("select")
def select(b: Builder, x: Value, dim: int, index: int) -> Value:
    dim = dimension(x, dim)
    index = index if isinstance(x.size[dim], Rows) or index >= 0 else index + x.size[dim]
    y = narrow(b, x, dim, index, index + 1)
    size = [n for d, n in enumerate(y.size) if d != dim]
    return move(b, y, "reshape", size, size=encode_size(with_vocabulary(y, size)))


@handles("split", "split_with_sizes", "chunk", "unbind")
def split(b: Builder, x: Value, how: Any = 0, dim: int = 0) -> tuple[Value, ...]:
    assert b.node is not None
    count, unbind = len(b.node.meta["val"]), "unbind" in str(b.node.target)
    dim = dimension(x, how if unbind else dim)
    if unbind:
        return tuple(select(b, x, dim, i) for i in range(count))
    parts, begin = [], 0
    for i in range(count):
        length = b.size(i)[dim]
        parts.append(narrow(b, x, dim, begin, begin + length))
        begin += length
    return tuple(parts)


@handles("cat", "concat", "concatenate")
def cat(b: Builder, parts: list[Any], dim: int = 0) -> Value:
    size = b.size()
    dim %= len(size)
    if isinstance(size[dim], Rows):
        raise Refused("it joins rows of the batch")
    values = [p for p in parts if isinstance(p, Value)]
    whole = all(v.whole and v.vocabulary is None for v in values) and not any(
        isinstance(p, Constant) and p.tensor.is_floating_point() for p in parts
    )
    shares = []
    for part in parts:
        if isinstance(part, Constant):
            shares.append(_shared_constant(b, part, values[0], size, dim, whole))
        else:
            shares.append(part if whole else b.number(part))
    y = b.emit("cat", shares, size, dim=dim)
    y.whole, y.bits = whole, whole and len(values) == len(parts) and all(v.bits for v in values)
    return y


def _shared_constant(b: Builder, c: Constant, like: Value, size: list[Any], dim: int, whole: bool) -> Value:
    """Shares of a constant, one copy for each row: 0 times a value, and the constant."""
    shape = list(c.tensor.shape)
    length = shape[dim]
    wanted = [length if d == dim else n for d, n in enumerate(size)]
    base = like if whole else b.number(like)
    one = base
    for d in range(len(size)):
        if not isinstance(base.size[d], Rows):
            one = narrow(b, one, d, 0, 1)
    zero = b.emit("times", [one], one.size, factor=0, number=False)
    zero = b.emit("expand", [zero], wanted, size=encode_size(wanted))
    zero.whole = whole
    return add(b, zero, c)  # type: ignore[no-any-return]


@handles("stack")
def stack(b: Builder, parts: list[Any], dim: int = 0) -> Value:
    if not all(isinstance(p, Value) for p in parts):
        raise Refused("it stacks constants with secret values; use torch.cat")
    dim %= len(b.size())
    size = [1 if d == dim else n for d, n in enumerate(b.size())]
    lifted = [move(b, b.number(p), "reshape", size, size=encode_size(size)) for p in parts]
    return cat(b, lifted, dim)  # type: ignore[no-any-return]


@handles(
    "index", "index_select", "gather", "flip", "roll", "repeat", "tile", "repeat_interleave", "unfold", "tril"
)
def take(b: Builder, x: Value, *args: Any, **kwargs: Any) -> Value:
    """Any rearrangement by public positions: apply it to the positions, once."""
    assert b.node is not None
    x = x if x.whole else b.number(x)
    if x.vocabulary is not None:
        raise Refused("token ids can only be looked up in an embedding, or compared with a number")
    if not isinstance(x.size[0], Rows) or any(isinstance(n, Rows) for n in x.size[1:]):
        raise Refused("its first dimension must be the rows of the batch")
    seen: list[Value] = []
    torch.fx.node.map_aggregate((args, kwargs), lambda a: seen.append(a) if isinstance(a, Value) else None)
    if seen:
        raise Refused(
            "it selects by a secret index. Look up ids in an embedding, or multiply with comparisons"
        )
    name = b.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    if name == "tril":
        raise Refused("multiply by a mask instead")
    rows = x.size[0].times * ROWS
    each = math.prod(x.size[1:])
    positions = torch.arange(rows * each).reshape(rows, *x.size[1:])

    def plain(a: Any) -> Any:
        if isinstance(a, Constant):
            if a.private:
                raise Refused("it uses a weight as a position")
            return a.tensor
        return a.times * ROWS if isinstance(a, Rows) else a

    given, named = torch.fx.node.map_aggregate((args, kwargs), plain)
    moved = b.node.target(positions, *given, **named)  # type: ignore[operator]
    size = b.size()
    at = [d for d, n in enumerate(size) if isinstance(n, Rows)]
    if at != [0] or size[0] != x.size[0]:
        raise Refused("its result has no first dimension of rows")
    moved = moved.reshape(rows, -1)
    own = moved - torch.arange(rows)[:, None] * each
    if not bool((own == own[:1]).all()) or bool(((own < 0) | (own >= each)).any()):
        raise Refused("it mixes rows of the batch")
    y = move(b, x, "take", size, constant=b.store(own[0].int()), size=encode_size(size))
    if x.hidden is None:
        return y
    return y
