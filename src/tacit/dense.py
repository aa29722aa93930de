"""The gradient of a perceptron, written out for a whole stack of clients.

For small models a step costs more in bookkeeping than in arithmetic. Linear layers and ReLU under cross-entropy need no autograd: their
forward and backward pass over S clients is a dozen batched products, and each gradient is written straight into its place in the vector.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Layer(NamedTuple):
    """One linear layer's place in the flat vector, and whether a ReLU follows."""

    weight: slice
    bias: slice | None
    shape: tuple[int, int]
    relu: bool


def layers_of(module: nn.Module, slots: list[Any]) -> list[Layer] | None:
    """The layers, if the module is Flatten, Linear and ReLU in sequence and nothing else; None otherwise."""
    if type(module) is not nn.Sequential or "forward" in vars(module) or any(m._forward_hooks or m._forward_pre_hooks for m in module.modules()):
        return None
    at = {s.name: s for s in slots}
    layers: list[Layer] = []
    for i, m in module._modules.items():  # named_children() would leave out a ReLU that stands twice
        if type(m) is nn.Linear and f"{i}.weight" in at and m.weight.requires_grad and (m.bias is None or m.bias.requires_grad):
            w = at[f"{i}.weight"]
            b = at[f"{i}.bias"] if m.bias is not None else None
            layers.append(Layer(slice(w.start, w.stop), None if b is None else slice(b.start, b.stop), (m.out_features, m.in_features), False))
        elif type(m) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        elif not (type(m) is nn.Flatten and not layers and m.start_dim == 1 and m.end_dim == -1):
            return None
    covered = sum((la.weight.stop - la.weight.start) + (la.bias.stop - la.bias.start if la.bias else 0) for la in layers)
    return layers if layers and not layers[-1].relu and covered == sum(s.stop - s.start for s in slots) else None  # shared weights: no


class DenseGradient(torch.autograd.Function):
    """The gradient of each client's mean cross-entropy over its live rows. `vmap` hands over the stack."""

    @staticmethod
    def forward(task: Any, w: Tensor, index: Tensor, live: Tensor) -> Tensor:
        return gradient(task.dense, w[None], task.x, task.y, index[None], live[None])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, task: Any, w: Tensor, index: Tensor, live: Tensor) -> Any:
        stack = [t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip((w, index, live), in_dims[1:])]
        return gradient(task.dense, stack[0], task.x, task.y, stack[1], stack[2]), 0


def gradient(layers: list[Layer], w: Tensor, x: Tensor, y: Tensor, index: Tensor, live: Tensor) -> Tensor:
    """Of S models w [S, D], each on its own batch of rows, index [S, B] of x and y."""
    s, b = index.shape
    inputs, h = [], x.index_select(0, index.reshape(-1)).view(s, b, -1)  # four times faster on a CPU than x[index]
    y = y[index]
    for layer in layers:
        inputs.append(h)
        weight = w[:, layer.weight].view(s, *layer.shape)
        h = torch.bmm(h, weight.mT) if layer.bias is None else torch.baddbmm(w[:, None, layer.bias], h, weight.mT)
        if layer.relu:
            h = h.clamp_(min=0)
    delta = torch.softmax(h, -1)  # dℓ/dlogits = softmax − one-hot, weighted by the row's share of the mean
    delta.scatter_add_(-1, y[..., None], torch.full((), -1.0, device=w.device, dtype=delta.dtype).expand(s, b, 1))
    delta *= (live / live.sum(1, keepdim=True).clamp(min=1))[..., None]
    g = torch.empty(s, w.shape[1], device=w.device, dtype=w.dtype)
    for i in reversed(range(len(layers))):
        layer, before = layers[i], inputs[i]
        torch.bmm(delta.mT, before, out=g[:, layer.weight].view(s, *layer.shape))
        if layer.bias is not None:
            torch.sum(delta, 1, out=g[:, layer.bias])
        if i:
            delta = torch.bmm(delta, w[:, layer.weight].view(s, *layer.shape))
            delta = delta * (before > 0) if layers[i - 1].relu else delta
    return g
