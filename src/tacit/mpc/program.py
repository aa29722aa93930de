"""A network as a list of operations on shares: what `export.py` makes of a module that is more than a chain
of layers, as transformers are.

    {"kind": "program", "inputs": […], "constants": […], "nodes": […], "output": 7}

Values 0, 1, … are the inputs (`lookup.py`), and node i gives the next one. A node has an operation, the
numbers of earlier values as `args`, and `at`, the part of the model that it comes from. Sizes are numbers, or
{"rows": n} for n times the number of rows in the batch. Values are numbers with the format's fractional bits,
or whole: bits and one-hot rows, with none. Products of whole values need no truncation.

Everything in a program is public. Weights are in layers of `model.py`, which have names and shapes only.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from . import functions, recurrent
from .beaver import MATMUL, MUL
from .context import Context, Share

Layer = dict[str, Any]
Apply = Callable[[Context, Layer, Any, Share], Awaitable[Share]]
DTYPES = {"float64": torch.float64, "int64": torch.int64, "int32": torch.int32, "bool": torch.bool}
MOST_NUMBERS = 1 << 27  # of one constant: 1 GB, far more than a mask has; a larger one is not unpacked
VIEWS = {"reshape", "permute", "expand", "slice", "take", "cat"}
LOCAL = {"add", "sub", "neg", "times", "sum", "add_public", "times_public"}
INTERACTIVE = {
    "mul",
    "matmul",
    "square",
    "scale",
    "mul_public",
    "mean",
    "softmax",
    "max",
    "positive",
    "layer",
}
UNARY: dict[str, Callable[[Context, Share], Awaitable[Share]]] = {
    "exp": functions.exp,
    "log": functions.log,
    "sqrt": functions.sqrt,
    "rsqrt": functions.rsqrt,
    "reciprocal": functions.reciprocal,
}
OPERATIONS = VIEWS | LOCAL | INTERACTIVE | UNARY.keys() | {"lstm", "gru"}


def pack_constant(x: Tensor) -> dict[str, Any]:
    """A public tensor as text."""
    x = x.contiguous()
    data = base64.b64encode(zlib.compress(x.numpy().tobytes())).decode()
    return {"dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape), "data": data}


def unpack_constant(packed: dict[str, Any]) -> Tensor:
    """The tensor; refuses text that is longer or shorter than its shape."""
    dtype, shape = DTYPES[packed["dtype"]], [int(n) for n in packed["shape"]]
    size = math.prod(shape) * dtype.itemsize
    if not all(0 <= n <= MOST_NUMBERS for n in shape) or math.prod(shape) > MOST_NUMBERS:
        raise ValueError(f"a constant has the shape {shape}")
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(packed["data"]), size + 1)
    except zlib.error as error:
        raise ValueError(f"a constant cannot be unpacked: {error}") from None
    if len(data) != size:
        raise ValueError(f"a constant of shape {shape} has {len(data)} bytes")
    kind = np.dtype(str(dtype).removeprefix("torch."))
    return torch.from_numpy(np.frombuffer(data, kind).copy()).reshape(shape)


def validate(layer: Layer, validate_layers: Callable[[Any], Any]) -> None:
    """Refuse a program of another party that does not make sense."""
    before = len(layer["inputs"])
    for packed in layer["constants"]:
        unpack_constant(packed)
    for part in layer["inputs"]:
        if part["kind"] not in ("tokens", "bits", "numbers") or not all(
            isinstance(n, int) and n >= 0 for n in [*part["shape"], part.get("vocabulary", 0)]
        ):
            raise ValueError(f"unknown input {part!r:.60}")
    for i, node in enumerate(layer["nodes"], before):
        if node["op"] not in OPERATIONS:
            raise ValueError(f"unknown operation {node['op']!r:.40}")
        if not node["args"] or not all(isinstance(j, int) and 0 <= j < i for j in node["args"]):
            raise ValueError(f"{node['op']} takes {node['args']!r:.40}, which are not earlier values")
        for name in ("constant", "hidden"):
            if node.get(name) is not None and not 0 <= node[name] < len(layer["constants"]):
                raise ValueError(f"{node['op']} uses a constant that does not exist")
        validate_layers(node.get("layers", []))
    if not 0 <= layer["output"] < before + len(layer["nodes"]):
        raise ValueError("the output is not a value of the program")


def layers_of(layer: Layer) -> list[Layer]:
    """The layers in a program, each once."""
    layers = [inner for node in layer["nodes"] for inner in node.get("layers", [])]
    return list({inner["name"]: inner for inner in layers if "name" in inner}.values())


def drop_final_activation(layer: Layer) -> Layer:
    """Leave out a last monotone operation: the index of the maximum is the same without it."""
    begin = len(layer["inputs"])
    if layer["output"] < begin:
        return layer
    node = layer["nodes"][layer["output"] - begin]
    monotone = (node["op"] == "softmax" and node["dim"] == -1 and node.get("hidden") is None) or (
        node["op"] == "layer"
        and node["layers"][-1]["kind"] in ("sigmoid", "tanh")
        and len(node["layers"]) == 1
    )
    return {**layer, "output": node["args"][0]} if monotone else layer


async def evaluate(
    ctx: Context, layer: Layer, weights: Any, inputs: list[Share], rows: int, at: str, apply: Apply
) -> Share:
    """The program's output. `apply` evaluates one layer of `model.py`."""
    constants = [unpack_constant(packed) for packed in layer["constants"]]
    values: dict[int, Share] = dict(enumerate(inputs))
    last = {j: i for i, node in enumerate(layer["nodes"]) for j in node["args"]} | {layer["output"]: -1}
    for i, node in enumerate(layer["nodes"]):
        args = [values[j] for j in node["args"]]
        label = f"{at}{i} {_name(node)} {node.get('at', '')}".rstrip()
        with ctx.at(label):
            try:
                result = await _run(ctx, node, args, constants, rows, weights, apply)
            except (RuntimeError, IndexError, TypeError) as error:
                if ctx.me is not None:
                    raise
                raise BadData(
                    f"{label} cannot take shapes {[list(x.shape) for x in args]}: {error}. The program was "
                    "made for another input."
                ) from None
        values[len(inputs) + i] = result
        for j in set(node["args"]):
            if last[j] == i:
                del values[j]  # so that memory is that of the widest place
    return values[layer["output"]]


def _name(node: Layer) -> str:
    """A node's operation; of a layer, what it is."""
    return " ".join(inner["kind"] for inner in node["layers"]) if node["op"] == "layer" else str(node["op"])


def resolve(sizes: Sequence[Any], rows: int) -> tuple[int, ...]:
    """Sizes as numbers."""
    return tuple(n["rows"] * rows if isinstance(n, dict) else n for n in sizes)


async def _run(
    ctx: Context,
    node: Layer,
    args: list[Share],
    constants: list[Tensor],
    rows: int,
    weights: Any,
    apply: Apply,
) -> Share:
    op, x = node["op"], args[0]
    if op in VIEWS:
        return _view(node, args, constants, rows)
    if op in LOCAL:
        return _compute_locally(ctx, node, args, constants)
    if op in UNARY:
        return await UNARY[op](ctx, x)
    match op:
        case "layer":
            for inner in node["layers"]:
                x = await apply(ctx, inner, weights, x)
            return x
        case "lstm" | "gru":
            wide, deep = node["layers"]
            step = recurrent.lstm if op == "lstm" else recurrent.gru
            return await step(ctx, x, wide, deep, weights, apply, node["reverse"])
        case "mul":
            y = await ctx.product(x, args[1], MUL)
            return y if node.get("whole") else await ctx.truncate(y)
        case "matmul":
            return await functions.mul(ctx, x, args[1], MATMUL)
        case "square":
            return await ctx.truncate(await ctx.square(x))
        case "scale":
            return await functions.mul_scalar(ctx, x, node["factor"])
        case "mul_public":
            code = ctx.fixed.encode(constants[node["constant"]], "a constant of the model").to(x.device)
            return await functions.mul_public(ctx, x, code)
        case "mean":
            dims, kept = node["dims"], node["keepdim"]
            count = math.prod(x.shape[d] for d in dims)
            return await functions.mul_scalar(ctx, _sum(x, dims, kept), 1 / count)
        case "softmax":
            hidden = None if node.get("hidden") is None else constants[node["hidden"]]
            return await functions.softmax(ctx, x, node["dim"], hidden)
        case "max":
            return await functions.largest(ctx, x.movedim(node["dim"], -1))
        case _:  # positive: [x ≥ 0], whole
            return (await ctx.sign(x)).bit


def _view(node: Layer, args: list[Share], constants: list[Tensor], rows: int) -> Share:
    x = args[0]
    match node["op"]:
        case "reshape":
            return x.reshape(resolve(node["size"], rows))
        case "permute":
            return x.permute(*node["dims"])
        case "expand":
            return x.expand(*resolve(node["size"], rows))
        case "slice":
            index = (*[slice(None)] * node["dim"], slice(node["start"], node["stop"], node["step"]))
            return x[index]
        case "take":  # positions of each row's numbers
            flat = x.reshape((rows, -1))
            return flat[:, constants[node["constant"]].long().to(x.device)].reshape(
                resolve(node["size"], rows)
            )
        case _:
            return torch.cat(args, node["dim"])


def _compute_locally(ctx: Context, node: Layer, args: list[Share], constants: list[Tensor]) -> Share:
    x = args[0]
    match node["op"]:
        case "add":
            return x + args[1]
        case "sub":
            return x - args[1]
        case "neg":
            return -x
        case "times":  # whole, or a whole value made a number
            return x * (node["factor"] << (ctx.fixed.fraction if node["number"] else 0))
        case "sum":
            return _sum(x, node["dims"], node["keepdim"])
        case "times_public":
            return x * constants[node["constant"]].long().to(x.device)
        case _:  # add_public
            public = constants[node["constant"]]
            code = (
                public.long() if node["whole"] else ctx.fixed.encode(public, "a constant of the model")
            ).to(x.device)
            return x + ctx.public(code, x)


def _sum(x: Share, dims: list[int], keepdim: bool) -> Share:
    for dim in sorted(dims, reverse=True):
        x = x.sum(dim, keepdim=keepdim)
    return x
