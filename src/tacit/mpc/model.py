"""A network as a public architecture (a list of layers) and private weights, and how both are evaluated on
shares.

`compile` takes an `nn.Sequential`, nested as you like, of the layers below; a module of your own, with
branches that are added, is traced (`trace.py`). What it changes on the way is exact: batch norm is folded
into the layer before it, dropout is left out, and ReLU moves behind a max-pool that follows it (the two
commute, and there are fewer values left to compare). Only GELU(approximate="tanh") is evaluated as the exact
one, at most 5e-4 away. The architecture is told to everybody; shapes of weights are part of it.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadData, BadParameter, ProtocolError
from . import functions, trace
from .beaver import MATMUL, MUL, Bilinear, Kept, keep, times_kept, watch
from .compare import largest
from .ring import VALUE
from .seat import Seat
from .truncate import truncate

Layer = dict[str, Any]
ALLOWED = (
    "Linear, Conv2d, BatchNorm1d, BatchNorm2d, LayerNorm, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, ReLU, "
    "Sigmoid, Tanh, GELU, Softmax, Flatten, "
    "Dropout, Identity, nn.Sequential and tacit.mpc.Residual of these, and modules of your own that apply "
    "and add them"
)
LIMITS: dict[type[nn.Module], str] = {
    nn.Conv2d: "padding_mode='zeros', and as much padding on one side as on the other (an odd kernel, or "
    "padding in numbers)",
    nn.MaxPool2d: "dilation=1, ceil_mode=False and return_indices=False",
    nn.AvgPool2d: "ceil_mode=False, no divisor_override, and count_include_pad=True where it pads",
    nn.AdaptiveAvgPool2d: "an output of 1 × 1",
    nn.Softmax: "a dim",
}  # what is known of a layer but not every way of it
PLAIN = {nn.ReLU: "relu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh", nn.GELU: "gelu"}


class Residual(nn.Module):
    """x ↦ body(x) + shortcut(x); without a shortcut, + x."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None):
        super().__init__()
        self.body, self.shortcut = body, shortcut if shortcut is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.shortcut(x)


def compile(model: nn.Module) -> tuple[list[Layer], dict[str, Tensor]]:
    """(architecture, weights by name in float64), or a refusal that lists what is allowed."""
    for name, part in model.named_modules():
        if part._forward_hooks or part._forward_pre_hooks:
            raise BadParameter(
                f"infer: {name or 'the model'} has a forward hook, whose code nobody would run on shares "
                "(old weight norms and pruning "
                "have one). Remove it (torch.nn.utils.remove_weight_norm, torch.nn.utils.prune.remove), or "
                "write what it does as layers."
            )
    weights: dict[str, Tensor] = {}
    layers = _layers(model, "", weights)
    return _tidied(layers), {name: w.detach().double().cpu() for name, w in weights.items()}


def _layers(module: nn.Module, name: str, weights: dict[str, Tensor]) -> list[Layer]:
    kind = type(module)
    if (
        not kind.forward.__module__.startswith("torch.nn.") and kind.forward is not Residual.forward
    ):  # its own code, not that of a layer we know
        return trace.layers(module, name, weights, _layers, _norm, _tidied)
    if isinstance(module, nn.Sequential):
        made: list[Layer] = []
        for (
            key,
            child,
        ) in module._modules.items():  # not named_children, which passes over a layer that stands there twice
            if child is None:
                continue
            part = f"{name}.{key}" if name else key
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                made += _norm(child, part, weights, made[-1] if made else None)
            else:
                made += _layers(child, part, weights)
        return made
    if isinstance(module, Residual):
        if _overwrites(module.body):
            raise BadParameter(
                f"infer: the body of {name or 'the model'} begins in place (inplace=True), so that its "
                "shortcut adds what is left of x, not x. "
                "Give the layer inplace=False, and see whether the model was trained as you meant it."
            )
        return [
            {
                "kind": "residual",
                "body": _tidied(_layers(module.body, f"{name}.body", weights)),
                "shortcut": _tidied(_layers(module.shortcut, f"{name}.shortcut", weights)),
            }
        ]
    if isinstance(module, nn.Dropout | nn.Identity):
        return []
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return _norm(module, name, weights, None)
    if kind in PLAIN:
        return [{"kind": PLAIN[kind]}]
    if isinstance(module, nn.Linear):
        weights[f"{name}.weight"] = module.weight.T
        return [
            _biased(
                {"kind": "linear", "name": name, "shape": list(module.weight.T.shape)}, module.bias, weights
            )
        ]
    if (
        isinstance(module, nn.Conv2d)
        and module.padding_mode == "zeros"
        and (padding := _padding(module)) is not None
    ):
        weights[f"{name}.weight"] = module.weight
        return [
            _biased(
                {
                    "kind": "conv2d",
                    "name": name,
                    "shape": list(module.weight.shape),
                    "stride": list(module.stride),
                    "padding": padding,
                    "dilation": list(module.dilation),
                    "groups": module.groups,
                },
                module.bias,
                weights,
            )
        ]
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
        return [
            {
                "kind": "maxpool",
                "kernel": _pair(module.kernel_size),
                "stride": _pair(module.stride),
                "padding": _pair(module.padding),
            }
        ]
    whole = isinstance(module, nn.AvgPool2d) and not module.ceil_mode and module.divisor_override is None
    if (
        isinstance(module, nn.AvgPool2d)
        and whole
        and (module.count_include_pad or not any(_pair(module.padding)))
    ):
        return [
            {
                "kind": "avgpool",
                "kernel": _pair(module.kernel_size),
                "stride": _pair(module.stride),
                "padding": _pair(module.padding),
            }
        ]
    if isinstance(module, nn.AdaptiveAvgPool2d) and _pair(module.output_size) == [1, 1]:
        return [{"kind": "meanpool"}]
    if isinstance(module, nn.Softmax) and module.dim is not None:
        return [{"kind": "softmax", "dim": module.dim}]
    if isinstance(module, nn.Flatten):
        return [{"kind": "flatten", "start": module.start_dim, "end": module.end_dim}]
    limit = next((limit for known, limit in LIMITS.items() if isinstance(module, known)), None)
    if limit is not None:
        raise BadParameter(
            f"infer: layer {name or 'the model'} is {module!r:.160}, which cannot be evaluated on shares as "
            f"it is: it must have {limit}."
        )
    raise BadParameter(
        f"infer: layer {name or 'the model'} is {module!r:.160}, which cannot be evaluated on shares. "
        f"Allowed are {ALLOWED}."
    )


def _overwrites(module: nn.Module) -> bool:
    """Is the first thing it does to its input done in place?"""
    if isinstance(module, nn.Sequential):
        first = next(
            (child for child in module if not isinstance(child, nn.Identity | nn.Flatten | nn.Dropout)), None
        )
        return first is not None and _overwrites(first)
    if isinstance(module, Residual):
        return _overwrites(module.body) or _overwrites(module.shortcut)
    return bool(getattr(module, "inplace", False)) and not isinstance(module, nn.Dropout)


def _padding(module: nn.Conv2d) -> list[int] | None:
    """In numbers; None where 'same' would be one more on one side."""
    if not isinstance(module.padding, str):
        return list(module.padding)
    if module.padding == "valid":
        return [0, 0]
    both = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size)]
    return None if any(b % 2 for b in both) else [b // 2 for b in both]


def _biased(layer: Layer, bias: Tensor | None, weights: dict[str, Tensor]) -> Layer:
    layer["bias"] = bias is not None
    if bias is not None:
        weights[f"{layer['name']}.bias"] = bias
    return layer


def _norm(
    module: nn.BatchNorm1d | nn.BatchNorm2d, name: str, weights: dict[str, Tensor], before: Layer | None
) -> list[Layer]:
    """γ(x − μ)/σ + β is an affine map of each channel: taken into the layer before where there is one."""
    if module.running_mean is None or module.running_var is None:
        raise BadParameter(
            f"infer: layer {name} keeps no running statistics, so its output depends on the batch. Train it "
            "with track_running_stats=True."
        )
    scale = (module.running_var.double() + module.eps) ** -0.5
    scale = scale if module.weight is None else scale * module.weight.detach().double()
    shift = -module.running_mean.double() * scale
    shift = shift if module.bias is None else shift + module.bias.detach().double()
    rows = isinstance(module, nn.BatchNorm1d)
    if before is not None and before["kind"] == ("linear" if rows else "conv2d"):
        if before["shape"][1 if rows else 0] != len(scale):
            raise BadParameter(
                f"infer: layer {name} is {module!r}, and the layer before it gives "
                f"{before['shape'][1 if rows else 0]}. "
                "On (rows, features) they must be as many."
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


def _tidied(layers: list[Layer]) -> list[Layer]:
    made: list[Layer] = []
    for layer in layers:
        if layer["kind"] == "maxpool" and made and made[-1]["kind"] == "relu":
            made.insert(-1, layer)
        else:
            made.append(layer)
    return made


def _pair(value: Any) -> list[int]:
    return [int(v) for v in value] if isinstance(value, tuple | list) else [int(value)] * 2


# what goes over the wire ------------------------------------------------------------------------------------


def to_text(layers: list[Layer]) -> str:
    return json.dumps(layers)


def from_text(text: str) -> list[Layer]:
    """An architecture another party sent."""
    try:
        layers = json.loads(text)
        return _checked(layers)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(
            f"the architecture that came cannot be read: {type(error).__name__}: {error}. Do all parties "
            "run the same version?"
        ) from None


def _checked(layers: Any) -> list[Layer]:
    if not isinstance(layers, list):
        raise ValueError("it is no list of layers")
    for layer in layers:
        if layer["kind"] == "residual":
            _checked(layer["body"])
            _checked(layer["shortcut"])
        elif layer["kind"] == "graph":
            for i, node in enumerate(layer["nodes"]):
                if not node["sum"] or not all(isinstance(j, int) and 0 <= j <= i for j in node["sum"]):
                    raise ValueError(
                        f"node {i} of a graph adds up {node['sum']!r:.40}, which are not before it"
                    )
                _checked(node["layers"])
        elif layer["kind"] not in _EVALUATE:
            raise ValueError(f"there is no layer {layer['kind']!r:.40}")
    return layers


# on shares --------------------------------------------------------------------------------------------------


class Weights:
    """What a seat knows of the weights: masked and kept (private), or the encoded numbers themselves
    (public); biases at the owner only, or public.
    """

    def __init__(self, kept: Mapping[str, Kept], known: Mapping[str, Tensor]):
        self.kept, self.known = kept, known

    @classmethod
    async def private(
        cls, seat: Seat, layers: list[Layer], weights: Mapping[str, Tensor] | None, owner: int
    ) -> Weights:
        """The owner masks every weight once; `weights` is None at the others."""
        coded = None if weights is None else encoded(seat, weights)
        with seat.at("weights, once"):
            kept = {
                f"{layer['name']}.weight": await keep(
                    seat,
                    f"{layer['name']}.weight",
                    tuple(layer["shape"]),
                    None if coded is None else coded[f"{layer['name']}.weight"],
                    owner,
                )
                for layer in weighted(layers)
            }
        return cls(kept, {} if coded is None else coded)

    async def times(self, seat: Seat, x: Tensor, layer: Layer, op: Bilinear) -> Tensor:
        """[x ∘ w + bias], truncated."""
        name = f"{layer['name']}.weight"
        if name in self.kept:
            made = await times_kept(seat, x, self.kept[name], op)
        else:
            await watch(seat, op, x, seat.public(self.known[name], x))
            made = op(x, self.known[name])
        bias = self.known.get(f"{layer['name']}.bias")
        if bias is not None and (
            seat.first or name in self.kept
        ):  # public: one party adds it; private: only the owner has it
            made = made + (bias.reshape(-1, 1, 1) if layer["kind"] == "conv2d" else bias)
        return await truncate(seat, made)


def encoded(seat: Seat, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with f fractional bits, biases with 2f: they are added to products."""
    return {
        name: seat.fixed.encode(w, f"the model's {name}", scale=2 if name.endswith(".bias") else 1).to(
            seat.device
        )
        for name, w in weights.items()
    }


def for_reveal(layers: list[Layer], reveal: str) -> list[Layer]:
    """What has to be evaluated: behind a last sigmoid, tanh or softmax the largest number is the one that was
    largest before.
    """
    last = layers[-1] if layers else {}
    if (
        reveal == "argmax" and last.get("kind") == "graph"
    ):  # its last node is its output, and nobody else's input
        *nodes, end = last["nodes"]
        return [
            *layers[:-1],
            {**last, "nodes": [*nodes, {**end, "layers": for_reveal(end["layers"], reveal)}]},
        ]
    rising = last.get("kind") in ("sigmoid", "tanh") or (last.get("kind") == "softmax" and last["dim"] == -1)
    return layers[:-1] if reveal == "argmax" and rising else layers


def weighted(layers: list[Layer]) -> list[Layer]:
    made = []
    for layer in layers:
        if layer["kind"] == "residual":
            made += weighted(layer["body"]) + weighted(layer["shortcut"])
        elif layer["kind"] == "graph":
            made += [inner for node in layer["nodes"] for inner in weighted(node["layers"])]
        elif "name" in layer:
            made.append(layer)
    return made


async def evaluate(seat: Seat, layers: list[Layer], weights: Weights, x: Tensor, at: str = "") -> Tensor:
    """The network's output, shared."""
    for i, layer in enumerate(layers):
        label = f"{at}{i} {layer['kind']}"
        if layer["kind"] == "residual":
            body, shortcut = [
                await evaluate(seat, layer[part], weights, x, f"{label} {part} ")
                for part in ("body", "shortcut")
            ]
            with rehearsing(seat.me is None, label, list(x.shape)):
                x = body + shortcut
        elif layer["kind"] == "graph":
            values = [x]
            for j, node in enumerate(layer["nodes"]):
                branches = [values[k] for k in node["sum"]]
                if len({branch.shape for branch in branches}) > 1:
                    raise BadData(
                        f"{label} adds branches of shapes {[list(b.shape) for b in branches]}; they must be "
                        "equal."
                    )
                values.append(
                    await evaluate(
                        seat,
                        node["layers"],
                        weights,
                        sum(branches[1:], start=branches[0]),
                        f"{label} node {j} ",
                    )
                )
            x = values[-1]
        else:
            with seat.at(label), rehearsing(seat.me is None, label, list(x.shape)):
                fits(layer, list(x.shape))
                x = await _EVALUATE[layer["kind"]](seat, layer, weights, x)
    return x


def fits(layer: Layer, shape: list[int]) -> None:
    """Refuse what a layer with weights cannot take, or would take for something else."""
    if layer["kind"] == "linear" and shape[-1] != layer["shape"][0]:
        raise BadData(
            f"layer {layer['name']} takes {layer['shape'][0]} inputs and gets a shape of {shape}. Check the "
            "input's shape, or flatten first."
        )
    if layer["kind"] == "conv2d" and (len(shape) != 4 or shape[1] != layer["shape"][1] * layer["groups"]):
        raise BadData(
            f"layer {layer['name']} takes {layer['shape'][1] * layer['groups']} channels of images and gets "
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
    if layer["kind"] == "layernorm" and shape[-layer["dims"] :] != layer.get("over"):
        raise BadData(
            f"a layer norm over {layer.get('over')} gets a shape of {shape}. Check the input's shape."
        )
    if layer["kind"] == "affine" and "rows" in layer and len(shape) > 1 and shape[1] != layer["shape"][0]:
        raise BadData(
            f"layer {layer['name']}, a batch norm, takes {layer['shape'][0]} channels and gets a shape of "
            f"{shape}. Check the input's shape."
        )
    if layer.get("rows") and len(shape) != 2:
        raise BadData(
            f"layer {layer['name']} with its BatchNorm1d gets a shape of {shape}, and is evaluated on "
            "(rows, features) only: of three dimensions "
            "the second would be the channels. Flatten first, or take BatchNorm2d."
        )


@contextlib.contextmanager
def rehearsing(it: bool, label: str, shape: list[int]) -> Iterator[None]:
    """In a rehearsal nothing but a shape can be wrong: torch's error, with the layer's name."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        if not it:
            raise
        raise BadData(
            f"layer {label} cannot take a shape of {shape}: {error}. Check the input's shape against the "
            "model's."
        ) from None


async def _linear(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
    return await weights.times(seat, x, layer, MATMUL)


async def _conv2d(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
    (sh, sw), (ph, pw), (dh, dw) = layer["stride"], layer["padding"], layer["dilation"]
    return await weights.times(
        seat, x, layer, Bilinear("conv2d", ((sh, sw), (ph, pw), (dh, dw), layer["groups"]))
    )


async def _affine(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
    return await weights.times(seat, x, layer, MUL)


def windows(x: Tensor, layer: Layer, fill: int) -> Tensor:
    (kh, kw), (sh, sw), (ph, pw) = layer["kernel"], layer["stride"], layer["padding"]
    return F.pad(x, (pw, pw, ph, ph), value=fill).unfold(2, kh, sh).unfold(3, kw, sw).flatten(-2)


async def _maxpool(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
    return await largest(
        seat, windows(x, layer, -(1 << VALUE) if seat.first else 0)
    )  # padding is less than any value


async def _avgpool(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
    return await functions.times(seat, windows(x, layer, 0).sum(-1), 1 / math.prod(layer["kernel"]))


async def _meanpool(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
    return await functions.times(seat, x.sum((-2, -1), keepdim=True), 1 / (x.shape[-2] * x.shape[-1]))


async def _flatten(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
    return x.flatten(layer["start"], layer["end"])


async def _softmax(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
    return await functions.softmax(seat, x, layer["dim"])


async def _layernorm(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
    return await functions.layer_norm(seat, x, layer["dims"], layer["eps"])


def _simple(function: Any) -> Any:
    async def step(seat: Seat, layer: Layer, weights: Weights, x: Tensor) -> Tensor:
        return await function(seat, x)

    return step


_EVALUATE: dict[str, Any] = {
    "linear": _linear,
    "conv2d": _conv2d,
    "affine": _affine,
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "meanpool": _meanpool,
    "flatten": _flatten,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "relu": _simple(functions.relu),
    "sigmoid": _simple(functions.sigmoid),
    "tanh": _simple(functions.tanh),
    "gelu": _simple(functions.gelu),
}
