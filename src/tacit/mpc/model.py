"""A network as a public architecture (a list of layers) and private weights, and its evaluation on shares.

`compile` takes a nested `nn.Sequential` of the layers below; a user's module with branches that are added is
traced (`trace.py`). Its changes are exact: batch norm is folded into the layer before it, dropout is left
out, and ReLU is moved behind a max pool that follows it (the two commute, and fewer values are left to
compare). Only GELU(approximate="tanh") is evaluated as the exact GELU, with a difference of at most 5e-4. The
architecture is public; it includes the shapes of the weights.

`evaluate` walks over the layers, for plain shares and for tagged ones.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadData, BadParameter, ProtocolError
from . import functions, lookup, program, trace, trees
from .beaver import MATMUL, MUL, Bilinear, MaskedFactor
from .context import Context, Share, Step
from .ring import FixedPoint

Layer = dict[str, Any]
ALLOWED = (
    "Linear, Conv1d, Conv2d, BatchNorm1d, BatchNorm2d, LayerNorm, RMSNorm, MaxPool2d, AvgPool2d, "
    "AdaptiveAvgPool2d, ReLU, LeakyReLU, Sigmoid, Tanh, GELU, SiLU, Softmax, Flatten, "
    "Dropout, Identity, nn.Sequential and tacit.mpc.Residual of these, and your own modules that apply "
    "and add them"
)
LIMITS: dict[type[nn.Module], str] = {
    nn.Conv1d: "padding_mode='zeros' and symmetric padding (an odd kernel size, or padding given as numbers)",
    nn.Conv2d: "padding_mode='zeros' and symmetric padding (an odd kernel size, or padding given as numbers)",
    nn.MaxPool2d: "dilation=1, ceil_mode=False and return_indices=False",
    nn.AvgPool2d: "ceil_mode=False, no divisor_override, and count_include_pad=True if it pads",
    nn.AdaptiveAvgPool2d: "an output of 1 × 1",
    nn.Softmax: "a dim",
}  # options that a supported layer must have
ACTIVATIONS = {
    nn.ReLU: "relu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
}
ELEMENTWISE: dict[str, Step] = {
    "relu": functions.relu,
    "sigmoid": functions.sigmoid,
    "tanh": functions.tanh,
    "gelu": functions.gelu,
    "silu": functions.silu,
}
KINDS = {
    *("linear", "conv1d", "conv2d", "affine", "maxpool", "avgpool", "meanpool", "flatten", "softmax"),
    *("layernorm", "rmsnorm", "leakyrelu", "embed", "shift"),
    *("compare", "leaves", "truncate"),  # `trees.py`
}


class Residual(nn.Module):
    """x ↦ body(x) + shortcut(x); without a shortcut, + x."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None):
        super().__init__()
        self.body, self.shortcut = body, shortcut if shortcut is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x) + self.shortcut(x)
        return y


def compile(
    model: nn.Module, inputs: Mapping[str, Tensor] | None = None
) -> tuple[list[Layer], dict[str, Tensor]]:
    """Compile a module to (architecture, weights by name in float64).

    A chain of layers, with branches that are added or joined, takes inputs of any shape. Anything else is
    exported (`export.py`) for `inputs` of these names, shapes and types. Raises BadParameter, with what is
    supported, for what cannot be evaluated.
    """
    for name, part in model.named_modules():
        if part._forward_hooks or part._forward_pre_hooks:
            raise BadParameter(
                f"infer: {name or 'the model'} has a forward hook, whose code would not run on shares "
                "(torch.nn.utils.weight_norm and pruning "
                "add one). Remove it (torch.nn.utils.remove_weight_norm, torch.nn.utils.prune.remove), or "
                "write its computation as layers."
            )
    weights: dict[str, Tensor] = {}
    try:
        if inputs is not None and len(inputs) > 1:
            raise BadParameter("infer: a chain of layers takes one input.")
        layers = _move_relu(_layers(model, "", weights))
    except BadParameter as refused:
        if inputs is None:
            raise
        from .export import compile_program  # it knows the layers of this module

        try:
            return compile_program(model, dict(inputs))
        except BadParameter as error:
            own = any(not type(m).forward.__module__.startswith("torch.nn.") for m in model.modules())
            raise (error if own or len(inputs) > 1 else refused) from None
    return layers, {name: w.detach().double().cpu() for name, w in weights.items()}


def _layers(module: nn.Module, name: str, weights: dict[str, Tensor]) -> list[Layer]:
    kind = type(module)
    if not kind.forward.__module__.startswith("torch.nn.") and kind.forward is not Residual.forward:
        return trace.layers(module, name, weights, _layers, _norm, _move_relu)  # a user's module
    if isinstance(module, nn.Sequential):
        layers: list[Layer] = []
        for key, child in module._modules.items():  # named_children would skip a layer that occurs twice
            if child is None:
                continue
            part = f"{name}.{key}" if name else key
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                layers += _norm(child, part, weights, layers[-1] if layers else None)
            else:
                layers += _layers(child, part, weights)
        return layers
    if isinstance(module, Residual):
        if _overwrites(module.body):
            raise BadParameter(
                f"infer: the body of {name or 'the model'} begins with an in-place layer (inplace=True), so "
                "its shortcut adds the overwritten x. "
                "Use inplace=False, and check that the model was trained as intended."
            )
        return [
            {
                "kind": "residual",
                "body": _move_relu(_layers(module.body, f"{name}.body", weights)),
                "shortcut": _move_relu(_layers(module.shortcut, f"{name}.shortcut", weights)),
            }
        ]
    if isinstance(module, nn.Dropout | nn.Identity):
        return []
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return _norm(module, name, weights, None)
    if kind in ACTIVATIONS:
        return [{"kind": ACTIVATIONS[kind]}]
    if isinstance(module, nn.Linear):
        weights[f"{name}.weight"] = module.weight.T
        return [
            _biased(
                {"kind": "linear", "name": name, "shape": list(module.weight.T.shape)}, module.bias, weights
            )
        ]
    if (
        isinstance(module, nn.Conv1d | nn.Conv2d)
        and module.padding_mode == "zeros"
        and (padding := _padding(module)) is not None
    ):
        # of one dimension: as images of one row
        line = isinstance(module, nn.Conv1d)
        weight = module.weight.unsqueeze(2) if line else module.weight
        weights[f"{name}.weight"] = weight
        return [
            _biased(
                {
                    "kind": "conv1d" if line else "conv2d",
                    "name": name,
                    "shape": list(weight.shape),
                    "stride": [1] * line + list(module.stride),
                    "padding": [0] * line + padding,
                    "dilation": [1] * line + list(module.dilation),
                    "groups": module.groups,
                },
                module.bias,
                weights,
            )
        ]
    if isinstance(module, nn.RMSNorm):
        return rms_norm(list(module.normalized_shape), module.eps, module.weight, name, weights)
    if isinstance(module, nn.LayerNorm):
        shape = list(module.normalized_shape)
        if module.weight is None:
            return [{"kind": "layernorm", "dims": len(shape), "over": shape, "eps": module.eps}]
        weights[f"{name}.weight"] = module.weight
        return [
            {"kind": "layernorm", "dims": len(shape), "over": shape, "eps": module.eps},
            _biased({"kind": "affine", "name": name, "shape": shape}, module.bias, weights),
        ]
    if (
        isinstance(module, nn.MaxPool2d)
        and _pair(module.dilation) == [1, 1]
        and not module.ceil_mode
        and not module.return_indices
    ):
        return [_pool("maxpool", module)]
    if (
        isinstance(module, nn.AvgPool2d)
        and not module.ceil_mode
        and module.divisor_override is None
        and (module.count_include_pad or not any(_pair(module.padding)))
    ):
        return [_pool("avgpool", module)]
    if isinstance(module, nn.AdaptiveAvgPool2d) and _pair(module.output_size) == [1, 1]:
        return [{"kind": "meanpool"}]
    if isinstance(module, nn.LeakyReLU):
        return [{"kind": "leakyrelu", "slope": module.negative_slope}]
    if isinstance(module, nn.Softmax) and module.dim is not None:
        return [{"kind": "softmax", "dim": module.dim}]
    if isinstance(module, nn.Flatten):
        return [{"kind": "flatten", "start": module.start_dim, "end": module.end_dim}]
    limit = next(
        (f"It must have {text}." for known, text in LIMITS.items() if isinstance(module, known)), None
    )
    raise BadParameter(
        f"infer: layer {name or 'the model'} is {module!r:.160}, which cannot be evaluated on shares. "
        f"{limit or f'Allowed are {ALLOWED}.'}"
    )


def _overwrites(module: nn.Module) -> bool:
    """Whether the module's first operation overwrites its input."""
    if isinstance(module, nn.Sequential):
        first = next(
            (child for child in module if not isinstance(child, nn.Identity | nn.Flatten | nn.Dropout)), None
        )
        return first is not None and _overwrites(first)
    if isinstance(module, Residual):
        return _overwrites(module.body) or _overwrites(module.shortcut)
    return bool(getattr(module, "inplace", False)) and not isinstance(module, nn.Dropout)


def _padding(module: nn.Conv1d | nn.Conv2d) -> list[int] | None:
    """The padding in numbers; None if 'same' would be asymmetric."""
    if not isinstance(module.padding, str):
        return list(module.padding)
    if module.padding == "valid":
        return [0] * len(module.kernel_size)
    both = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size)]
    return None if any(b % 2 for b in both) else [b // 2 for b in both]


def _biased(layer: Layer, bias: Tensor | None, weights: dict[str, Tensor]) -> Layer:
    layer["bias"] = bias is not None
    if bias is not None:
        weights[f"{layer['name']}.bias"] = bias
    return layer


def rms_norm(
    over: list[int], eps: float | None, weight: Tensor | None, name: str, weights: dict[str, Tensor]
) -> list[Layer]:
    """x / √(mean of x² + ε), times a weight."""
    # torch's default is the number type's resolution, far below a unit of fixed-point numbers
    layer = {"kind": "rmsnorm", "dims": len(over), "over": over, "eps": eps or 0.0}
    if weight is None:
        return [layer]
    weights[f"{name}.weight"] = weight
    return [layer, {"kind": "affine", "name": name, "shape": over, "bias": False}]


def _norm(
    module: nn.BatchNorm1d | nn.BatchNorm2d, name: str, weights: dict[str, Tensor], before: Layer | None
) -> list[Layer]:
    """Fold γ(x − μ)/σ + β, an affine map of each channel, into the layer before if it is linear."""
    if module.running_mean is None or module.running_var is None:
        raise BadParameter(
            f"infer: layer {name} has no running statistics, so its output for one row depends on the other "
            "rows in the batch. Train it "
            "with track_running_stats=True."
        )
    scale = (module.running_var.double() + module.eps) ** -0.5
    scale = scale if module.weight is None else scale * module.weight.detach().double()
    shift = -module.running_mean.double() * scale
    shift = shift if module.bias is None else shift + module.bias.detach().double()
    line = before is not None and before["kind"] == "conv1d"
    rows = isinstance(module, nn.BatchNorm1d) and not line
    kind = "linear" if rows else "conv1d" if isinstance(module, nn.BatchNorm1d) else "conv2d"
    if before is not None and before["kind"] == kind:
        if before["shape"][1 if rows else 0] != len(scale):
            raise BadParameter(
                f"infer: layer {name} is {module!r}, and the layer before it has "
                f"{before['shape'][1 if rows else 0]} outputs. "
                "On (rows, features) the two numbers must be equal."
            )
        key = before["name"]
        weight = weights[f"{key}.weight"].detach().double()
        weights[f"{key}.weight"] = weight * (
            scale if before["kind"] == "linear" else scale.reshape(-1, 1, 1, 1)
        )
        weights[f"{key}.bias"] = shift + (
            weights[f"{key}.bias"].detach().double() * scale if before["bias"] else 0
        )
        before |= {"bias": True, "rows": rows}
        return []
    shape = [len(scale)] + [1, 1] * (not rows)
    weights[f"{name}.weight"] = scale.reshape(shape)
    return [
        _biased({"kind": "affine", "name": name, "shape": shape, "rows": rows}, shift.reshape(shape), weights)
    ]


def _move_relu(layers: list[Layer]) -> list[Layer]:
    """Move each ReLU behind a max pool that follows it."""
    result: list[Layer] = []
    for layer in layers:
        if layer["kind"] == "maxpool" and result and result[-1]["kind"] == "relu":
            result.insert(-1, layer)
        else:
            result.append(layer)
    return result


def _pool(kind: str, module: nn.MaxPool2d | nn.AvgPool2d) -> Layer:
    sizes = {"kernel": module.kernel_size, "stride": module.stride, "padding": module.padding}
    return {"kind": kind, **{name: _pair(value) for name, value in sizes.items()}}


def _pair(value: Any) -> list[int]:
    return [int(v) for v in value] if isinstance(value, tuple | list) else [int(value)] * 2


# wire format ------------------------------------------------------------------------------------------------


def to_text(layers: list[Layer]) -> str:
    return json.dumps(layers)


def from_text(text: str) -> list[Layer]:
    """Parse an architecture that another party sent."""
    try:
        return _validate(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(
            f"the architecture cannot be read: {type(error).__name__}: {error}. All parties must run the "
            "same version of tacit."
        ) from None


def _validate(layers: Any) -> list[Layer]:
    if not isinstance(layers, list):
        raise ValueError("expected a list of layers")
    for layer in layers:
        if layer["kind"] == "residual":
            _validate(layer["body"])
            _validate(layer["shortcut"])
        elif layer["kind"] == "graph":
            for i, node in enumerate(layer["nodes"]):
                joined = node["cat"] if "cat" in node else node["sum"]
                if not joined or not all(isinstance(j, int) and 0 <= j <= i for j in joined):
                    raise ValueError(
                        f"node {i} of a graph joins {joined!r:.40}, which are not earlier values"
                    )
                _validate(node["layers"])
        elif layer["kind"] == "program":
            program.validate(layer, _validate)
        elif layer["kind"] not in KINDS | ELEMENTWISE.keys():
            raise ValueError(f"unknown layer {layer['kind']!r:.40}")
    return layers


# evaluation on shares ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """A network's weights as one party holds them, by the name of the layer.

    `factors` are masked (private model) or encoded numbers (public model). `biases` are this party's shares.
    """

    factors: Mapping[str, MaskedFactor[Any] | Tensor]
    biases: Mapping[str, Any]

    async def apply(self, ctx: Context, x: Share, layer: Layer, op: Bilinear) -> Share:
        """[x ∘ w + bias], truncated."""
        y, bias = await self.multiply(ctx, x, layer, op), self.biases.get(layer["name"])
        return await ctx.truncate(y if bias is None else y + bias)

    async def multiply(self, ctx: Context, x: Share, layer: Layer, op: Bilinear) -> Share:
        """[x ∘ w], not truncated."""
        factor = self.factors[layer["name"]]
        product = ctx.product_masked if isinstance(factor, MaskedFactor) else ctx.product_public
        return await product(x, factor, op)


def encode_weights(ctx: Context, weights: Mapping[str, Tensor], layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Encode weights with f fractional bits, and biases, which are added to products, with 2f.

    Leaves have 2f, too: they are multiplied by bits, which are whole.
    """
    leaves = {f"{layer['name']}.weight" for layer in layers if layer["kind"] == "leaves"}
    double = {name for name in weights if name.endswith(".bias") or name in leaves}
    return {
        name: ctx.fixed.encode(w, f"the model's {name}", scale=2 if name in double else 1).to(ctx.device)
        for name, w in weights.items()
    }


def encode_input(layers: list[Layer], x: Tensor, fixed: FixedPoint) -> Tensor:
    """A batch as ring elements; of a program, with token ids as one-hot rows."""
    if layers and layers[0]["kind"] == "program":
        return lookup.encode(layers[0], x, fixed)
    return fixed.encode(x, "the input")


def weight_shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's weight and bias, by name."""
    shape = tuple(layer["shape"])
    if layer["kind"] == "shift":
        return {f"{layer['name']}.shift": shape}
    shapes = {f"{layer['name']}.weight": shape}
    if layer["bias"]:
        shapes[f"{layer['name']}.bias"] = (
            shape
            if layer["kind"] in ("affine", "leaves")
            else shape[-1:]
            if layer["kind"] in ("linear", "compare")
            else shape[:1]
        )
    return shapes


def broadcast_bias(layer: Layer, bias: Any) -> Any:
    """A bias in the shape in which it is added to the layer's output."""
    return bias.reshape(-1, 1, 1) if layer["kind"] in ("conv1d", "conv2d") else bias


def drop_final_activation(layers: list[Layer], reveal: str) -> list[Layer]:
    """Leave out a last monotone layer where only the argmax is revealed: sigmoid, tanh, softmax, truncate."""
    last = layers[-1] if layers else {}
    if reveal == "argmax" and last.get("kind") == "graph":  # its last node is its output
        *nodes, end = last["nodes"]
        return [
            *layers[:-1],
            {**last, "nodes": [*nodes, {**end, "layers": drop_final_activation(end["layers"], reveal)}]},
        ]
    if reveal == "argmax" and last.get("kind") == "program":
        return [*layers[:-1], program.drop_final_activation(last)]
    monotone = last.get("kind") in ("sigmoid", "tanh", "truncate") or (
        last.get("kind") == "softmax" and last["dim"] == -1
    )
    return layers[:-1] if reveal == "argmax" and monotone else layers


def layers_with_weights(layers: list[Layer]) -> list[Layer]:
    """All layers that have weights, in the order of evaluation."""
    result = []
    for layer in layers:
        if layer["kind"] == "residual":
            result += layers_with_weights(layer["body"]) + layers_with_weights(layer["shortcut"])
        elif layer["kind"] == "graph":
            result += [inner for node in layer["nodes"] for inner in layers_with_weights(node["layers"])]
        elif layer["kind"] == "program":
            result += program.layers_of(layer)
        elif "name" in layer:
            result.append(layer)
    return result


async def evaluate(ctx: Context, layers: list[Layer], weights: Weights, x: Share, at: str = "") -> Share:
    """The network's output on shares of its input: plain ones (Tensor) or tagged ones (TaggedShare)."""
    for i, layer in enumerate(layers):
        label = f"{at}{i} {layer['kind']}"
        if layer["kind"] == "residual":
            body, shortcut = [
                await evaluate(ctx, layer[part], weights, x, f"{label} {part} ")
                for part in ("body", "shortcut")
            ]
            with _name_layer_errors(ctx, label, x):
                x = body + shortcut
        elif layer["kind"] == "graph":
            values = [x]
            for j, node in enumerate(layer["nodes"]):
                with _name_layer_errors(ctx, f"{label} node {j}", x):
                    start = _join_branches(label, node, values)
                values.append(await evaluate(ctx, node["layers"], weights, start, f"{label} node {j} "))
            x = values[-1]
        elif layer["kind"] == "program":
            lookup.check_width(layer, list(x.shape))
            inputs = lookup.split(layer, x)
            with ctx.at("check of the input"):
                await lookup.check_inputs(ctx, layer, inputs)
            x = await program.evaluate(ctx, layer, weights, inputs, x.shape[0], at, _check_and_apply)
        else:
            with ctx.at(label), _name_layer_errors(ctx, label, x):
                x = await _check_and_apply(ctx, layer, weights, x)
    return x


async def _check_and_apply(ctx: Context, layer: Layer, weights: Weights, x: Share) -> Share:
    _check_shape(layer, list(x.shape))
    return await _apply(ctx, layer, weights, x)


def _join_branches(label: str, node: Layer, values: list[Any]) -> Share:
    """The sum of a node's branches, or their concatenation."""
    if "cat" in node:
        return torch.cat([values[k] for k in node["cat"]], node["dim"])
    first, *others = branches = [values[k] for k in node["sum"]]
    if len({branch.shape for branch in branches}) > 1:
        raise BadData(
            f"{label} adds branches of shapes {[list(b.shape) for b in branches]}; they must be equal."
        )
    return sum(others, start=first)


def _check_shape(layer: Layer, shape: list[int]) -> None:
    """Refuse inputs that a layer cannot take, or would interpret differently."""
    trees.check_rows(layer, shape)
    if layer["kind"] in ("linear", "embed") and shape[-1] != layer["shape"][0]:
        raise BadData(
            f"layer {layer['name']} takes {layer['shape'][0]} inputs and gets a shape of {shape}. Check the "
            "input's shape, or flatten first."
        )
    if layer["kind"] == "conv1d":
        if len(shape) != 3:
            raise BadData(
                f"layer {layer['name']} takes (rows, channels, length) and gets a shape of {shape}. "
                "Check the input's shape."
            )
        shape = [*shape[:2], 1, shape[2]]
        layer = {**layer, "kind": "conv2d"}
    if layer["kind"] == "conv2d" and (len(shape) != 4 or shape[1] != layer["shape"][1] * layer["groups"]):
        raise BadData(
            f"layer {layer['name']} takes images of {layer['shape'][1] * layer['groups']} channels and gets "
            f"a shape of {shape}. Check the "
            "input's shape: (rows, channels, height, width)."
        )
    if layer["kind"] == "conv2d" and any(
        s + 2 * p <= d * (k - 1)
        for s, p, d, k in zip(shape[2:], layer["padding"], layer["dilation"], layer["shape"][2:])
    ):
        raise BadData(
            f"layer {layer['name']} has filters of {layer['shape'][2:]}, larger than its images: it gets a "
            f"shape of {shape}."
        )
    if layer["kind"] in ("layernorm", "rmsnorm") and shape[-layer["dims"] :] != layer.get("over"):
        name = {"layernorm": "layer norm", "rmsnorm": "rms norm"}[layer["kind"]]
        raise BadData(f"a {name} over {layer.get('over')} gets a shape of {shape}. Check the input's shape.")
    if layer["kind"] == "affine" and "rows" in layer and len(shape) > 1 and shape[1] != layer["shape"][0]:
        raise BadData(
            f"layer {layer['name']}, a batch norm, takes {layer['shape'][0]} channels and gets a shape of "
            f"{shape}. Check the input's shape."
        )
    if layer.get("rows") and len(shape) != 2:
        raise BadData(
            f"layer {layer['name']} with its BatchNorm1d gets a shape of {shape}, and is evaluated on "
            "(rows, features) only: of three dimensions "
            "the second would be the channels. Flatten first, or use BatchNorm2d."
        )


@contextlib.contextmanager
def _name_layer_errors(ctx: Context, label: str, x: Any) -> Iterator[None]:
    """In a dry run, where only shapes can be wrong, report torch's error with the layer's name."""
    shape = list(x.shape)
    try:
        yield
    except (RuntimeError, IndexError) as error:
        if ctx.me is not None:
            raise
        raise BadData(
            f"layer {label} cannot take a shape of {shape}: {error}. Check the input's shape against the "
            "model's."
        ) from None


async def _apply(ctx: Context, layer: Layer, weights: Weights, x: Share) -> Share:
    """One layer, other than a residual or a graph."""
    match layer["kind"]:
        case "linear":
            return await weights.apply(ctx, x, layer, MATMUL)
        case "embed":  # one-hot rows are whole, so nothing is to be truncated
            return await weights.multiply(ctx, x, layer, MATMUL)
        case "shift":
            return x + weights.biases[layer["name"]]
        case "affine":
            return await weights.apply(ctx, x, layer, MUL)
        case "conv1d" | "conv2d":
            (sh, sw), (ph, pw), (dh, dw) = layer["stride"], layer["padding"], layer["dilation"]
            op = Bilinear("conv2d", ((sh, sw), (ph, pw), (dh, dw), layer["groups"]))
            if layer["kind"] == "conv2d":
                return await weights.apply(ctx, x, layer, op)
            return (await weights.apply(ctx, x.unsqueeze(2), layer, op))[:, :, 0]
        case "leakyrelu":
            return await functions.leaky_relu(ctx, x, layer["slope"])
        case "maxpool":
            if any(layer["padding"]):  # padding must be less than any value
                outside = _pad(layer, torch.zeros(x.shape, dtype=torch.int64, device=x.device), -1)
                x = _pad(layer, x) + ctx.public(outside << ctx.fixed.value_bits, x)
            return await functions.largest(ctx, _windows(layer, x))
        case "avgpool":
            total = _windows(layer, _pad(layer, x)).sum(-1)
            return await functions.mul_scalar(ctx, total, 1 / math.prod(layer["kernel"]))
        case "meanpool":
            total = x.flatten(-2).sum(-1)[..., None, None]
            return await functions.mul_scalar(ctx, total, 1 / (x.shape[-2] * x.shape[-1]))
        case "flatten":
            return x.flatten(layer["start"], layer["end"])
        case "softmax":
            return await functions.softmax(ctx, x, layer["dim"])
        case "layernorm":
            return await functions.layer_norm(ctx, x, layer["dims"], layer["eps"])
        case "rmsnorm":
            return await functions.rms_norm(ctx, x, layer["dims"], layer["eps"])
        case "compare":
            return await trees.compare(ctx, weights, layer, x)
        case "leaves":
            return await trees.add_leaves(ctx, weights, layer, x)
        case "truncate":
            return await ctx.truncate(x)
    return await ELEMENTWISE[layer["kind"]](ctx, x)


def _pad(layer: Layer, x: Share, value: int = 0) -> Share:
    ph, pw = layer["padding"]
    return F.pad(x, (pw, pw, ph, ph), value=value)


def _windows(layer: Layer, x: Share) -> Share:
    (kh, kw), (sh, sw) = layer["kernel"], layer["stride"]
    return x.unfold(2, kh, sh).unfold(3, kw, sw).flatten(-2)
