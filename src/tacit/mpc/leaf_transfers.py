"""Scores of rows by trees whose splits belong to different parties, without a helper: what `leaf_scores.py`
does, by oblivious transfers.

    earlier party (its share x of each row and term)             holder (its condition f of each, 0 or 1)
      |<-- Extended(transfers that choose f) ------------------------|
      |--- Correlations(x + p0 − p1) ------------------------------->|   p0, p1: pads; the holder has p_f
      |  share: −p0                                                  |  share: p0 + f x

N. Gilboa, "Two Party RSA Key Generation", 1999, with a bit for one factor. The label holder begins with the
values of leaves as its share of all terms. Holder after holder multiplies by its conditions, each time with
all parties before it. Shares are then summed over terms, and sent to the receiver.

Learns: the receiver the scores. Nobody which leaf a row reaches, or on which side of a split it is, beyond
what the scores imply. Semi-honest parties; the assumptions of `extension.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .extension import OTChannel
from .leaf_scores import FRACTION, ROWS, TERMS, split_rows


class LeafShare(Message, reveals="with the others': the scores, summed over leaves; alone: uniform words"):
    values: Tensor


class LeafSize(Message, reveals="how many rows are scored, and how many conditions the trees have"):
    rows: int
    terms: int


async def add_leaves(
    me: Party,
    names: Sequence[str],
    receiver: str,
    own: Tensor,
    outputs: Sequence[int],
    base: float = 0.0,
) -> Tensor | None:
    """The scores (rows × outputs, float64) at the receiver; None elsewhere.

    `names`: the label holder first; `own`: my factor, rows × terms words, 0 or 1 unless I am the label
    holder; `outputs`: of each term, the output it adds to; `base`: at one party, what is added to all scores.
    """
    rank, (rows, terms) = names.index(me.name), own.shape
    if not 0 < rows <= ROWS or not 0 <= terms <= TERMS:
        raise ProtocolError(f"{rows} rows of {terms} terms cannot be scored.")
    others = [n for n in names if n != me.name]
    await me.send(others, LeafSize(rows, terms))
    for name, size in (await me.gather(others, LeafSize)).items():
        if (size.rows, size.terms) != (rows, terms):
            raise ProtocolError(
                f"{name!r} scores {size.rows} rows of {size.terms} terms, and {me.name!r} {rows} of {terms}. "
                "All parties need their parts of the same model."
            )
    channels = {
        n: OTChannel(me, int(k < rank), tuple(sorted((me.name, n), key=names.index)))
        for k, n in enumerate(names)
        if n != me.name
    }
    count, places = max(outputs, default=0) + 1, torch.tensor(list(outputs), dtype=torch.int64)
    found = []
    for start, stop in split_rows(rows, terms):
        share = own[start:stop].reshape(-1).numpy().view(np.uint64)
        product = await _multiply(channels, names, rank, share)
        sums = torch.zeros(stop - start, count, dtype=torch.int64)
        sums.index_add_(1, places, torch.from_numpy(product.view(np.int64)).reshape(stop - start, terms))
        found.append(sums)
    total = torch.cat(found)
    if base:
        total = total + round(base * 2.0**FRACTION)
    if me.name != receiver:
        await me.send(receiver, LeafShare(total))
        return None
    for name, message in (await me.gather(others, LeafShare)).items():
        if message.values.shape != total.shape or message.values.dtype is not torch.int64:
            raise ProtocolError(
                f"{name!r} sent scores of shape {tuple(message.values.shape)}; expected {tuple(total.shape)}."
            )
        total = total + message.values
    return total.double() / 2.0**FRACTION


async def _multiply(
    channels: dict[str, OTChannel], names: Sequence[str], rank: int, own: np.ndarray
) -> np.ndarray:
    """My share of the products of all factors, word by word modulo 2^64."""
    size = -(-len(own) // 8)
    share = own if rank == 0 else np.zeros_like(own)
    if rank:  # multiply what those before me have by my conditions
        bits = np.packbits(own.astype(bool), bitorder="little")
        for name in names[:rank]:
            pads = (await channels[name].choose(bits, 1))[: len(own), 0]
            message = await channels[name].receive_correlations(8 * len(own))
            share = share + pads + own * np.frombuffer(message, np.uint64)
    for name in names[rank + 1 :]:  # and let those after me multiply what I have
        zero, one = (p[: len(own), 0] for p in await channels[name].extend(size, 1))
        await channels[name].send_correlations((share + zero - one).tobytes())
        share = np.negative(zero)
    return share
