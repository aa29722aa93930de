"""Shares with tags (message authentication codes): x modulo p is x_0 + … + x_{n−1}, and so is α·x, under a
key α of which each party holds a share. Damgård, Pastro, Smart, Zakarias: Multiparty Computation from
Somewhat Homomorphic Encryption, CRYPTO 2012 (SPDZ), with the tags of Damgård et al., ESORICS 2013: α is never
opened.

A tagged tensor has a first dimension of 2: [x_i, m_i], this party's shares of x and of α·x. Linear operations
are applied to both.

    dealer                                       computing party i of n
      |--- TapeKey(k_i) --------------------------->|   a tape: α_i, Δ_i, then shares of everything else
      |--- Corrections ---------------------------->|   to the last party only: differences

Requests, plans, dealing and stock are those of `dealer.py`, with every part as an element of the field and
its tag as one more derived part (`Tagged`). The dealer knows α and must be honest: it
deals what was planned, and colludes with nobody.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..crypto.prg import KEY
from ..parties.party import Party
from ..parties.secret import Secret
from . import prime
from .beaver import Triple
from .dealer import (
    Arithmetic,
    DryRun,
    Request,
    Stock,
    Values,
    join,
    run_alone,
    send_corrections,
    send_keys,
)
from .elements import TaggedShare
from .tagged_bits import WORD, TaggedComparison, draw_key_share, tag_bits, to_words
from .tape import Parts, Tape
from .truncate import Truncation

if TYPE_CHECKING:
    from .tagged_context import TaggedContext


@dataclass(frozen=True)
class Tagged(Request):
    """A request with a tag α·part for each part of words; only the dealer knows α.

    Derived bits become words with a tag of their own, under Δ (`tagged_bits.py`); uniform bits have no tag.
    """

    request: Request
    alpha: Tensor | None = field(default=None, repr=False)
    delta: Tensor | None = field(default=None, repr=False)

    def holds(self, name: str, rank: int) -> bool:
        return self.request.holds(name, rank)

    def uniform(self) -> Parts:
        return self.request.uniform()

    def derived(self) -> Parts:
        parts: Parts = {}
        for name, (shape, dtype) in self.request.derived().items():
            parts[name] = ((*shape, WORD), dtype) if dtype is torch.uint8 else (shape, torch.int64)
        for name, (shape, dtype) in self.request.parts().items():
            if dtype is not torch.uint8:
                parts[f"α·{name}"] = (shape, torch.int64)
        return parts

    def derive(self, uniform: Values, masks: Values) -> Values:
        assert self.alpha is not None
        assert self.delta is not None
        made = self.request.derive(uniform, masks)
        words = {n: v for n, v in {**uniform, **made}.items() if v.dtype is not torch.uint8}
        bits = {n: tag_bits(v, self.delta) for n, v in made.items() if v.dtype is torch.uint8}
        tags = {f"α·{n}": prime.mul(v, self.alpha.expand_as(v)) for n, v in words.items()}
        return {**words, **bits, **tags}


class TaggedTriple(Triple):
    def derive(self, uniform: Values, masks: Values) -> Values:
        b = uniform["b"] if self.mask is None else masks[self.mask]
        return {"c": prime.bilinear(self.op, uniform["a"], b)}


class TaggedTruncation(Truncation):
    """r uniform; R = r div 2^bits; s = 1 if r is in the topmost 2^59, where v + r may wrap around."""

    def derive(self, uniform: Values, masks: Values) -> Values:
        r = uniform["r"]
        return {"R": r >> self.bits, "s": (r >= prime.P - (1 << (prime.ROOM + 1))).long()}


def draw_elements(tape: Tape, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    """The next field elements of a tape; or bits, as they are."""
    drawn = tape.draw(shape, dtype)
    return drawn if dtype is torch.uint8 else prime.from_words(drawn)


def _draw_parts(tape: Tape, parts: Parts) -> Values:
    return {name: draw_elements(tape, shape, dtype) for name, (shape, dtype) in parts.items()}


def _join(parts: list[Tensor]) -> Tensor:
    return join(parts) if parts[0].dtype is torch.uint8 else prime.total(torch.stack(parts), 0)


def _subtract(x: Tensor, y: Tensor) -> Tensor:
    return x ^ y if x.dtype is torch.uint8 else prime.sub(x, y)


def _check(x: Tensor) -> Tensor:
    return x if x.dtype is torch.uint8 else prime.check_elements(x, "the dealer")


FIELD = Arithmetic(_draw_parts, _join, _subtract, _check)


def draw_keys(parties: int, secret: Secret) -> list[int]:
    """Shares of a key α that outlives one dealing."""
    return [int(draw_elements(Tape(secret.bytes(KEY)), (1,))[0]) for _ in range(parties)]


def share_tagged(x: Tensor, alphas: Sequence[int], secret: Secret) -> list[Tensor]:
    """Split x and α·x into shares, by a party that knows both."""
    alpha = prime.total(torch.tensor(list(alphas), device=x.device), 0)
    both = torch.stack([x, prime.mul(x, alpha.expand_as(x))])
    tape = Tape(secret.bytes(KEY))
    shares = [draw_elements(tape, tuple(both.shape)).to(x.device) for _ in alphas[1:]]
    return [*shares, prime.sub(both, _join(shares))]


async def deal(
    me: Party,
    parties: Sequence[str],
    requests: Iterable[Request],
    device: str = "cpu",
    alphas: Sequence[int] | None = None,
) -> None:
    """The dealer's program, with α from the tapes or as given."""
    tapes = await send_keys(me, parties)
    first = [int(draw_elements(tape, (1,))[0]) for tape in tapes]
    alpha = prime.total(torch.tensor(first if alphas is None else list(alphas), device=device), 0)
    delta = functools.reduce(operator.xor, (draw_key_share(tape, rank) for rank, tape in enumerate(tapes)))
    tagged = (Tagged(request, alpha, delta.to(device)) for request in requests)
    await send_corrections(me, parties, tapes, tagged, device, FIELD)


class ComparisonShares(NamedTuple):
    """A party's shares for one comparison: [r], [β], [β·r], and the words of its tagged bits."""

    r: TaggedShare
    beta: TaggedShare
    beta_r: TaggedShare
    words: Tensor


class TaggedStock:
    """A computing party's tagged shares in the order of the plan, each used once; and its key shares."""

    def __init__(self, stock: Stock, alpha: int, delta: Tensor | None = None):
        self.stock, self.alpha = stock, alpha
        self.delta = torch.ones((), dtype=torch.int64) if delta is None else delta

    @classmethod
    async def connect(
        cls, me: Party, rank: int, parties: int, dealer: str, device: str = "cpu"
    ) -> TaggedStock:
        stock = await Stock.connect(me, rank, parties, dealer, device, FIELD)
        alpha = int(draw_elements(stock.tape, (1,))[0])
        return cls(stock, alpha, draw_key_share(stock.tape, rank).to(device))

    async def take(self, request: Request) -> dict[str, TaggedShare]:
        parts = await self.stock.take(Tagged(request))
        return {name: TaggedShare.join(parts[name], parts[f"α·{name}"]) for name in request.parts()}

    async def take_comparison(self, request: TaggedComparison) -> ComparisonShares:
        parts = await self.stock.take(Tagged(request))
        r, beta, beta_r = (TaggedShare.join(parts[name], parts[f"α·{name}"]) for name in ("r", "β", "βr"))
        return ComparisonShares(r, beta, beta_r, to_words(parts["bits"]))


def plan(program: Callable[[TaggedContext], Awaitable[Any]], **options: Any) -> list[Request]:
    """The requests of a program, from a dry run on torch's meta device."""
    from .tagged_context import TaggedContext

    dry_run = DryRun()
    run_alone(
        program(TaggedContext(None, 0, ("dry run",), TaggedStock(dry_run, 0), device="meta", **options))
    )
    return [request.request for request in dry_run.requests if isinstance(request, Tagged)]
