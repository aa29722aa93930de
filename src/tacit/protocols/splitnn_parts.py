"""Parts of a split network: cut at a layer, merge activations, serialize a part as data.

`cut` returns a network's parts. `ConcatMerge`, `SumMerge` and `GatedMerge` merge several holders'
activations. `describe` and `build` convert layers to plain tables and back, so that a part can be saved or
sent to another process without any code in it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadData, BadParameter
from ..parameters import bad, nearest

MERGES = ("concat", "sum", "gated")

# Layers that can be serialized: their constructor's arguments can be read from an instance.
KNOWN: dict[str, type[nn.Module]] = {
    c.__name__: c
    for c in (
        nn.Linear,
        nn.Conv1d,
        nn.Conv2d,
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.Embedding,
        nn.ReLU,
        nn.LeakyReLU,
        nn.ELU,
        nn.GELU,
        nn.SiLU,
        nn.Sigmoid,
        nn.Tanh,
        nn.Softplus,
        nn.Softmax,
        nn.LogSoftmax,
        nn.Dropout,
        nn.Dropout2d,
        nn.Flatten,
        nn.Unflatten,
        nn.MaxPool2d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool2d,
        nn.Identity,
    )
}
IGNORED_ARGUMENTS = {
    "device",
    "dtype",
    "inplace",
    "_weight",
    "_freeze",
    "approximate",
}  # without effect on the output, or an initial value that is saved with the weights


class ConcatMerge(nn.Module):
    """Concatenate activations."""

    def forward(self, values: Sequence[Tensor]) -> Tensor:
        return values[0] if len(values) == 1 else torch.cat(list(values), dim=1)


class SumMerge(nn.Module):
    """Add activations of equal width."""

    def forward(self, values: Sequence[Tensor]) -> Tensor:
        return functools.reduce(torch.add, values)


class GatedMerge(nn.Module):
    """Σ_k softmax_k(a)_j · z_kj: for each unit j, learned weights of the holders that sum to one.

    It starts as their mean.
    """

    def __init__(self, holders: int, width: int):
        super().__init__()
        self.holders, self.width = holders, width
        self.gate = nn.Parameter(torch.zeros(holders, width))

    def forward(self, values: Sequence[Tensor]) -> Tensor:
        return (torch.softmax(self.gate, 0)[:, None] * torch.stack(list(values))).sum(0)


def make_merge(kind: str, holders: int, width: int) -> nn.Module:
    if kind not in MERGES:
        raise bad("splitnn", "merge", kind, f"one of {', '.join(map(repr, MERGES))}")
    if kind == "concat" or holders == 1:
        return ConcatMerge()
    return SumMerge() if kind == "sum" else GatedMerge(holders, width)


def cut(model: nn.Module, *at: int | str) -> tuple[nn.Module, ...]:
    """Cut a network after each of these layers and return its parts, which share its weights.

    A layer is given by its index (`cut(net, 2)` keeps two layers in the first part) or by the name of a
    submodule (`cut(net, "encoder.1")`). Nested nn.Sequential networks are cut directly. Any other network is
    traced, and can be cut where a single value is passed on.
    """
    if not isinstance(model, nn.Module):
        raise bad("cut", "model", type(model).__name__, "a torch.nn.Module")
    if not at:
        raise bad("cut", "at", (), "at least one layer, by its index or its name")
    if not isinstance(model, nn.Sequential):
        return _cut_traced(model, at)
    layers = _flat(model)
    names = [name for name, _ in layers]
    places = []
    for where in at:
        if isinstance(where, str):
            inside = [i for i, name in enumerate(names) if name == where or name.startswith(where + ".")]
            if not inside:
                raise bad(
                    "cut", "a layer", where, "the name of a submodule of a Sequential", nearest(where, names)
                )
            places.append(inside[-1] + 1)
        elif isinstance(where, bool) or not isinstance(where, int) or not 0 < where < len(layers):
            raise bad(
                "cut",
                "a place",
                where,
                f"a whole number from 1 to {len(layers) - 1}: this network has {len(layers)} layers",
            )
        else:
            places.append(where)
    if places != sorted(set(places)) or places[-1] >= len(layers):
        raise bad("cut", "at", at, "different layers in the order of the network, and not the last one")
    ends = [0, *places, len(layers)]
    return tuple(nn.Sequential(*[layer for _, layer in layers[a:b]]) for a, b in itertools.pairwise(ends))


def _flat(model: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """List the layers of nested Sequentials in order, by their dotted names."""
    return [
        layer
        for name, child in model.named_children()
        for layer in (
            _flat(child, f"{prefix}{name}.") if isinstance(child, nn.Sequential) else [(prefix + name, child)]
        )
    ]


def _cut_traced(model: nn.Module, at: Sequence[int | str]) -> tuple[nn.Module, ...]:
    """Cut a network with its own forward method by torch.fx."""
    import torch.fx

    try:
        graph = torch.fx.symbolic_trace(model).graph
    except Exception as error:
        raise BadParameter(
            f"cut: this {type(model).__name__} cannot be traced ({error}), so it cannot be cut. Write it as "
            "nn.Sequential, or make the parts yourself."
        ) from None
    nodes = [n for n in graph.nodes if n.op != "output"]
    named = {str(n.target): i for i, n in enumerate(nodes) if n.op == "call_module"}
    ends = []
    for where in at:
        if not isinstance(where, str) or where not in named:
            raise bad(
                "cut",
                "a layer",
                where,
                "the name of a submodule that is used once",
                nearest(str(where), list(named)),
            )
        ends.append(named[where] + 1)
    inputs = [n for n in nodes if n.op == "placeholder"]
    if len(inputs) != 1 or ends != sorted(set(ends)):
        raise bad("cut", "at", tuple(at), "names in the order of the network, of a network with one input")
    parts, crossing = [], inputs[0]
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    for start, end in zip([0, *ends], [*ends, len(nodes)]):
        inside = nodes[start:end]
        last = nodes[end - 1] if end < len(nodes) else result
        needed = {
            a for n in inside for a in n.all_input_nodes if a not in inside and a.op not in ("get_attr",)
        }
        if needed - {crossing}:
            raise BadParameter(
                f"cut: more than one value crosses this cut: {', '.join(sorted(str(n) for n in needed))}. "
                "Cut where a single value is passed on."
            )
        part = torch.fx.Graph()
        copies: dict[Any, Any] = {crossing: part.placeholder("x")}
        for node in inside:
            if node not in copies:
                copies[node] = part.node_copy(node, copies.__getitem__)
        part.output(copies[last])
        parts.append(torch.fx.GraphModule(model, part))
        crossing = last
    return tuple(parts)


def describe(part: nn.Module) -> list[dict[str, Any]]:
    """Return the layers of a part as plain tables: class name and arguments.

    Raises BadParameter for other layers.
    """
    layers = _flat(part) if isinstance(part, nn.Sequential) else [("", part)]
    for name, layer in layers:
        if type(layer) is not KNOWN.get(type(layer).__name__):
            what = f"its layer {name!r}" if name else "it"
            raise BadParameter(
                f"a part of a split network cannot be serialized: {what} is a {type(layer).__name__}. Use "
                f"nn.Sequential of {', '.join(sorted(KNOWN))}. To run any module in another process, give a "
                "module-level function that builds it."
            )
    return [_describe_layer(layer) for _, layer in layers]


def _describe_layer(layer: nn.Module) -> dict[str, Any]:
    table: dict[str, Any] = {"layer": type(layer).__name__}
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        if name in ("self", *IGNORED_ARGUMENTS) or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        value = getattr(layer, name)
        table[name] = (
            value is not None
            if name == "bias" and not isinstance(value, bool)
            else list(value)
            if isinstance(value, tuple)
            else value
        )
    if isinstance(layer, nn.GELU):
        table["approximate"] = layer.approximate
    return table


def build(tables: Sequence[Mapping[str, Any]]) -> nn.Sequential:
    """Build layers from the tables of `describe`.

    The tables are untrusted data: only known layers with plain arguments are built.
    """
    layers = []
    for table in tables:
        kind = KNOWN.get(str(table.get("layer")))
        arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items() if k != "layer"}
        if kind is None or set(arguments) - set(inspect.signature(kind.__init__).parameters):
            raise BadData(
                f"a part contains the unknown layer {dict(table)!r:.120}. Known: {', '.join(sorted(KNOWN))}."
            )
        try:
            layers.append(kind(**arguments))
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadData(f"a part's layer {dict(table)!r:.120} cannot be built: {error}") from None
    return nn.Sequential(*layers)


def width_of(
    part: nn.Module, shape: Sequence[int], what: str, dtype: torch.dtype = torch.float32
) -> tuple[int, ...]:
    """Return the shape of a part's output per row; refuse a part that does not accept this shape."""
    was = part.training
    part.eval()  # keeps batch-norm statistics unchanged
    try:
        with torch.no_grad():
            out = part(torch.zeros((2, *shape), dtype=dtype))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise BadParameter(
            f"splitnn: {what} does not accept rows of shape {tuple(shape)}: {str(error).splitlines()[0]}"
        ) from None
    finally:
        part.train(was)
    if not isinstance(out, Tensor) or len(out) != 2:
        raise BadParameter(f"splitnn: {what} must return one tensor with a row for each input row.")
    return tuple(out.shape[1:])
