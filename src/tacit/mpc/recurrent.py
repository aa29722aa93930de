"""LSTM and GRU on shares: the input's products for all steps at once, then one step after the other.

Hochreiter, Schmidhuber: Long Short-Term Memory, Neural Computation 1997; Cho et al.: Learning Phrase
Representations using RNN Encoder-Decoder for Statistical Machine Translation, EMNLP 2014; gates in torch's
order. All gates of a step are one call of the sigmoid, since tanh(x) = 2σ(2x) − 1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import torch

from . import functions
from .context import Context, Share

Layer = dict[str, Any]
Apply = Callable[[Context, Layer, Any, Share], Awaitable[Share]]


async def lstm(
    ctx: Context, x: Share, wide: Layer, deep: Layer, weights: Any, apply: Apply, reverse: bool
) -> Share:
    """[rows, steps, inputs] → hidden states and, behind them, cell states: [rows, steps, 2 · hidden].

    i, f, o = σ(xW + hU + b),  g = tanh(…),  c ← f·c + i·g,  h = o·tanh(c)
    """
    from_input = await apply(ctx, wide, weights, x)
    size = deep["shape"][0]
    h = c = torch.zeros_like(from_input[:, 0, :size])
    states: list[Share] = []
    for t in _order(from_input.shape[1], reverse):
        gates = from_input[:, t] + await apply(ctx, deep, weights, h)
        i, f, g, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
        s = await functions.sigmoid(ctx, torch.cat([i, f, o, 2 * g], -1))
        i, f, o, g = (s[:, k * size : (k + 1) * size] for k in range(4))
        g = functions.add_scalar(ctx, 2 * g, -1.0)
        both = await ctx.product(torch.cat([f, i], -1), torch.cat([c, g], -1))
        c = await ctx.truncate(both[:, :size] + both[:, size:])
        h = await functions.mul(ctx, o, await functions.tanh(ctx, c))
        states.append(torch.cat([h, c], -1))
    return torch.stack(states[::-1] if reverse else states, 1)


async def gru(
    ctx: Context, x: Share, wide: Layer, deep: Layer, weights: Any, apply: Apply, reverse: bool
) -> Share:
    """[rows, steps, inputs] → hidden states [rows, steps, hidden].

    r, z = σ(xW + hU + b),  n = tanh(xW + b + r·(hU + b)),  h ← n + z·(h − n)
    """
    from_input = await apply(ctx, wide, weights, x)
    size = deep["shape"][0]
    h = torch.zeros_like(from_input[:, 0, :size])
    states: list[Share] = []
    for t in _order(from_input.shape[1], reverse):
        own, from_state = from_input[:, t], await apply(ctx, deep, weights, h)
        gates = await functions.sigmoid(ctx, own[:, : 2 * size] + from_state[:, : 2 * size])
        r, z = gates[:, :size], gates[:, size:]
        n = await functions.tanh(
            ctx, own[:, 2 * size :] + await functions.mul(ctx, r, from_state[:, 2 * size :])
        )
        h = n + await functions.mul(ctx, z, h - n)
        states.append(h)
    return torch.stack(states[::-1] if reverse else states, 1)


def _order(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)
