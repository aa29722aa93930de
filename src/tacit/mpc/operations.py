"""The operations of an exported module (`export.py`) on values of a program: each handler emits its nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import functions
from .export import INFINITE, ROWS, Builder, Constant, Refused, Rows, Value, encode_size, reduce_rows
from .model import rms_norm as rms_norm_layers

Handler = Callable[..., Any]
HANDLERS: dict[str, Handler] = {}
FAR_BELOW = functions.FAR_BELOW


def handles(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def _dim(x: Value, dim: int) -> int:
    return dim % len(x.size)


def _ids(x: Value, size: list[Any]) -> list[Any]:
    """The size of a view; token ids have their vocabulary behind it."""
    return size if x.vocabulary is None else [*size, x.vocabulary]


def _move(b: Builder, x: Value, op: str, size: list[Any], /, **options: Any) -> Value:
    """A view of a value, which keeps what is known about it."""
    y = b.emit(op, [x], size, **options)
    y.whole, y.vocabulary = x.whole, x.vocabulary
    return y


# views ------------------------------------------------------------------------------------------------------


@handles("alias", "clone", "contiguous", "detach", "dropout", "to", "_to_copy", "type_as", "lift_fresh_copy")
def same(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    assert b.node is not None
    kind = b.node.meta["val"].dtype
    if not x.whole and not kind.is_floating_point:
        raise Refused("a secret number cannot be made an integer or a truth value; compare it instead")
    if x.vocabulary is not None and (kind.is_floating_point or kind is torch.bool):
        raise Refused("token ids can only be looked up in an embedding, or compared with a number")
    return x


@handles("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as")
def reshape(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    size = b.size()
    if size == x.size:
        return x
    keeps_last = x.affine is not None and size and size[-1] == x.size[-1]
    y = _move(b, x if keeps_last or x.affine is None else b.number(x), "reshape", size, size=encode_size(_ids(x, size)))
    if keeps_last:
        y.affine = x.affine
    y.hidden = _same_hidden(x, size)
    return y


def _same_hidden(x: Value, size: list[Any]) -> Tensor | None:
    """What is hidden, where a view only adds or leaves out dimensions of 1 in front."""
    if x.hidden is None:
        return None
    tail = [n for n in x.hidden.shape]
    return x.hidden if size[len(size) - len(tail) :] == tail else None


@handles("permute")
def permute(b: Builder, x: Value, dims: list[int]) -> Value:
    x = x if x.whole else b.number(x)
    dims = [_dim(x, d) for d in dims]
    size = [x.size[d] for d in dims]
    more = [] if x.vocabulary is None else [len(dims)]
    return _move(b, x, "permute", size, dims=dims + more)


@handles("mT", "adjoint", "matrix_H")
def matrix_transpose(b: Builder, x: Value) -> Value:
    return transpose(b, x, -2, -1)  # type: ignore[no-any-return]


@handles("transpose", "swapaxes", "swapdims")
def transpose(b: Builder, x: Value, one: int, two: int) -> Value:
    dims = list(range(len(x.size)))
    one, two = _dim(x, one), _dim(x, two)
    dims[one], dims[two] = dims[two], dims[one]
    return permute(b, x, dims)  # type: ignore[no-any-return]


@handles("t", "numpy_T")
def t(b: Builder, x: Value) -> Value:
    return x if len(x.size) < 2 else transpose(b, x, 0, 1)  # type: ignore[no-any-return]


@handles("movedim", "moveaxis")
def movedim(b: Builder, x: Value, source: Any, to: Any) -> Value:
    if not isinstance(source, int):
        raise Refused("it moves several dimensions; use permute")
    dims = list(range(len(x.size)))
    dims.insert(_dim(x, to), dims.pop(_dim(x, source)))
    return permute(b, x, dims)  # type: ignore[no-any-return]


@handles("expand", "expand_as", "broadcast_to")
def expand(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    x = x if x.whole else b.number(x)
    size = b.size()
    if size == x.size:
        return x
    y = _move(b, x, "expand", size, size=encode_size(_ids(x, size)))
    y.hidden = _same_hidden(x, size)
    return y


@handles("slice")
def narrow(
    b: Builder, x: Value, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Value:
    x, dim = x if x.whole else b.number(x), _dim(x, dim)
    if isinstance(x.size[dim], Rows):
        if (start or 0) == 0 and (stop is None or isinstance(stop, Rows) or stop >= 1 << 62) and step == 1:
            return x
        raise Refused("it selects rows of the batch")
    begin, end, step = slice(start, stop, step).indices(x.size[dim])
    size = [*x.size]
    size[dim] = len(range(begin, end, step))
    return x if size == x.size else _move(b, x, "slice", size, dim=dim, start=begin, stop=end, step=step)


@handles("select")
def select(b: Builder, x: Value, dim: int, index: int) -> Value:
    dim = _dim(x, dim)
    index = index if isinstance(x.size[dim], Rows) or index >= 0 else index + x.size[dim]
    y = narrow(b, x, dim, index, index + 1)
    size = [n for d, n in enumerate(y.size) if d != dim]
    return _move(b, y, "reshape", size, size=encode_size(_ids(y, size)))


@handles("split", "split_with_sizes", "chunk", "unbind")
def split(b: Builder, x: Value, how: Any = 0, dim: int = 0) -> tuple[Value, ...]:
    assert b.node is not None
    count, unbind = len(b.node.meta["val"]), "unbind" in str(b.node.target)
    dim = _dim(x, how if unbind else dim)
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
    y.whole = whole
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
    lifted = [_move(b, b.number(p), "reshape", size, size=encode_size(size)) for p in parts]
    return cat(b, lifted, dim)  # type: ignore[no-any-return]


@handles("index", "index_select", "gather", "flip", "roll", "repeat", "tile", "repeat_interleave", "unfold", "tril")
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
    y = _move(b, x, "take", size, constant=b.store(own[0].int()), size=encode_size(size))
    if x.hidden is None:
        return y
    return y


# sums -------------------------------------------------------------------------------------------------------


@handles("add", "add_")
def add(b: Builder, x: Any, y: Any, *, alpha: float = 1) -> Value:
    if isinstance(y, Value) and alpha != 1:
        y = multiply(b, y, alpha)
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
        z.hidden = _joint(p.hidden, q.hidden)
        return z
    return _add_constant(b, x, y if isinstance(y, Constant) else torch.tensor(y), size)


def _joint(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    if one is None or two is None:
        return two if one is None else one
    return torch.logical_or(one, two)


def _add_constant(b: Builder, x: Value, y: Any, size: list[Any]) -> Value:
    if isinstance(y, Constant) and y.private:
        x = b.number(x)
        tensor = _trim(reduce_rows(y), len(size))
        shape = list(tensor.shape)
        shift = b.weighted("shift", y, None, shape, transform=lambda w: w.reshape(shape), key=str(shape))
        z = b.layer(x, [shift], x.size)
        z.size = size
        z.hidden = x.hidden
        return z
    tensor = _trim(b.public(y), len(size)) if isinstance(y, Constant) else y
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
    z.hidden = _joint(x.hidden, None if hidden is None else _fill(hidden, size))
    return z


def _trim(x: Tensor, dims: int) -> Tensor:
    """Without leading dimensions of 1."""
    while x.dim() and x.shape[0] == 1:
        x = x[0]
    if x.dim() > dims:
        raise Refused("a constant has more dimensions than the value")
    return x


def _fill(mask: Tensor, size: list[Any]) -> Tensor:
    """A public mask in the full shape of the value's last dimensions, for the mask's dimensions."""
    mask = _trim(mask, len(size))
    tail = size[len(size) - mask.dim() :]
    if any(isinstance(n, Rows) for n in tail):
        raise Refused("a public mask differs from row to row of a batch")
    return mask.expand(*tail) if mask.dim() else mask.reshape(1).expand(size[-1])


@handles("sub", "sub_")
def subtract(b: Builder, x: Any, y: Any, *, alpha: float = 1) -> Value:
    if isinstance(y, Value):
        if isinstance(x, Value) and alpha == 1 and (x.whole == y.whole):
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


@handles("neg")
def negate(b: Builder, x: Value) -> Value:
    x = x if x.whole and x.vocabulary is None else b.number(x)
    y = b.emit("neg", [x], x.size)
    y.whole = x.whole
    return y


@handles("sum")
def total(b: Builder, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    x = x if x.whole and x.vocabulary is None else b.number(x)
    y = b.emit("sum", [x], b.size(), dims=_dims(x, dims), keepdim=keepdim)
    y.whole = x.whole
    return y


def _dims(x: Value, dims: Any) -> list[int]:
    given = list(range(len(x.size))) if dims is None or dims == [] else dims
    result = sorted(_dim(x, d) for d in ([given] if isinstance(given, int) else given))
    if any(isinstance(x.size[d], Rows) for d in result):
        raise Refused("it combines rows of the batch")
    return result


@handles("mean")
def mean(b: Builder, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return b.emit("mean", [b.number(x)], b.size(), dims=_dims(x, dims), keepdim=keepdim)


# products ---------------------------------------------------------------------------------------------------


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
        z.whole = x.whole and y.whole
        return z
    if not isinstance(y, Constant):
        return _scale(b, x, float(y))
    if y.private:
        if size == x.size and list(y.tensor.shape) == size[-1:] and x.affine is None and not x.whole:
            return Value(x.number, x.size, affine=(y, None, b.place))  # a linear layer that follows takes it in
        tensor = _trim(reduce_rows(y), len(size))
        shape = list(tensor.shape)
        layer = b.weighted("affine", y, None, shape, transform=lambda w: w.reshape(shape), key=str(shape))
        z = b.layer(x, [layer], size)
        return z
    tensor = _trim(b.public(y), len(size))
    if tensor.numel() == 1:
        return _scale(b, x, float(tensor)) if size == x.size else _bits(b, x, tensor, size)
    return _bits(b, x, tensor, size)


def _bits(b: Builder, x: Value, tensor: Tensor, size: list[Any]) -> Value:
    """Times public numbers: locally if they are small and whole."""
    if bool((tensor == tensor.round()).all()) and bool((tensor.abs() <= 1).all()):
        x = x if x.whole and x.vocabulary is None else b.number(x)
        z = b.emit("times_public", [x], size, constant=b.store(tensor.to(torch.int32)))
        z.whole = x.whole
        if z.whole:
            z.hidden = _joint(_same_hidden(x, size), _fill(tensor == 0, size))
        return z
    return b.emit("mul_public", [b.number(x)], size, constant=b.store(tensor.double()))


def _scale(b: Builder, x: Value, factor: float) -> Value:
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
    return _scale(b, x, 1 / y)


@handles("reciprocal")
def reciprocal(b: Builder, x: Value) -> Value:
    return b.emit("reciprocal", [b.number(x)], x.size)


@handles("pow", "square")
def power(b: Builder, x: Any, exponent: Any = 2) -> Value:
    if not isinstance(x, Value) or isinstance(exponent, Value | Constant):
        raise Refused("the exponent must be a number in the code")
    x = b.number(x)
    roots = {0.5: ["sqrt"], -0.5: ["rsqrt"], -1: ["reciprocal"], -2: ["reciprocal", "square"]}
    if exponent in roots:
        for op in roots[exponent]:
            x = b.emit(op, [x], x.size)
        return x
    if exponent not in (1, 2, 3, 4):
        raise Refused(f"the exponent {exponent} is not 1, 2, 3, 4, -1, -2, 0.5 or -0.5")
    if exponent == 1:
        return x
    square = b.emit("square", [x], x.size)
    if exponent == 2:
        return square
    return b.emit("square", [square], x.size) if exponent == 4 else b.emit("mul", [square, x], x.size)


@handles("linear")
def linear(b: Builder, x: Any, weight: Any, bias: Any = None) -> Value:
    return _linear(b, x, weight, bias, transposed=True)


@handles("addmm")
def addmm(b: Builder, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Value:
    if beta != 1 or alpha != 1:
        raise Refused("beta and alpha must be 1")
    return _linear(b, x, weight, bias, transposed=False)


@handles("matmul", "mm", "bmm")
def matmul(b: Builder, x: Any, y: Any) -> Value:
    if isinstance(x, Value) and isinstance(y, Value):
        return b.emit("matmul", [b.number(x), b.number(y)], b.size())
    if isinstance(x, Value):
        return _linear(b, x, y, None, transposed=False)
    if x.tensor.dim() != 2 or len(y.size) < 2:
        raise Refused("a weight on the left must be a matrix")
    back = _linear(b, transpose(b, y, -2, -1), x, None, transposed=True, size=[*b.size()[:-2], *b.size()[:-3:-1]])
    return transpose(b, back, -2, -1)  # type: ignore[no-any-return]


def _linear(
    b: Builder, x: Any, weight: Any, bias: Any, *, transposed: bool, size: list[Any] | None = None
) -> Value:
    if not isinstance(weight, Constant) or isinstance(bias, Value) or not isinstance(x, Value):
        raise Refused("its weight and bias must not depend on the input")
    if weight.tensor.dim() != 2:
        raise Refused(f"its weight has {weight.tensor.dim()} dimensions instead of 2")
    matrix = weight.tensor.T if transposed else weight.tensor
    affine, key = x.affine, transposed
    if affine is not None:  # (x·γ + β)W + b = x(γW) + (βW + b)
        scale, shift, _ = affine
        more = 0 if bias is None else bias.tensor.double()
        if shift is not None or bias is not None:
            fold = more if shift is None else shift.tensor.double() @ matrix.double() + more
            bias = b.derived(bias or weight, fold) if isinstance(fold, Tensor) else None
        identity = ("folded", id(scale.tensor), id(weight.tensor), transposed)
        layer = b.weighted(
            "linear",
            weight,
            bias,
            list(matrix.shape),
            transform=lambda w: scale.tensor.double()[:, None] * (w.T if transposed else w).double(),
            key=identity,
        )
        return b.layer(Value(x.number, x.size), [layer], size or b.size())
    layer = b.weighted(
        "linear",
        weight,
        bias,
        list(matrix.shape),
        transform=lambda w: w.T if transposed else w,
        key=key,
    )
    return b.layer(x, [layer], size or b.size())


@handles("embedding")
def embedding(b: Builder, table: Any, ids: Value, *_: Any) -> Value:
    if not isinstance(table, Constant):
        raise Refused("its table must not depend on the input")
    if ids.vocabulary != len(table.tensor):
        raise Refused(
            "its ids are computed from secret values. They must be an input of the model (as input_ids), or public; "
            "positions can be given as the model's position_ids"
        )
    layer = b.weighted("embed", table, None, list(table.tensor.shape))
    return b.emit("layer", [ids], b.size(), layers=[layer])


@handles("conv1d", "conv2d")
def convolution(
    b: Builder,
    x: Value,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    if not isinstance(weight, Constant) or isinstance(bias, Value):
        raise Refused("its weight and bias must not depend on the input")
    line = weight.tensor.dim() == 3
    count = 1 if line else 2

    def many(v: Any) -> list[int]:
        values = [int(n) for n in v] if isinstance(v, list | tuple) else [int(v)]
        return [1] * 0 + (values * count if len(values) == 1 else values)

    kernel, dilations = list(weight.tensor.shape[2:]), many(dilation)
    if isinstance(padding, str):
        both = [0] * count if padding == "valid" else [d * (k - 1) for d, k in zip(dilations, kernel)]
        if any(p % 2 for p in both):
            raise Refused("its padding is not symmetric; use an odd kernel size, or padding in numbers")
        pads = [p // 2 for p in both]
    else:
        pads = many(padding)
    shape = list(weight.tensor.shape)
    layer = b.weighted(
        "conv1d" if line else "conv2d",
        weight,
        bias,
        [*shape[:2], 1, shape[2]] if line else shape,
        transform=(lambda w: w.unsqueeze(2)) if line else None,
        stride=[1] * line + many(stride),
        padding=[0] * line + pads,
        dilation=[1] * line + dilations,
        groups=groups,
    )
    return b.layer(x, [layer], b.size())


# norms and activations --------------------------------------------------------------------------------------


@handles("layer_norm")
def layer_norm(
    b: Builder, x: Value, shape: list[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Value:
    y = b.layer(x, [{"kind": "layernorm", "dims": len(shape), "over": shape, "eps": eps}], b.size())
    return _with_affine(b, y, shape, weight, bias)


@handles("rms_norm")
def rms_norm(b: Builder, x: Value, shape: list[int], weight: Any = None, eps: float | None = None) -> Value:
    y = b.layer(x, rms_norm_layers(shape, eps, None, "", {}), b.size())
    return _with_affine(b, y, shape, weight, None)


@handles("rms_norm_of")
def rms_norm_of(b: Builder, x: Value, eps: float) -> Value:
    return rms_norm(b, x, [x.size[-1]], None, eps)  # type: ignore[no-any-return]


def _with_affine(b: Builder, y: Value, shape: list[int], weight: Any, bias: Any) -> Value:
    if weight is None and bias is None:
        return y
    if weight is None or len(shape) > 1:
        if weight is not None:
            y = multiply(b, y, weight)
        return y if bias is None else add(b, y, bias)
    return Value(y.number, y.size, affine=(weight, bias, b.place))


@handles("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(
    b: Builder, x: Value, weight: Any, bias: Any, mean: Any, variance: Any, training: Any = False, *more: Any
) -> Value:
    eps = next((v for v in reversed(more) if isinstance(v, float)), 1e-5)
    shape = [-1] + [1] * (len(x.size) - 2)
    scale = (variance.tensor.double() + eps) ** -0.5
    scale = scale if weight is None else scale * weight.tensor.double()
    shift = -mean.tensor.double() * scale + (0 if bias is None else bias.tensor.double())
    y = multiply(b, x, b.derived(variance, scale.reshape(shape)))
    return add(b, y, b.derived(mean, shift.reshape(shape)))  # type: ignore[no-any-return]


def _elementwise(kind: str, **fixed: Any) -> Handler:
    def handler(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
        return b.layer(x, [{"kind": kind, **fixed}], x.size)

    return handler


HANDLERS |= {
    "relu": _elementwise("relu"),
    "relu_": _elementwise("relu"),
    "gelu": _elementwise("gelu"),
    "gelu_of": _elementwise("gelu"),
    "silu": _elementwise("silu"),
    "silu_": _elementwise("silu"),
    "sigmoid": _elementwise("sigmoid"),
    "tanh": _elementwise("tanh"),
}


@handles("leaky_relu")
def leaky_relu(b: Builder, x: Value, slope: float = 0.01) -> Value:
    return b.layer(x, [{"kind": "leakyrelu", "slope": slope}], x.size)


@handles("exp", "log", "sqrt", "rsqrt")
def unary(b: Builder, x: Value) -> Value:
    assert b.node is not None
    return b.emit(b.node.target.overloadpacket.__name__, [b.number(x)], x.size)  # type: ignore[union-attr]


@handles("abs")
def absolute(b: Builder, x: Value) -> Value:
    return subtract(b, _scale(b, relu(b, x), 2.0), x)  # type: ignore[no-any-return]


def relu(b: Builder, x: Value) -> Value:
    return b.layer(x, [{"kind": "relu"}], x.size)


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


@handles("softmax", "_softmax")
def softmax(b: Builder, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    x = b.number(x)
    hidden = x.hidden
    dim = _dim(x, dim)
    if hidden is not None and (dim != len(x.size) - 1 or bool(hidden.all(-1).any())):
        raise Refused("its mask must be along the last dimension and leave something in each place")
    number = None if hidden is None or not bool(hidden.any()) else b.store(hidden)
    last = dim == len(x.size) - 1
    return b.emit("softmax", [x], x.size, dim=-1 if last else dim, hidden=number)


@handles("amax")
def amax(b: Builder, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    x = b.number(x)
    over = _dims(x, dims)
    if len(over) != 1:
        raise Refused("it must be over one dimension")
    size = [n for d, n in enumerate(x.size) if d != over[0]]
    y = b.emit("max", [x], size, dim=over[0])
    return _move(b, y, "reshape", b.size(), size=encode_size(b.size())) if keepdim else y


@handles("max")
def largest(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if not isinstance(dim, int):
        raise Refused("it must be over one dimension")
    x = b.number(x)
    dim = _dim(x, dim)
    y = b.emit("max", [x], [n for d, n in enumerate(x.size) if d != dim], dim=dim)
    size = b.size(0)
    return (_move(b, y, "reshape", size, size=encode_size(size)) if keepdim else y, None)


@handles("max_pool1d", "avg_pool1d", "max_pool2d", "avg_pool2d")
def pool(b: Builder, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, *more: Any) -> Value:
    assert b.node is not None
    name = b.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    line, is_max = name.endswith("1d"), name.startswith("max")
    if len(x.size) != (3 if line else 4):
        raise Refused("its input must have rows and channels")

    def pair(v: Any, fill: int = 1) -> list[int]:
        values = [int(n) for n in v] if isinstance(v, list | tuple) else [int(v)]
        return [fill, *values] if line else values * 2 if len(values) == 1 else values

    rest = [v for v in more if v not in (1, [1], [1, 1], False, None)]
    if (is_max and rest) or (not is_max and [v for v in rest if v is not True]):
        raise Refused("dilation, ceil_mode and divisor_override are not supported")
    pads = pair(padding, 0)
    if not is_max and any(pads) and len(more) > 1 and more[1] is False:
        raise Refused("it needs count_include_pad=True if it pads")
    layer = {
        "kind": "maxpool" if is_max else "avgpool",
        "kernel": pair(kernel),
        "stride": pair(stride or kernel),
        "padding": pads,
    }
    size, x = b.size(), b.number(x)
    if not line:
        return b.layer(x, [layer], size)
    high = [*x.size[:2], 1, x.size[2]]
    y = b.layer(_move(b, x, "reshape", high, size=encode_size(high)), [layer], [*size[:2], 1, size[2]])
    return _move(b, y, "reshape", size, size=encode_size(size))


@handles("adaptive_avg_pool2d", "adaptive_avg_pool1d")
def mean_pool(b: Builder, x: Value, output: Any) -> Value:
    if any(n != 1 for n in ([output] if isinstance(output, int) else output)):
        raise Refused("it needs an output of 1")
    dims = [len(x.size) - 1] if len(x.size) == 3 else [len(x.size) - 2, len(x.size) - 1]
    return b.emit("mean", [b.number(x)], b.size(), dims=dims, keepdim=True)


# comparisons, masks -----------------------------------------------------------------------------------------


def _truth(b: Builder, x: Any) -> Value | Constant:
    if isinstance(x, Value) and (not x.whole or x.vocabulary is not None):
        raise Refused("it takes a number where a truth value is needed; compare it first")
    return x  # type: ignore[no-any-return]


@handles("bitwise_not", "logical_not")
def invert(b: Builder, x: Value) -> Value:
    y = negate(b, _truth(b, x))
    z = b.emit("add_public", [y], x.size, constant=b.store(torch.ones((), dtype=torch.int64)), whole=True)
    z.whole = True
    return z


@handles("__and__", "bitwise_and", "logical_and")
def both(b: Builder, x: Any, y: Any) -> Value:
    x, y = _truth(b, x), _truth(b, y)
    if isinstance(x, Constant):
        x, y = y, x
    if isinstance(y, Constant):
        tensor = b.public(y)
        assert isinstance(x, Value)
        return _bits(b, x, _trim(tensor, len(b.size())).int(), b.size())
    z = b.emit("mul", [x, y], b.size(), whole=True)
    z.whole = True
    return z


@handles("__or__", "bitwise_or", "logical_or")
def either(b: Builder, x: Any, y: Any) -> Value:
    x, y = _truth(b, x), _truth(b, y)
    if isinstance(x, Constant):
        x, y = y, x
    if isinstance(y, Constant):  # 1 where y, x elsewhere
        tensor, size = _trim(b.public(y), len(b.size())), b.size()
        assert isinstance(x, Value)
        kept = b.emit("times_public", [x], size, constant=b.store((~tensor.bool()).int()))
        z = b.emit("add_public", [kept], size, constant=b.store(tensor.long()), whole=True)
    else:
        product = b.emit("mul", [x, y], b.size(), whole=True)
        z = b.emit("sub", [b.emit("add", [x, y], b.size()), product], b.size())
    z.whole = True
    return z


@handles("ge", "gt", "le", "lt", "eq", "ne")
def compare(b: Builder, x: Any, y: Any) -> Value:
    assert b.node is not None
    name = b.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    if not isinstance(x, Value):
        x, y = y, x
        name = {"ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}.get(name, name)
    if x.vocabulary is not None or (isinstance(y, Value) and y.vocabulary is not None):
        return _compare_ids(b, x, y, name)
    if name in ("eq", "ne") and x.whole and not isinstance(y, Value | Constant) and y in (0, 1):
        same_truth = (name == "eq") == bool(y)
        return x if same_truth else invert(b, x)  # of bits
    if name in ("eq", "ne"):
        up, down = _at_least(b, x, y), _at_least(b, y, x)
        z = b.emit("mul", [up, down], b.size(), whole=True)
        z.whole = True
        return z if name == "eq" else invert(b, z)
    if name in ("ge", "lt"):
        z = _at_least(b, x, y)
        return z if name == "ge" else invert(b, z)
    z = _at_least(b, y, x)
    return z if name == "le" else invert(b, z)


def _at_least(b: Builder, x: Any, y: Any) -> Value:
    difference = b.number(subtract(b, x, y))
    z = b.emit("positive", [difference], difference.size)
    z.whole = True
    return z


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
    z = b.emit("reshape", [column], size, size=encode_size(size))
    z.whole = True
    return z if name == "eq" else invert(b, z)


@handles("where")
def where(b: Builder, condition: Any, x: Any, y: Any) -> Value:
    """y + condition·(x − y); a constant far below stands for −∞."""
    size = b.size()
    if isinstance(condition, Constant):
        return _where_public(b, _trim(b.public(condition), len(size)).bool(), x, y, size)
    condition = _truth(b, condition)
    first, second = _number_of(b, x), _number_of(b, y)
    if first is not None and second is not None:
        # a mask of two numbers: second + condition·(first − second)
        first, second = (FAR_BELOW if v < INFINITE else v for v in (first, second))
        scaled = b.emit("times", [condition], condition.size, factor=1, number=True)
        scaled = _scale(b, scaled, first - second)
        z = add(b, scaled, second) if second else scaled
        if second == FAR_BELOW:
            z.hidden = condition.hidden
        return z
    for far, other, sign in ((first, y, 1.0), (second, x, -1.0)):
        if far is not None and far < INFINITE:  # other − condition·∞, or − (1 − condition)·∞
            bit = condition if sign > 0 else invert(b, condition)
            masked = b.emit("times", [bit], condition.size, factor=int(FAR_BELOW), number=True)
            return add(b, other, masked)  # type: ignore[no-any-return]
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
            z.hidden = _joint(other.hidden, _fill(hidden, size))
            return z
    parts = []
    for part, kept in ((x, mask), (y, ~mask)):
        if isinstance(part, Value):
            parts.append(_bits(b, b.number(part), kept.int(), size))
        elif isinstance(part, Constant):
            parts.append(b.derived(part, part.tensor * kept.reshape(kept.shape)))
        else:
            parts.append(Constant(kept.double() * float(part), False))
    return add(b, *parts)  # type: ignore[no-any-return]


@handles("masked_fill", "masked_fill_")
def masked_fill(b: Builder, x: Any, mask: Any, value: Any) -> Value:
    return where(b, mask, value, x)  # type: ignore[no-any-return]


@handles("scaled_dot_product_attention")
def attention(
    b: Builder,
    q: Value,
    k: Value,
    v: Value,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(q kᵀ · scale, masked) v. Vaswani et al.: Attention Is All You Need, NeurIPS 2017."""
    if enable_gqa or not all(isinstance(x, Value) for x in (q, k, v)):
        raise Refused("queries, keys and values must depend on the input and have the same number of heads")
    q, k, v = (b.number(x) for x in (q, k, v))
    width = q.size[-1]
    scores_size = [*q.size[:-1], k.size[-2]]
    scaled = _scale(b, q, width**-0.5 if scale is None else scale)
    scores = b.emit("matmul", [scaled, transpose(b, k, -2, -1)], scores_size)
    if is_causal:
        scores.hidden = torch.ones(q.size[-2], k.size[-2], dtype=torch.bool).triu(1)
    elif isinstance(mask, Constant):
        tensor = _trim(b.public(mask), len(scores_size))
        if tensor.dtype is torch.bool:
            scores.hidden = _fill(~tensor, scores_size)
        else:
            scores = _add_constant(b, scores, Constant(tensor, False), scores_size)
    elif mask is not None and mask.whole:  # bits: 0 stands for −∞
        far = b.emit("times", [invert(b, mask)], mask.size, factor=int(FAR_BELOW), number=True)
        hidden = mask.hidden
        scores = b.emit("add", [scores, far], scores_size)
        scores.hidden = hidden
    elif mask is not None:
        other = b.number(mask)
        hidden = other.hidden
        scores = b.emit("add", [scores, other], scores_size)
        scores.hidden = hidden
    return b.emit("matmul", [softmax(b, scores, -1), v], [*scores_size[:-1], v.size[-1]])


# recurrent layers -------------------------------------------------------------------------------------------


@handles("lstm", "gru")
def recurrent(
    b: Builder,
    x: Value,
    start: Any,
    weights: list[Any],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    assert b.node is not None
    kind = b.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    given = start if isinstance(start, list | tuple) else [start]
    if any(isinstance(s, Value) or bool((s.tensor != 0).any()) for s in given):
        raise Refused("its first state must be zeros: do not pass one")
    x = b.number(x)
    x = x if batch_first else transpose(b, x, 0, 1)
    rows, steps = x.size[0], x.size[1]
    each, ways = (4 if has_biases else 2), (2 if bidirectional else 1)
    if len(weights) != layers * ways * each:
        raise Refused("projections (proj_size) are not supported")
    finals: list[list[Value]] = [[], []]
    for number in range(layers):
        outs = []
        for way in range(ways):
            own = weights[(number * ways + way) * each :][:each]
            y = _recurrent_layer(b, x, own, kind, bool(way))
            size = own[1].tensor.shape[1]
            last = 0 if way else steps - 1
            for place, begin in enumerate((0, size) if kind == "lstm" else (0,)):
                state = narrow(b, y, 2, begin, begin + size)
                finals[place].append(narrow(b, state, 1, last, last + 1))
                if not place:
                    outs.append(state)
        wide = sum(o.size[-1] for o in outs)
        x = outs[0] if ways == 1 else b.emit("cat", outs, [rows, steps, wide], dim=2)
    out = x if batch_first else transpose(b, x, 0, 1)
    ends = []
    for states in finals[: 2 if kind == "lstm" else 1]:
        joined = states[0]
        if len(states) > 1:
            joined = b.emit("cat", states, [rows, len(states), states[0].size[-1]], dim=1)
        ends.append(transpose(b, joined, 0, 1))
    return (out, *ends)


def _recurrent_layer(b: Builder, x: Value, own: list[Constant], kind: str, reverse: bool) -> Value:
    wide, deep = own[0], own[1]
    gates, size = wide.tensor.shape[0], deep.tensor.shape[1]
    biases: list[Constant | None] = [None, None]
    if len(own) == 4:
        first, second = own[2], own[3]
        if kind == "lstm":  # both are added to the same sum
            biases = [b.derived(first, first.tensor + second.tensor), None]
        else:
            biases = [first, second]
    layers = [
        b.weighted("linear", w, bias, list(w.tensor.T.shape), transform=lambda t: t.T, key="recurrent")
        for w, bias in ((wide, biases[0]), (deep, biases[1]))
    ]
    count = 2 * size if kind == "lstm" else size
    assert gates == (4 if kind == "lstm" else 3) * size
    return b.emit(kind, [x], [x.size[0], x.size[1], count], layers=layers, reverse=reverse)
