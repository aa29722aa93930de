"""A user's module as layers: torch.fx records what its `forward` does, and branches that are added become the
nodes of a graph.

    {"kind": "graph", "nodes": [{"sum": [0], "layers": […]}, {"sum": [0, 1], "layers": […]}, …]}

Value 0 is the input. Node i adds earlier values ("sum"), or concatenates them ("cat", with "dim"), and
applies its layers to the result, which gives value i + 1; the last one is the output. Supported are the
layers of `model.py`, their functional forms, `+` and `torch.cat`. Data-dependent control flow, other
arithmetic, and views by size are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ..errors import BadParameter

Layer = dict[str, Any]
CAT = {torch.cat, torch.concat, torch.concatenate}
ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    if training:
        raise TypeError("it drops values at random in evaluation mode, too; use training=self.training")
    return nn.Identity()


# functional forms, and the modules they are equivalent to
FORMS: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys(
        (F.relu, torch.relu, F.relu_, torch.relu_, "relu", "relu_"), lambda inplace=False: nn.ReLU()
    ),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid"), nn.Sigmoid),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh"), nn.Tanh),
    F.gelu: lambda approximate="none": nn.GELU(approximate),
    F.silu: lambda inplace=False: nn.SiLU(),
    F.leaky_relu: lambda negative_slope=0.01, inplace=False: nn.LeakyReLU(negative_slope),
    **dict.fromkeys(
        (torch.flatten, "flatten"), lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim)
    ),
    **dict.fromkeys(
        (torch.softmax, F.softmax, "softmax"), lambda dim=None, _stacklevel=3, dtype=None: nn.Softmax(dim)
    ),
    F.dropout: _dropout,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}

HINT = (
    "Your own module may apply the allowed layers and functions such as F.relu and torch.flatten(x, 1), and "
    "add branches with + or join them with torch.cat. "
    "Rewrite the rest in this form, or with nn.Sequential and tacit.mpc.Residual."
)


class _Tracer(fx.Tracer):
    """Treats torch's layers as leaves, and traces into Sequential and the user's modules."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m).forward.__module__.startswith("torch.nn.") and not isinstance(m, nn.Sequential)


def layers(
    module: nn.Module,
    name: str,
    weights: dict[str, Tensor],
    compile: Callable[..., list[Layer]],
    norm: Callable[..., list[Layer]],
    reorder: Callable[[list[Layer]], list[Layer]],
) -> list[Layer]:
    """One graph layer, or a list of layers if nothing branches."""
    label = name or "the model"
    modes = {part: part.training for part in module.modules()}
    module.eval()  # functional dropout and batch norm depend on it
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # torch.fx raises whatever the module's own code raises
        raise BadParameter(
            f"infer: layer {label}, a {type(module).__name__}, cannot be traced: "
            f"{str(error).splitlines()[0] if str(error) else error!r}. {HINT}"
        ) from None
    finally:
        for inner, training in modes.items():  # a part may be in another mode than the whole
            inner.training = training
    parts = dict(module.named_modules())
    nodes: list[Layer] = []
    value: dict[fx.Node, int] = {}
    seen = {node: i for i, node in enumerate(graph.nodes)}
    applied: set[str] = set()  # a layer used twice would need its masked weights under two names

    def refuse(node: fx.Node, why: str) -> BadParameter:
        return BadParameter(
            f"infer: layer {label}, a {type(module).__name__}, {why} ({node.format_node()!s:.120}). {HINT}"
        )

    for node in graph.nodes:
        inputs = [a for a in node.args if isinstance(a, fx.Node)]
        if inputs and _in_place(node, parts) and any(seen[user] > seen[node] for user in inputs[0].users):
            raise refuse(node, "overwrites a value that is used again")
        if node.op == "placeholder":
            if value:
                raise refuse(node, "takes more than one input")
            value[node] = 0
            continue
        if node.op == "output":
            if len(inputs) != 1 or inputs[0] is not node.args[0]:
                raise refuse(node, "returns more than one output")
            if value[inputs[0]] != len(nodes):  # an earlier value, or the input itself
                nodes.append({"sum": [value[inputs[0]]], "layers": []})
            continue
        if node.op in ("call_function", "call_method") and node.target in ADD:
            if len(node.args) != 2 or len(inputs) != 2 or node.kwargs:
                raise refuse(node, "adds something that is not another branch")
            nodes.append({"sum": [value[a] for a in inputs], "layers": []})
            value[node] = len(nodes)
            continue
        if node.op == "call_function" and node.target in CAT:
            parts_of, dim = node.args[0] if node.args else (), node.kwargs.get("dim", 0)
            dim = node.args[1] if len(node.args) > 1 else dim
            if not isinstance(parts_of, list | tuple) or not all(a in value for a in parts_of):
                raise refuse(node, "concatenates something that is not another branch")
            nodes.append({"cat": [value[a] for a in parts_of], "dim": dim, "layers": []})
            value[node] = len(nodes)
            continue
        if not inputs or inputs[0] not in value:
            raise refuse(node, "uses a parameter or a constant directly")
        if len(inputs) > 1 or any(isinstance(a, fx.Node) for a in node.kwargs.values()):
            raise refuse(node, "joins branches by something other than +")
        if node.op == "call_module":
            key = str(node.target)
            child, part = parts[key], f"{name}.{key}" if name else key
            if part in applied and any(True for _ in child.parameters()):
                raise refuse(node, f"applies {key!r} twice")
            applied.add(part)
        else:
            if node.target not in FORMS:
                raise refuse(
                    node,
                    f"calls {getattr(node.target, '__name__', node.target)}, which cannot be evaluated on "
                    "shares",
                )
            try:
                child, part = _to_module(node), f"{name}.{node.name}" if name else node.name
            except TypeError as error:
                raise refuse(node, f"calls {node.name} with unsupported arguments: {error}") from None
        at = value[inputs[0]]
        if (
            at == 0 or at != len(nodes) or len(inputs[0].users) > 1
        ):  # the last value goes on where nobody else needs it
            nodes.append({"sum": [at], "layers": []})
        chain = nodes[-1]["layers"]
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            chain += norm(child, part, weights, chain[-1] if chain else None)
        else:
            chain += compile(child, part, weights)
        value[node] = len(nodes)
    for node_layer in nodes:
        node_layer["layers"] = reorder(node_layer["layers"])
    if len(nodes) == 1 and nodes[0].get("sum") == [0]:
        return list(nodes[0]["layers"])
    return [{"kind": "graph", "nodes": nodes}]


def _to_module(node: fx.Node) -> nn.Module:
    """The module of a functional call: its first argument is the tensor, the others are parameters."""
    return FORMS[node.target](*node.args[1:], **node.kwargs)


def _in_place(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    named = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op == "call_module":
        return bool(getattr(parts[str(node.target)], "inplace", False))
    return named.endswith("_") or node.target is operator.iadd or bool(node.kwargs.get("inplace", False))
