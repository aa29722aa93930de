"""The gradient of a small convolutional network, written out for a whole stack of clients.

A convolution, a ReLU and a 2×2 max pool are one matrix product. Its rows are tiles of the image, two rows
of output high. Its columns are the filters at every position of a tile, ordered by the corner of their
pool, so that the values of a pool are in four adjacent blocks and the output has the layout that the next
layer reads. Autograd would copy the patch of every pixel, transpose the result twice, and store the
position of every maximum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dense import Layer, Slot, backward, cover, forward, layers_of, parts_of
from .layers import CropFlip

WIDE = 160  # outputs in a row of a tile: wider tiles are copied less often and contain more zeros


class Block(NamedTuple):
    """A convolution with its ReLU and pool: its part of the flat vector, its shape and its tiles."""

    weight: slice
    bias: slice | None
    shape: tuple[int, int, int, int]  # filters, channels, side, side
    pad: int  # zeros around the input
    height: int  # of the output, before the pool
    width: int
    tile: int  # columns of output in a tile


@dataclass(frozen=True)
class Network:
    """The layers in order; `front` augments training images."""

    front: CropFlip | None
    blocks: list[Block]
    dense: list[Layer]


def network_of(module: nn.Module, slots: list[Slot], image: torch.Size) -> Network | None:
    """The network, if the module is convolutions with ReLU and pool, then a perceptron; None otherwise."""
    parts, at = parts_of(module), {s.name: s.part for s in slots}
    front = parts[0][1] if parts and type(parts[0][1]) is CropFlip else None
    parts = parts[1:] if front else parts
    blocks: list[Block] = []
    while parts and type(parts[0][1]) is nn.Conv2d:
        block = _block([m for _, m in parts[:3]], parts[0][0], at, image, first=not blocks)
        if block is None:
            return None
        blocks.append(block)
        image, parts = torch.Size((block.shape[0], block.height // 2, block.width // 2)), parts[3:]
    dense = layers_of(parts, slots) if blocks else None
    if not dense or dense[0].shape[1] != image.numel():
        return None
    return Network(front, blocks, dense) if cover((*blocks, *dense), slots) else None


def _block(
    modules: list[nn.Module], name: str, at: dict[str, slice], image: torch.Size, first: bool
) -> Block | None:
    if len(image) != 3 or len(modules) != 3 or f"{name}.weight" not in at:
        return None
    conv, relu, pool = modules
    if (
        type(conv) is not nn.Conv2d
        or type(relu) is not nn.ReLU
        or type(pool) is not nn.MaxPool2d
        or not _plain(conv, pool)
        or conv.in_channels != image[0]
    ):
        return None
    o, k, p = conv.out_channels, conv.kernel_size[0], int(conv.padding[0])
    height, width = (n + 2 * p - k + 1 for n in image[1:])
    if height < 2 or width < 2 or height % 2 or width % 2:
        return None
    fits = [t for t in range(2, width + 1, 2) if width % t == 0 and (t * o <= WIDE or t == 2)]
    # tiles whose gradients are added where they overlap have two columns, or the whole width
    tile = fits[-1] if first or fits[-1] == width else 2
    shape = (o, conv.in_channels, k, k)
    return Block(at[f"{name}.weight"], at.get(f"{name}.bias"), shape, p, height, width, tile)


def _plain(conv: nn.Conv2d, pool: nn.MaxPool2d) -> bool:
    """Whether the filters are odd, square, dense and trainable, and the pools 2×2 without overlap."""
    side, pad = conv.kernel_size, conv.padding
    return (
        side[0] == side[1]
        and side[0] % 2 == 1
        and not isinstance(pad, str)
        and pad[0] == pad[1]
        and conv.padding_mode == "zeros"
        and (conv.stride, conv.dilation, conv.groups) == ((1, 1), (1, 1), 1)
        and all(p.requires_grad for p in conv.parameters())
        and all(v in (2, (2, 2)) for v in (pool.kernel_size, pool.stride))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
        and not pool.return_indices
    )


def gradient(net: Network, w: Tensor, x: Tensor, y: Tensor, live: Tensor) -> Tensor:
    """The gradients of S models w [S, D], each on its own images x [S, B, C, H, W] with labels y [S, B]."""
    (s, b), g = y.shape, torch.empty_like(w, memory_format=torch.contiguous_format)
    passes: list[_BlockPass] = []
    for block in net.blocks:
        passes.append(_BlockPass(block, w, x, first=not passes))
        x = passes[-1].out
    last = net.blocks[-1]
    delta = backward(net.dense, w, x.permute(0, 1, 4, 2, 3).reshape(s, b, -1), y, live, g, onward=True)
    delta = delta.view(s, b, last.shape[0], last.height // 2, last.width // 2).permute(0, 1, 3, 4, 2)
    for one in reversed(passes):
        delta = one.back(delta, g)
    return g


def predict(net: Network, w: Tensor, x: Tensor) -> Tensor:
    """[R, N, outputs]: the outputs of R models w [R, D], each on all of x [N, C, H, W]."""
    x = x[None]
    for i, block in enumerate(net.blocks):
        x = _BlockPass(block, w, x, first=not i).out
    return forward(net.dense, w, x.permute(0, 1, 4, 2, 3).reshape(*x.shape[:2], -1))


class _BlockPass:
    """The forward pass of a block, with what its backward pass needs.

    Images are [S, B, C, H, W] in the first block and [S, B, H, W, C] in the others.
    """

    def __init__(self, block: Block, w: Tensor, x: Tensor, first: bool):
        self.block, self.first, o = block, first, block.shape[0]
        s, b, self.tiles, self.bands = len(w), x.shape[1], _tiles(block, x, first), _bands(block, w, first)
        z = torch.bmm(self.tiles.expand(s, -1, -1), self.bands)
        z = z.view(s, z.shape[1], 4, -1)  # [S, tiles, corners of a pool, half a tile's row · filters]
        upper, lower = torch.maximum(z[:, :, 0], z[:, :, 1]), torch.maximum(z[:, :, 2], z[:, :, 3])
        right, below = (
            (z[:, :, 0] < z[:, :, 1]).view(torch.uint8),
            (z[:, :, 2] < z[:, :, 3]).view(torch.uint8).add_(2),
        )
        # the corner of the maximum; of equal values the first, as in torch's pool
        self.which = torch.where(upper < lower, below, right)
        # the bias is the same for all four corners and ReLU is monotone, so both can come after the pool
        out = torch.maximum(upper, lower).view(s, -1, o)
        out = out if block.bias is None else out.add_(w[:, None, block.bias])
        self.out = out.clamp_(min=0).view(s, b, block.height // 2, block.width // 2, o)

    def back(self, delta: Tensor, g: Tensor) -> Tensor:
        """The gradient by the input, from that by the output [S, B, H, W, filters]; that of the filters to
        g.
        """
        (o, c, k, _), block, s = self.block.shape, self.block, len(g)
        # `out` makes the result contiguous, which `delta` may not be
        delta = torch.mul(delta, self.out > 0, out=torch.empty_like(self.out))
        if block.bias is not None:
            torch.sum(delta.view(s, -1, o), 1, out=g[:, block.bias])
        corner = torch.arange(4, dtype=torch.uint8, device=g.device)[:, None]
        dz = delta.view(self.which.shape)[:, :, None] * (self.which[:, :, None] == corner)
        dz = dz.view(s, self.which.shape[1], -1)
        by_band = torch.bmm(self.tiles.mT, dz)
        total = torch.stack([view.sum(4) for view in _corners(block, by_band, self.first)]).sum(0)
        g[:, block.weight].view(s, o, c, k, k).copy_(total.permute(0, 4, 3, 1, 2))
        return delta if self.first else _add_tiles(block, torch.bmm(dz, self.bands.mT), self.out.shape[1])


def _tiles(block: Block, x: Tensor, first: bool) -> Tensor:
    """[S, B · tiles, inputs of a tile]; tiles overlap by the filter size minus one."""
    (_, c, k, _), p, t = block.shape, block.pad, block.tile
    if p:
        x = F.pad(x, (p, p, p, p) if first else (0, 0, p, p, p, p))
    x = x.contiguous()
    by = dict(zip("sbchw" if first else "sbhwc", x.stride()))
    size = {
        "s": len(x),
        "b": x.shape[1],
        "i": block.height // 2,
        "j": block.width // t,
        "c": c,
        "h": k + 1,
        "w": t + k - 1,
    }
    by |= {"i": 2 * by["h"], "j": t * by["w"]}
    order = "sbijchw" if first else "sbijhwc"
    view = x.as_strided([size[d] for d in order], [by[d] for d in order])
    return view.reshape(len(x), -1, c * (k + 1) * (t + k - 1))


def _bands(block: Block, w: Tensor, first: bool) -> Tensor:
    """[S, inputs of a tile, its outputs]: every filter at every position of a tile, with zeros elsewhere."""
    (o, c, k, _), t = block.shape, block.tile
    bands = w.new_zeros(len(w), c * (k + 1) * (t + k - 1), 2 * t * o)
    filters = w[:, block.weight].view(len(w), o, c, k, k).permute(0, 3, 4, 2, 1)[:, :, :, :, None]
    for view in _corners(block, bands, first):
        view.copy_(filters.expand_as(view))
    return bands


def _corners(block: Block, bands: Tensor, first: bool) -> Iterator[Tensor]:
    """For each corner of a pool a view of `bands`: [S, rows, columns, channels, positions, filters]."""
    (o, c, k, _), t, n = block.shape, block.tile, bands.shape[2]
    across = t + k - 1
    channel, row, column = (across * (k + 1), across, 1) if first else (1, across * c, c)
    for down in (0, 1):
        for right in (0, 1):
            begin = (down * row + right * column) * n + (2 * down + right) * (t // 2) * o
            yield bands.as_strided(
                (len(bands), k, k, c, t // 2, o),
                (bands.stride(0), row * n, column * n, channel * n, 2 * column * n + o, 1),
                begin,
            )


def _add_tiles(block: Block, parts: Tensor, b: int) -> Tensor:
    """The adjoint of `_tiles`: [S, B, H, W, C], with tiles added where they overlap."""
    (_, c, k, _), p, s = block.shape, block.pad, len(parts)
    i, m, height, width = block.height // 2, (k + 1) // 2, block.height + k - 1, block.width + k - 1
    if block.tile == block.width:
        parts, whole = (
            parts.view(s, b, i, m, 2 * width * c),
            parts.new_zeros(s, b, height // 2, 2 * width * c),
        )
        for down in range(m):
            whole[:, :, down : down + i] += parts[:, :, :, down]
    else:
        j = block.width // 2
        parts, whole = (
            parts.view(s, b, i, j, m, 2, m, 2 * c),
            parts.new_zeros(s, b, height // 2, 2, width // 2, 2 * c),
        )
        for down in range(m):
            for right in range(m):
                whole[:, :, down : down + i, :, right : right + j] += parts[
                    :, :, :, :, down, :, right
                ].transpose(3, 4)
    return whole.view(s, b, height, width, c)[:, :, p : height - p, p : width - p]
