"""A network in parts: cut at a layer, what comes together at a cut, and a part written down as data.

`cut` gives a network's parts. `ConcatMerge`, `SumMerge` and `GatedMerge` make one tensor of several holders' activations.
`describe` and `build` turn layers into plain tables and back, so that a part can be saved, or handed to
another process, without any code in it.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadData, BadParameter
from ..parameters import bad, nearest

MERGES = ("concat", "sum", "gated")

# Layers that may be written down: those whose constructor's arguments can be read off a layer that is made.
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
NOT_KEPT = {
    "device",
    "dtype",
    "inplace",
    "_weight",
    "_freeze",
    "approximate",
}  # of no account for what a layer computes, or a start value that is saved anyhow


class ConcatMerge(nn.Module):
    """Activations side by side."""

    def forward(self, values: Sequence[Tensor]) -> Tensor:
        return values[0] if len(values) == 1 else torch.cat(list(values), dim=1)


class SumMerge(nn.Module):
    """Activations added up; all are equally wide."""

    def forward(self, values: Sequence[Tensor]) -> Tensor:
        made = values[0]
        for other in values[1:]:
            made = made + other
        return made


class GatedMerge(nn.Module):
    """Σ_k softmax_k(a)_j · z_kj: for each unit j of the cut, learned shares of the holders that add up to
    one. It starts as their mean.
    """

    def __init__(self, holders: int, width: int):
        super().__init__()
        self.holders, self.width = holders, width
        self.gate = nn.Parameter(torch.zeros(holders, width))

    def forward(self, values: Sequence[Tensor]) -> Tensor:
        return (torch.softmax(self.gate, 0)[:, None] * torch.stack(list(values))).sum(0)


def merger(kind: str, holders: int, width: int) -> nn.Module:
    if kind not in MERGES:
        raise bad("splitnn", "merge", kind, f"one of {', '.join(map(repr, MERGES))}")
    return (
        ConcatMerge()
        if kind == "concat" or holders == 1
        else SumMerge()
        if kind == "sum"
        else GatedMerge(holders, width)
    )


def cut(model: nn.Module, *at: int | str) -> tuple[nn.Module, ...]:
    """The parts of a network, cut after each of these layers: by place (`cut(net, 2)` keeps two layers in the
    first part), or by the name of a submodule (`cut(net, "encoder.1")`).

    A network of nested nn.Sequential is cut as it stands. Any other is traced, and cut where one value alone
    goes on. The parts share the network's weights.
    """
    if not isinstance(model, nn.Module):
        raise bad("cut", "model", type(model).__name__, "a torch.nn.Module")
    if not at:
        raise bad("cut", "at", (), "at least one layer, by its place or its name")
    layers = _flat(model) if isinstance(model, nn.Sequential) else None
    if layers is None:
        return _traced(model, at)
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
    """The layers of nested Sequentials, in order, by their dotted names."""
    made: list[tuple[str, nn.Module]] = []
    for name, child in model.named_children():
        made += (
            _flat(child, f"{prefix}{name}.") if isinstance(child, nn.Sequential) else [(prefix + name, child)]
        )
    return made


def _traced(model: nn.Module, at: Sequence[int | str]) -> tuple[nn.Module, ...]:
    """Cut a network whose forward is code, by torch.fx: the part up to a submodule, and the rest."""
    import torch.fx

    try:
        graph = torch.fx.symbolic_trace(model).graph
    except Exception as error:
        raise BadParameter(
            f"cut: this {type(model).__name__} cannot be traced ({error}), so its parts cannot be told "
            "apart. "
            "Write it as nn.Sequential, or make the parts yourself."
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
                f"cut: more than one value goes over this cut: {', '.join(sorted(str(n) for n in needed))}. "
                "Cut where only one does."
            )
        made = torch.fx.Graph()
        known: dict[Any, Any] = {crossing: made.placeholder("x")}
        for node in inside:
            if node not in known:
                known[node] = made.node_copy(node, known.__getitem__)
        made.output(known[last])
        parts.append(torch.fx.GraphModule(model, made))
        crossing = last
    return tuple(parts)


def describe(part: nn.Module) -> list[dict[str, Any]]:
    """The layers of a part as plain tables: the class's name and its arguments. What cannot be written down
    is refused.
    """
    layers = (
        [("", part)]
        if type(part).__name__ in KNOWN
        else _flat(part)
        if isinstance(part, nn.Sequential)
        else None
    )
    for name, layer in layers or []:
        if type(layer) is not KNOWN.get(type(layer).__name__):
            layers = None
            what = f"its layer {name!r} is a {type(layer).__name__}"
            break
    else:
        what = f"it is a {type(part).__name__}"
    if layers is None:
        raise BadParameter(
            f"a part of a split network cannot be written down: {what}. Use nn.Sequential of "
            f"{', '.join(sorted(KNOWN))}; or, to run any "
            "module in another process, give a function of a module that makes it."
        )
    return [_written(layer) for _, layer in layers]


def _written(layer: nn.Module) -> dict[str, Any]:
    table: dict[str, Any] = {"layer": type(layer).__name__}
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        if name in ("self", *NOT_KEPT) or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
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
    """The reverse of `describe`. The tables are data from a file or a process: nothing but known layers with
    plain arguments comes of them.
    """
    made = []
    for table in tables:
        kind = KNOWN.get(str(table.get("layer")))
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items() if k != "layer"}
        if kind is None or set(given) - set(inspect.signature(kind.__init__).parameters):
            raise BadData(
                f"a part holds the layer {dict(table)!r:.120}, which is not known here. Known: "
                f"{', '.join(sorted(KNOWN))}."
            )
        try:
            made.append(kind(**given))
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadData(f"a part's layer {dict(table)!r:.120} cannot be made: {error}") from None
    return nn.Sequential(*made)


def width_of(
    part: nn.Module, shape: Sequence[int], what: str, dtype: torch.dtype = torch.float32
) -> tuple[int, ...]:
    """The shape of one row of what a part makes of rows of this shape; refused where they do not fit."""
    was = part.training
    part.eval()  # a batch norm must not learn from this
    try:
        with torch.no_grad():
            out = part(torch.zeros((2, *shape), dtype=dtype))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise BadParameter(
            f"splitnn: {what} cannot take rows of shape {tuple(shape)}: {str(error).splitlines()[0]}"
        ) from None
    finally:
        part.train(was)
    if not isinstance(out, Tensor) or len(out) != 2:
        raise BadParameter(f"splitnn: {what} must make one tensor with a row for each row it is given.")
    return tuple(out.shape[1:])
