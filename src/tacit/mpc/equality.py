"""Whether two parties' private words are equal, as a shared bit.

Party 0 has words a, party 1 words b, of k bits each. The bits of ¬(a ⊕ b) are shared by exclusive or without
a message: ¬a and b. Their conjunction is a tree of AND gates (Goldreich, Micali, Wigderson: How to Play Any
Mental Game, STOC 1987), each with a triple from the dealer (Beaver 1991):

    1. the dealer gives ⟨u⟩, ⟨v⟩, ⟨u·v⟩ for each gate, and a random bit ⟨β⟩ also as [β]
    2. ⌈log₂ k⌉ times: open d = x ⊕ u and e = y ⊕ v;  ⟨x·y⟩ = ⟨u·v⟩ ⊕ d·⟨v⟩ ⊕ e·⟨u⟩ ⊕ d·e
    3. open t = ⟨all⟩ ⊕ β, one random bit.  [a = b] = t + (1 − 2t)[β]

    party 0 |<-- MaskedBits, ⌈log₂ k⌉ times -->| party 1      (2k − 1)/8 bytes per word and party;
            |<-- MaskedSigns(t) -------------->|              the dealer sends (k − 1)/8 + 8 to the last

A word that is shared by addition is compared with a public number g in the same way: x_0 + x_1 = g exactly
where x_0 − g = −x_1.

Learns: neither party anything; it sees uniform bits. Semi-honest parties; the dealer colludes with neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .compare import MaskedBits, MaskedSigns
from .context import RingContext
from .dealer import Request, Values
from .ring import WORD, pack, shift, unpack
from .tape import Parts


@dataclass(frozen=True)
class Equality(Request):
    """The gates of `count` comparisons of words with `bits` bits, and a random bit of both kinds for each."""

    count: int
    bits: int

    @property
    def size(self) -> int:
        return (self.count + 7) // 8

    def uniform(self) -> Parts:
        gates = (self.bits - 1, self.size)
        return {"u": (gates, torch.uint8), "v": (gates, torch.uint8), "β bits": ((self.size,), torch.uint8)}

    def derived(self) -> Parts:
        return {"uv": ((self.bits - 1, self.size), torch.uint8), "β": ((self.count,), torch.int64)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        beta = unpack(uniform["β bits"], self.count).long()
        return {"uv": uniform["u"] & uniform["v"], "β": beta}


async def equal(ctx: RingContext, words: Tensor, bits: int = WORD) -> Tensor:
    """[a = b] as 0 or 1, by the lowest `bits` bits; `words`: this party's own, n of them."""
    count = len(words)
    t = await ctx.stock.take(Equality(count, bits))  # 1
    if words.is_meta:  # a dry run: nothing more is requested
        return torch.empty_like(words)
    own = ~words if ctx.first else words
    x = torch.stack([pack((shift(own, k) & 1).to(torch.uint8)) for k in range(bits)])
    at = 0
    while len(x) > 1:  # 2
        half = len(x) // 2
        u, v, uv = (t[name][at : at + half] for name in ("u", "v", "uv"))
        at += half
        d, e = await ctx.open(MaskedBits, x[:half] ^ u, x[half : 2 * half] ^ v)
        both = uv ^ d & v ^ e & u ^ (d & e if ctx.first else 0)
        x = torch.cat([both, x[2 * half :]])
    (opened,) = await ctx.open(MaskedSigns, x[0] ^ t["β bits"])  # 3
    flip = unpack(opened, count).bool()
    return torch.where(flip, (1 if ctx.first else 0) - t["β"], t["β"])
