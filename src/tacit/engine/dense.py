"""The gradient of a multilayer perceptron, written out for a whole stack of clients.

For small models the overhead of autograd costs more than the arithmetic. The forward and backward pass of
linear layers and ReLU with a loss of `losses.py` over S clients is a dozen batched products, and each
gradient is written directly to its part of the flat vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .losses import Objective

CROSS_ENTROPY = Objective()
AT_ONCE = 4096  # rows of a member at a time: what its layers return then stays in a core's cache
SHORTEST = 8  # rows to which batches are cut: below, the products take no less time


class Slot(NamedTuple):
    """The part of the flat vector that belongs to a parameter or buffer."""

    name: str
    start: int
    stop: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def part(self) -> slice:
        return slice(self.start, self.stop)


class Layer(NamedTuple):
    """The part of the flat vector that belongs to a linear layer, and whether a ReLU follows."""

    weight: slice
    bias: slice | None
    shape: tuple[int, int]
    relu: bool


def parts_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The submodules of a plain nn.Sequential, in order; empty for any other module."""
    if (
        type(module) is not nn.Sequential
        or "forward" in vars(module)
        or any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    ):
        return []
    # named_children() would leave out a ReLU that is used twice
    return [(name, m) for name, m in module._modules.items() if m is not None]


def layers_of(parts: list[tuple[str, nn.Module]], slots: list[Slot]) -> list[Layer] | None:
    """The layers, if the parts are a sequence of Flatten, Linear and ReLU; None otherwise."""
    at = {s.name: s.part for s in slots}
    layers: list[Layer] = []
    for i, m in parts:
        if (
            type(m) is nn.Linear
            and f"{i}.weight" in at
            and m.weight.requires_grad
            and (m.bias is None or m.bias.requires_grad)
        ):
            bias = at[f"{i}.bias"] if m.bias is not None else None
            layers.append(Layer(at[f"{i}.weight"], bias, (m.out_features, m.in_features), False))
        elif type(m) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        elif not (type(m) is nn.Flatten and not layers and m.start_dim == 1 and m.end_dim == -1):
            return None
    return layers if layers and not layers[-1].relu else None


def cover(parts: Iterable[Any], slots: list[Slot]) -> bool:
    """Whether these layers cover the vector exactly once: shared weights would get one layer's gradient
    only.
    """
    slices: list[slice] = [s for part in parts for s in (part.weight, part.bias) if s is not None]
    return slots[-1].stop == sum(int(s.stop - s.start) for s in slices)


def for_one_client(many: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Turn a function of a whole stack, (anything, tensors [S, …]) → [S, …], into a function of one client.

    Under `vmap` it receives the whole stack: an autograd.Function with a vmap rule is torch's public way to
    do so. The function is not differentiable.
    """

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(what: Any, *tensors: Tensor) -> Tensor:
            return many(what, *(t[None] for t in tensors))[0]

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: Any, what: Any, *tensors: Tensor) -> Any:
            stack = (
                t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
                for t, d in zip(tensors, in_dims[1:])
            )
            return many(what, *stack), 0

    return Whole.apply


def gradient(
    layers: list[Layer],
    w: Tensor,
    x: Tensor,
    y: Tensor,
    index: Tensor,
    live: Tensor,
    objective: Objective = CROSS_ENTROPY,
    weights: Tensor | None = None,
    members: int = 1,
) -> Tensor:
    """The gradients of S models w [S, D], each on its own batch of rows, index [S, B] of x and y.

    `weights` are the class weights of the objective as a tensor; its L2 penalty is not in this gradient. A
    model of several members has them one after the other in its vector: a stack of S·M models, M of which
    share a batch.
    """
    if members > 1 and w.device.type == "cpu":
        return _members_in_turn(layers, w, x, y, index, live, objective, weights, members)
    if members > 1:
        w = w.reshape(len(w) * members, -1)
        index, live = index.repeat_interleave(members, 0), live.repeat_interleave(members, 0)
        g = gradient(layers, w, x, y, index, live, objective, weights)
        return g.view(len(w) // members, -1)
    g = torch.empty_like(w, memory_format=torch.contiguous_format)
    # on a CPU four times as fast as x[index]
    rows = x.index_select(0, index.reshape(-1)).view(*index.shape, -1)
    backward(layers, w, rows, y[index], live, g, objective=objective, weights=weights)
    return g


def _members_in_turn(
    layers: list[Layer],
    w: Tensor,
    x: Tensor,
    y: Tensor,
    index: Tensor,
    live: Tensor,
    objective: Objective,
    weights: Tensor | None,
    members: int,
) -> Tensor:
    """The gradient of one member after the other, of clients with about as many rows: the same numbers."""
    g, size = torch.empty_like(w, memory_format=torch.contiguous_format), w.shape[1] // members
    for everyone, length in _of_similar_length(live):
        for who in everyone.split(max(1, AT_ONCE // length)):
            some, there = index[who, :length], live[who, :length]
            rows = x.index_select(0, some.reshape(-1)).view(len(who), length, -1)
            models, target = w[who], y[some]
            own = torch.empty_like(models)
            for start in range(0, w.shape[1], size):
                part = slice(start, start + size)
                backward(
                    layers,
                    models[:, part],
                    rows,
                    target,
                    there,
                    own[:, part],
                    objective=objective,
                    weights=weights,
                )
            g[who] = own
    return g


def _of_similar_length(live: Tensor) -> list[tuple[Tensor, int]]:
    """Return clients by the number of their live rows, and how many rows their batches may be cut to.

    Padding takes as long as rows do, and with M members M times as long. A client's length depends on its own
    rows only, so its gradient does not depend on who else is in the stack.
    """
    everyone, found = torch.arange(len(live)), []
    lengths = (live > 0).sum(1)
    lengths = (2.0 ** lengths.clamp(min=SHORTEST).double().log2().ceil()).long().clamp(max=live.shape[1])
    for length in lengths.unique().tolist():
        found.append((everyone[lengths == length], length))
    return found


def sums_of_models(
    layer: Layer,
    models: Tensor,
    x: Tensor,
    y: Tensor,
    index: Tensor,
    live: Tensor,
    left_out: Tensor,
    objective: Objective,
    weights: Tensor | None,
) -> Tensor:
    """[S, M, D + 1]: of M linear models [S, M, D] of each client, which share a batch of rows, index [S, B].

    The sum of gradients over the `live` rows and, last, that of losses over the rows `left_out`, [S, M, B].
    All models of a client are one product with its rows.
    """
    s, m = models.shape[:2]
    (outputs, inputs), target = layer.shape, y[index].repeat_interleave(m, 0)
    rows = x.index_select(0, index.reshape(-1)).view(*index.shape, -1)
    weight = models[..., layer.weight].reshape(s, m * outputs, inputs)
    out = torch.bmm(rows, weight.mT)
    if layer.bias is not None:
        out = out + models[..., layer.bias].reshape(s, 1, m * outputs)
    out = out.view(*index.shape, m, outputs).transpose(1, 2).reshape(s * m, -1, outputs)
    share = live.reshape(s * m, -1)
    losses = objective.of_rows(out.flatten(0, 1), target.flatten(), weights).view(s, m, -1)
    delta = objective.by_outputs(out, target, share, weights)  # [S·M, B, outputs]
    sums = torch.empty(s, m, models.shape[2] + 1, device=models.device, dtype=models.dtype)
    side_by_side = delta.view(s, m, -1, outputs).transpose(2, 3).reshape(s, m * outputs, -1)
    sums[..., layer.weight] = torch.bmm(side_by_side, rows).view(s, m, -1)
    if layer.bias is not None:
        sums[..., layer.bias] = delta.sum(1).view(s, m, outputs)
    sums[..., -1] = (losses * left_out).sum(-1)
    return sums


def forward(layers: list[Layer], w: Tensor, h: Tensor, inputs: list[Tensor] | None = None) -> Tensor:
    """The outputs of S models w [S, D] for rows h [S, B, …]; the layers' inputs are appended to `inputs`."""
    for layer in layers:
        if inputs is not None:
            inputs.append(h)
        weight = w[:, layer.weight].view(len(w), *layer.shape)
        h = (
            torch.bmm(h, weight.mT)
            if layer.bias is None
            else torch.baddbmm(w[:, None, layer.bias], h, weight.mT)
        )
        h = h.clamp_(min=0) if layer.relu else h
    return h


def backward(
    layers: list[Layer],
    w: Tensor,
    rows: Tensor,
    y: Tensor,
    live: Tensor,
    g: Tensor,
    onward: bool = False,
    objective: Objective = CROSS_ENTROPY,
    weights: Tensor | None = None,
) -> Tensor:
    """Write the gradient of these layers for rows [S, B, …] to g; with `onward`, return that by the rows."""
    s = len(y)
    inputs: list[Tensor] = []
    share = live / live.sum(1, keepdim=True).clamp(min=1)
    delta = objective.by_outputs(forward(layers, w, rows, inputs), y, share, weights)
    for i in reversed(range(len(layers))):
        layer, before = layers[i], inputs[i]
        torch.bmm(delta.mT, before, out=g[:, layer.weight].view(s, *layer.shape))
        if layer.bias is not None:
            torch.sum(delta, 1, out=g[:, layer.bias])
        if i or onward:
            delta = torch.bmm(delta, w[:, layer.weight].view(s, *layer.shape))
            delta = delta * (before > 0) if i and layers[i - 1].relu else delta
    return delta
