"""Complete binary trees on shares: all comparisons at once, then the leaves, from the bottom up.

    1. [d] = [x] W + [offsets]             one column for each inner node of each tree, whole numbers
    2. [b] = [d ≥ 0]                       all of them in one batch (`compare.py`); 1: to the right
    3. [v] = [left] + [b]·[right − left]   for the pairs of leaves, then for each level above: depth rounds
    4. the sum of the trees, with 2f fractional bits and no rounding on the way

W chooses each node's column, so which column that is stays hidden, as do thresholds, default directions, sets
of levels and leaves (the weights of the layers below, which their owner masks once). Public are the number of
trees, the depth, the number of whole numbers in a row, and the number of outputs. Every row takes the same
messages, so nothing shows its path.

Two layers of `model.py`: "compare" (1 and 2) and "leaves" (3 and 4), then "truncate", to f fractional bits,
which is left out before an argmax, so that equal outputs stay equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, BadParameter
from .beaver import MATMUL, MUL, MaskedFactor
from .ring import FixedPoint

if TYPE_CHECKING:
    from .context import Context, Share
    from .model import Layer, Weights

# of an argmax: its comparisons take words of 48 bits, and differences of two values
ARGMAX_BITS = 46


def compile_trees(
    nodes: np.ndarray,
    offsets: np.ndarray,
    leaves: np.ndarray,
    outputs: int,
    fixed: FixedPoint,
    *,
    bound: float,
    reveal: str = "logits",
) -> tuple[list[Layer], dict[str, Tensor]]:
    """Return (architecture, weights) of complete trees: W, its offsets, and leaves [trees, 2^depth, values].

    `bound` is the largest magnitude of an output. Of one output, the argmax is whether it is above 0.
    """
    trees, ends, values = leaves.shape
    most = min(fixed.most, 2.0 ** (ARGMAX_BITS - 2 * fixed.fraction) if reveal == "argmax" else fixed.most)
    if bound >= most:
        raise BadParameter(
            f"infer: the model's outputs may reach ±{bound:g}; with {fixed.fraction} fractional bits and "
            f"reveal={reveal!r} they must stay within ±{most:g}. Use fewer fractional bits, or scale the "
            "target before training."
        )
    layers: list[Layer] = [
        {"kind": "compare", "name": "nodes", "shape": list(nodes.shape), "bias": True},
        {
            "kind": "leaves",
            "name": "leaves",
            "shape": [trees, ends // 2, values],
            "bias": True,
            "outputs": outputs,
            "beside_zero": reveal == "argmax" and outputs == 1,
        },
        {"kind": "truncate"},
    ]
    unit = fixed.ulp  # whole numbers are units in the last place
    return layers, {
        "nodes.weight": torch.from_numpy(nodes.astype(np.float64)) * unit,
        "nodes.bias": torch.from_numpy(offsets.astype(np.float64)) * unit * unit,
        "leaves.weight": torch.from_numpy(leaves[:, 1::2] - leaves[:, 0::2]),
        "leaves.bias": torch.from_numpy(leaves[:, 0::2].copy()),
    }


def check_rows(layer: Layer, shape: list[int]) -> None:
    """Refuse inputs that a layer of trees cannot take."""
    if layer["kind"] == "compare" and (len(shape) != 2 or shape[1] != layer["shape"][0]):
        raise BadData(
            f"these trees take rows of {layer['shape'][0]} whole numbers, and get a shape of {shape}. Encode "
            "the rows with the model's own description of its columns."
        )
    if layer["kind"] == "leaves":
        trees, half, _ = layer["shape"]
        if half & (half - 1) or shape[-1] != trees * (2 * half - 1):
            raise BadData(f"{trees} trees of {2 * half} leaves do not have {shape[-1]} inner nodes.")


async def compare(ctx: Context, weights: Weights, layer: Layer, x: Share) -> Share:
    """[x W + offsets ≥ 0], as 0 or 1."""
    factor = weights.factors[layer["name"]]
    product = ctx.product_masked if isinstance(factor, MaskedFactor) else ctx.product_public
    d = await product(x, factor, MATMUL) + weights.biases[layer["name"]]
    return (await ctx.sign(d)).bit


async def add_leaves(ctx: Context, weights: Weights, layer: Layer, bits: Share) -> Share:
    """The outputs, with 2f fractional bits, from all trees' bits in the order of levels."""
    (trees, half, values), rows = layer["shape"], len(bits)
    bits = bits.reshape(rows, trees, 2 * half - 1, 1)
    factor = weights.factors[layer["name"]]
    product = ctx.product_masked if isinstance(factor, MaskedFactor) else ctx.product_public
    lowest = bits[:, :, half - 1 :].expand(rows, trees, half, values)
    y = await product(lowest, factor, MUL) + weights.biases[layer["name"]]
    while half > 1:
        half //= 2
        left, right = y[:, :, 0::2], y[:, :, 1::2]
        level = bits[:, :, half - 1 : 2 * half - 1].expand(rows, trees, half, values)
        y = left + await ctx.product(level, right - left)
    y = y.reshape(rows, -1, layer["outputs"]).sum(1)
    return torch.cat([torch.zeros_like(y), y], -1) if layer["beside_zero"] else y


def encode_rows(keys: np.ndarray, fixed: FixedPoint) -> Tensor:
    """Whole numbers as the programs of `inference.py` take a row: in units in the last place."""
    return torch.from_numpy(keys.astype(np.float64)) * fixed.ulp
