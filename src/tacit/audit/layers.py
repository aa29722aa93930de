"""Gradient inversion layer by layer: one row of a convolutional network, from its last layers to the first.

After J. Zhu, M. Blaschko: "R-GAP: Recursive Gradient Attack on Privacy", ICLR 2021. As there, a layer whose
activation can be inverted is solved as linear equations; others by a search, so that pooling and ReLU are
allowed.

1. The first linear layer shows its own input: ∂L/∂W_i = δ_i·x and ∂L/∂b_i = δ_i, hence x.
2. The gradient with respect to that input is Wᵀδ.
3. A convolution before it has a known output f (after activation and pooling), a known gradient d with
   respect to f, and a known gradient of its weights: the correlation of its input z with d, sent back through
   pooling and activation. Without a pool, and with sigmoids, tanh or leaky ReLU, both are linear in z, which
   is their least-squares solution. Otherwise z is searched so that both agree, f first on average within each
   pool, later exactly.
4. The gradient with respect to z follows from z, and the layer before is next.

Each step has one convolution and its pooling only, where matching the gradients of the whole network has
all of them at once. It applies to one row and one local step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from .inversion import gradient_of, total_variation

ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus)
RANGES: dict[type, tuple[float | None, float | None]] = {
    nn.ReLU: (0.0, None),
    nn.Sigmoid: (0.0, 1.0),
    nn.Tanh: (-1.0, 1.0),
    nn.Softplus: (0.0, None),
}
# how much gradients count beside outputs: the first where they alone determine the input. Chosen on the first
# two images of CIFAR-10 and McMahan's CNN.
WEIGHTS = (3.0, 0.2)
SMOOTH = 0.2  # weight of total variation, in the first half of the search for the row itself
START = 0.1  # of hidden activations
# what gradients count beside outputs in linear equations: inverted activations are less exact.
# Chosen on the first two images of CIFAR-10 and DLG's LeNet.
EQUATIONS = 10.0
MOST_UNKNOWNS = 4096  # of a system of equations: 128 MB for as many equations; a search beyond

Watch = Callable[[int, int], bool | None]


class Block(NamedTuple):
    """A convolution, and the activations and pools after it."""

    conv: nn.Conv2d
    after: tuple[nn.Module, ...]

    def output(self, before: Tensor, average: float = 0.0) -> Tensor:
        """After pooling; `average` is the part of a max pool that is replaced by the mean."""
        for layer in self.after:
            pooled = layer(before)
            if average > 0 and isinstance(layer, nn.MaxPool2d):
                mean = F.avg_pool2d(before, layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode)
                pooled = average * mean + (1 - average) * pooled
            before = pooled
        return before

    def invert(self, f: Tensor) -> Tensor | None:
        """Return the convolution's output, if the activation after it has an inverse and there is no pool."""
        if not self.after:
            return f
        (activation, *more) = self.after
        if more:
            return None
        if isinstance(activation, nn.Sigmoid):
            return torch.logit(f, eps=1e-12)  # saturated ones are as far away as their rounding allows
        if isinstance(activation, nn.Tanh):
            return torch.atanh(f.clamp(-1 + 1e-12, 1 - 1e-12))
        if isinstance(activation, nn.LeakyReLU) and activation.negative_slope > 0:
            return torch.where(f >= 0, f, f / activation.negative_slope)
        return None

    def range(self) -> tuple[float | None, float | None]:
        """The range of its outputs; None where it has no end."""
        last = next((layer for layer in reversed(self.after) if isinstance(layer, ACTIVATIONS)), None)
        return RANGES.get(type(last), (None, None))


def read_blocks(module: nn.Module) -> tuple[list[Block], nn.Linear] | None:
    """The blocks of a network and the linear layer after them; None if it is built in another way."""
    blocks: list[Block] = []
    for layer in _flat(module):
        if isinstance(layer, nn.Conv2d):
            plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
            if not plain or isinstance(layer.padding, str):
                return None
            blocks.append(Block(layer, ()))
        elif isinstance(layer, nn.Linear):
            return (blocks, layer) if blocks and layer.bias is not None else None
        elif isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d, *ACTIVATIONS)) and blocks:
            if isinstance(layer, nn.MaxPool2d) and layer.dilation not in (1, (1, 1)):
                return None
            blocks[-1] = blocks[-1]._replace(after=(*blocks[-1].after, layer))
        elif not isinstance(layer, nn.Flatten | nn.Identity | nn.Dropout | nn.Dropout2d):
            return None
    return None


def _flat(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.Sequential):
        return [inner for layer in module for inner in _flat(layer)]
    return [module]


def invert_layers(
    module: nn.Module,
    observed: Sequence[Tensor],
    shape: Sequence[int],
    *,
    steps: int = 1000,
    bounds: tuple[float, float] | None = None,
    seed: int | None = None,
    watch: Watch | None = None,
) -> Tensor | None:
    """[1, …]: the row that made this gradient; None if the network or the gradient does not allow it.

    `steps` are those of each layer. With a seed, the search begins at random values.
    """
    read = read_blocks(module)
    if read is None:
        return None
    blocks, linear = read
    with torch.no_grad():
        inputs, outputs = [torch.zeros(1, *shape)], []
        for block in blocks:
            outputs.append(block.output(block.conv(inputs[-1])))
            inputs.append(outputs[-1])
    if outputs[-1].numel() != linear.in_features:
        return None
    weight, bias = (gradient_of(module, observed, p) for p in (linear.weight, linear.bias))
    if not float(bias.square().sum()) > 0:
        return None
    exact = bias.double()
    known = (weight * exact[:, None]).sum(0) / exact.square().sum()
    f = known.view_as(outputs[-1]).double()
    d = (bias.double() @ linear.weight.detach().double()).view_as(outputs[-1])
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    for k in reversed(range(len(blocks))):
        block, is_row = blocks[k], k == 0
        low, high = (bounds or (None, None)) if is_row else blocks[k - 1].range()
        gradient = gradient_of(module, observed, block.conv.weight)
        before = block.invert(f) if inputs[k].numel() <= MOST_UNKNOWNS else None
        if before is not None:
            f, d = _solve(block, before, d, gradient, inputs[k].shape, (low, high))
            if watch is not None:  # whoever wants to stop can do so in the next search
                watch((len(blocks) - k) * steps, len(blocks) * steps)
            continue
        span = 1.0 if bounds is None else bounds[1] - bounds[0]
        begin = torch.full_like(inputs[k], START * span)
        if is_row and bounds is not None:
            begin = torch.full_like(inputs[k], sum(bounds) / 2)
        if generator is not None:
            begin = begin * 2 * torch.rand(begin.shape, generator=generator)
        z = _search(
            block,
            f.float(),
            d.float(),
            gradient,
            begin,
            (low, high),
            steps=steps,
            lr=(0.05 if is_row else 0.02) * span,
            smooth=SMOOTH / span if is_row else 0.0,
            watch=None if watch is None else _part(watch, len(blocks) - 1 - k, len(blocks)),
        )
        if not is_row:
            at = z.clone().requires_grad_()
            (back,) = torch.autograd.grad((block.output(block.conv(at)) * d.float()).sum(), at)
            d = back.double()
        f = z.double()
    return f.float()


def _part(watch: Watch, done: int, parts: int) -> Watch:
    return lambda step, steps: watch(done * steps + step, parts * steps)


def _solve(
    block: Block,
    before: Tensor,
    d: Tensor,
    gradient: Tensor,
    shape: torch.Size,
    limits: tuple[float | None, float | None],
) -> tuple[Tensor, Tensor]:
    """Return the input of a convolution with this output and gradient of its weights, and d before it.

    Least squares over both, in float64. The gradient of filter o and channel c is the correlation of that
    channel with d_o, so its equations are the same numbers for each channel.
    """
    conv = block.conv
    assert not isinstance(conv.padding, str)  # read_blocks takes none
    w, bias = conv.weight.detach().double(), conv.bias
    at = before.clone().requires_grad_()
    (back,) = torch.autograd.grad((block.output(at) * d).sum(), at)
    target = before if bias is None else before - bias.detach().double()[None, :, None, None]
    channels, pixels = shape[1], shape[2] * shape[3]
    unit = torch.eye(channels * pixels, dtype=torch.float64).view(-1, *shape[1:])
    outputs = F.conv2d(unit, w, None, conv.stride, conv.padding).reshape(len(unit), -1).T
    one = torch.eye(pixels, dtype=torch.float64).view(-1, 1, *shape[2:])
    places = F.unfold(one, w.shape[2:], padding=conv.padding, stride=conv.stride)
    each = torch.einsum("nkl,ol->okn", places, back.reshape(len(w), -1)).reshape(-1, pixels)
    gradients = torch.block_diag(*[each] * channels)
    by_channel = gradient.double().transpose(0, 1).reshape(-1)  # channel, filter, place in the filter
    first = 1 / (outputs.norm(dim=1).mean() + 1e-300)
    second = EQUATIONS / (each.norm(dim=1).mean() + 1e-300)
    left = torch.cat([outputs * first, gradients * second])
    right = torch.cat([target.reshape(-1) * first, by_channel * second])
    z = torch.linalg.lstsq(left, right[:, None], driver="gelsy").solution.view(shape)
    if limits != (None, None):
        z = z.clamp(*limits)
    at = z.clone().requires_grad_()
    (d,) = torch.autograd.grad((F.conv2d(at, w, None, conv.stride, conv.padding) * back).sum(), at)
    return z, d


def _search(
    block: Block,
    f: Tensor,
    d: Tensor,
    gradient: Tensor,
    start: Tensor,
    limits: tuple[float | None, float | None],
    *,
    steps: int,
    lr: float,
    smooth: float,
    watch: Watch | None,
) -> Tensor:
    """The input of a block with this output f and this gradient of its weights, if that of f is d.

    Both distances are sums of absolute values (of gradients: of norms by filter), so that most outputs agree
    exactly and the few whose pool is not yet right do not spoil the rest.
    """
    conv = block.conv
    enough = gradient.shape[0] * gradient[0, 0].numel() >= start[0, 0].numel()
    weight = WEIGHTS[0] if enough else WEIGHTS[1]
    tiny = 1e-12 * gradient.square().sum() + 1e-30
    norm, size = gradient.square().sum((1, 2, 3)).sqrt().sum() + 1e-30, f.abs().sum() + 1e-30
    z = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([z], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, at_best = float("inf"), start
    for step in range(steps):
        average = max(0.0, 1 - 2 * step / steps)
        before = conv(z)
        sharp = block.output(before)
        (back,) = torch.autograd.grad((sharp * d).sum(), before, retain_graph=True)
        found = conv2d_weight(z, conv.weight.shape, back.detach(), stride=conv.stride, padding=conv.padding)
        by_filter = ((found - gradient).square().sum((1, 2, 3)) + tiny).sqrt().sum() / norm
        near = sharp if average == 0 else block.output(before, average)
        distance = (near - f).abs().sum() / size + weight * by_filter
        if average == 0 and (value := float(distance.detach())) < best:
            best, at_best = value, z.detach().clone()
        z.grad = torch.autograd.grad(distance + smooth * average * total_variation(z), z)[0]
        optimizer.step()
        schedule.step()
        if limits != (None, None):
            z.data.clamp_(*limits)
        if watch is not None and watch(step + 1, steps):
            return z.detach() if best == float("inf") else at_best
    return at_best
