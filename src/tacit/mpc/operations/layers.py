"""Layers with weights, norms, activations, pools and attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..export import Builder, Constant, Refused, Value, encode_size
from ..functions import FAR_BELOW
from ..model import rms_norm as rms_norm_layers
from .arithmetic import add, add_constant, multiply, multiply_by_number
from .masks import invert
from .registry import HANDLERS, Handler, dimension, fill_mask, handles, move, trim
from .views import transpose


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
    back = _linear(
        b, transpose(b, y, -2, -1), x, None, transposed=True, size=[*b.size()[:-2], *b.size()[:-3:-1]]
    )
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
            "its ids are computed from secret values. They must be an input of the model (as input_ids), or "
            "public; positions can be given as the model's position_ids"
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


@handles("softmax", "_softmax", masked=True)
def softmax(b: Builder, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    x = b.number(x)
    dim = dimension(x, dim)
    last = dim == len(x.size) - 1
    x = x if last else b.fill(x)
    hidden = x.hidden
    if hidden is not None and bool(hidden.all(-1).any()):
        raise Refused("its mask must leave something in each place")
    number = None if hidden is None or not bool(hidden.any()) else b.store(hidden)
    return b.emit("softmax", [x], x.size, dim=-1 if last else dim, hidden=number)


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

    # behind the padding: dilation and ceil_mode, or ceil_mode, count_include_pad and divisor_override
    rest = [v for v in more if v is not False and v is not None]
    usual = all(v is not True and v in (1, [1], [1, 1]) for v in rest) if is_max else rest in ([], [True])
    if not usual or (not is_max and more and more[0]):
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
    y = b.layer(move(b, x, "reshape", high, size=encode_size(high)), [layer], [*size[:2], 1, size[2]])
    return move(b, y, "reshape", size, size=encode_size(size))


@handles("adaptive_avg_pool2d", "adaptive_avg_pool1d")
def mean_pool(b: Builder, x: Value, output: Any) -> Value:
    if any(n != 1 for n in ([output] if isinstance(output, int) else output)):
        raise Refused("it needs an output of 1")
    dims = [len(x.size) - 1] if len(x.size) == 3 else [len(x.size) - 2, len(x.size) - 1]
    return b.emit("mean", [b.number(x)], b.size(), dims=dims, keepdim=True)


@handles("scaled_dot_product_attention", masked=True)
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
    q, k, v = (b.fill(b.number(x)) for x in (q, k, v))
    width = q.size[-1]
    scores_size = [*q.size[:-1], k.size[-2]]
    scaled = multiply_by_number(b, q, width**-0.5 if scale is None else scale)
    scores = b.emit("matmul", [scaled, transpose(b, k, -2, -1)], scores_size)
    if is_causal:
        scores.hidden = torch.ones(q.size[-2], k.size[-2], dtype=torch.bool).triu(1)
    elif isinstance(mask, Constant):
        tensor = trim(b.public(mask), len(scores_size))
        if tensor.dtype is torch.bool:
            scores.hidden = fill_mask(~tensor, scores_size)
        else:
            scores = add_constant(b, scores, Constant(tensor, False), scores_size)
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
