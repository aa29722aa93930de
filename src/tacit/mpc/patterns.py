"""Patterns of an exported graph that have a function of their own on shares: x/√(mean of x² + ε), which Llama
and others write out, and the approximate GELU of GPT-2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

ATEN = torch.ops.aten


def rms_norm_of(x: Tensor, eps: float) -> Tensor:
    """x / √(mean of x² along the last dimension + ε)."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def gelu_of(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def simplify(graph: fx.Graph) -> None:
    """Replace the patterns, and leave out casts between types of real numbers."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _is(node, ATEN.to) or _is(node, ATEN._to_copy):
            value, source = node.meta.get("val"), node.args[0]
            if (
                isinstance(source, fx.Node)
                and isinstance(value, Tensor)
                and value.is_floating_point()
                and source.meta["val"].is_floating_point()
            ):
                node.replace_all_uses_with(source)
        elif _is(node, ATEN.mul):
            found = _rms(node)
            if found is not None:
                _replace(graph, node, rms_norm_of, found)
            elif (x := _gelu(node)) is not None:
                _replace(graph, node, gelu_of, (x,))
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)


def _replace(graph: fx.Graph, node: fx.Node, function: Any, args: tuple[Any, ...]) -> None:
    with graph.inserting_after(node):
        new = graph.call_function(function, args)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new, propagate_meta=False)


def _is(node: Any, packet: Any) -> bool:
    return isinstance(node, fx.Node) and getattr(node.target, "overloadpacket", None) is packet


def _both(node: fx.Node) -> list[tuple[Any, Any]]:
    a, b = node.args[:2]
    return [(a, b), (b, a)]


def _rms(node: fx.Node) -> tuple[fx.Node, float] | None:
    for x, root in _both(node):
        if not _is(root, ATEN.rsqrt) or not _is(root.args[0], ATEN.add):
            continue
        mean, eps = root.args[0].args[:2]
        if not isinstance(eps, float) or not _is(mean, ATEN.mean) or mean.args[1:] != ([-1], True):
            continue
        square = mean.args[0]
        if (_is(square, ATEN.pow) and square.args == (x, 2)) or (
            _is(square, ATEN.mul) and square.args == (x, x)
        ):
            return x, eps
    return None


def _gelu(node: fx.Node) -> fx.Node | None:
    """½x · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    for half, tail in _both(node):
        if not _is(half, ATEN.mul) or half.args[1] != 0.5 or not _is(tail, ATEN.add) or tail.args[1] != 1.0:
            continue
        x, tanh = half.args[0], tail.args[0]
        if not _is(tanh, ATEN.tanh) or not _is(tanh.args[0], ATEN.mul):
            continue
        inner, factor = tanh.args[0].args
        if not isinstance(factor, float) or abs(factor - 0.7978845608) > 1e-6 or not _is(inner, ATEN.add):
            continue
        for a, b in _both(inner):
            if (
                a is x
                and _is(b, ATEN.mul)
                and isinstance(b.args[1], float)
                and abs(b.args[1] - 0.044715) < 1e-7
            ):
                cube = b.args[0]
                if _is(cube, ATEN.pow) and cube.args[0] is x and cube.args[1] == 3:
                    return x  # type: ignore[no-any-return]
    return None
