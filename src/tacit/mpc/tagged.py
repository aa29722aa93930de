"""Shares with tags (message authentication codes): x modulo p is x_0 + … + x_{n−1}, and so is α·x, under a
key α of which each party holds a share. Damgård, Pastro, Smart, Zakarias: Multiparty Computation from
Somewhat Homomorphic Encryption, CRYPTO 2012 (SPDZ), with the tags of Damgård et al., ESORICS 2013: α is never
opened.

A tagged tensor has a first dimension of 2: [x_i, m_i], this party's shares of x and of α·x. Linear operations
are applied to both.

    dealer                                       computing party i of n
      |--- TapeKey(k_i) --------------------------->|   a tape: α_i, then shares of everything else
      |--- Corrections ---------------------------->|   to the last party only: differences

Requests, plans, dealing and stock are those of `dealer.py`, with every part as an element of the field and
its tag as one more derived part (`Tagged`). The dealer knows α and must be honest: it
deals what was planned, and colludes with nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    Parts,
    Request,
    Stock,
    Values,
    run_alone,
    send_corrections,
    send_keys,
)
from .elements import TaggedShare
from .tape import Tape
from .truncate import Truncation

if TYPE_CHECKING:
    from .tagged_context import TaggedContext

DIGIT, DIGITS = 3, 21  # bits and number of a comparison's digits: 63 bits, for elements of 61
STEPS = (1 << DIGIT) - 1
ENTRIES = (DIGITS - 1) * STEPS + 1  # the highest digit is the one bit 60, so 0 is all that it may exceed


@dataclass(frozen=True)
class Tagged(Request):
    """A request with a tag α·part for each part; only the dealer knows α."""

    request: Request
    alpha: Tensor | None = field(default=None, repr=False)

    def holds(self, name: str, rank: int) -> bool:
        return self.request.holds(name, rank)

    def uniform(self) -> Parts:
        return self.request.uniform()

    def derived(self) -> Parts:
        tags: Parts = {f"α·{name}": part for name, part in self.request.parts().items()}
        return {name: (shape, torch.int64) for name, (shape, _) in {**self.request.derived(), **tags}.items()}

    def derive(self, uniform: Values, masks: Values) -> Values:
        assert self.alpha is not None
        values = {**uniform, **self.request.derive(uniform, masks)}
        return values | {f"α·{n}": prime.mul(v, self.alpha.expand_as(v)) for n, v in values.items()}


class TaggedTriple(Triple):
    def derive(self, uniform: Values, masks: Values) -> Values:
        b = uniform["b"] if self.mask is None else masks[self.mask]
        return {"c": prime.bilinear(self.op, uniform["a"], b)}


class TaggedTruncation(Truncation):
    """r uniform; R = r div 2^bits; s = 1 if r is in the topmost 2^59, where v + r may wrap around."""

    def derive(self, uniform: Values, masks: Values) -> Values:
        r = uniform["r"]
        return {"R": r >> self.bits, "s": (r >= prime.P - (1 << (prime.ROOM + 1))).long()}


@dataclass(frozen=True)
class TaggedComparison(Request):
    """r uniform; T: for each 3-bit digit r_d whether r_d > j, j = 0 … 6 (of the highest, j = 0); low and
    high: whether r is within 2^48 of the ends of 0 … p − 1.
    """

    shape: tuple[int, ...]

    def uniform(self) -> Parts:
        return {"r": (self.shape, torch.int64)}

    def derived(self) -> Parts:
        shapes = {"T": (ENTRIES, *self.shape), "low": self.shape, "high": self.shape}
        return {name: (shape, torch.int64) for name, shape in shapes.items()}

    def derive(self, uniform: Values, masks: Values) -> Values:
        r, near = uniform["r"], 1 << (prime.VALUE + 1)
        steps = torch.arange(STEPS, device=r.device).reshape(-1, *[1] * r.dim())
        return {
            "T": (split_digits(r).unsqueeze(1) > steps).long().flatten(0, 1)[:ENTRIES],
            "low": (r < near).long(),
            "high": (r >= prime.P - near).long(),
        }


def split_digits(x: Tensor) -> Tensor:
    """The 3-bit digits of each element, lowest first, in a new first dimension."""
    if x.is_meta:
        return x.new_empty((DIGITS, *x.shape))
    return torch.stack([(x >> (DIGIT * d)) & STEPS for d in range(DIGITS)])


def draw_elements(tape: Tape, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    """The next field elements of a tape."""
    return prime.from_words(tape.draw(shape, dtype))


def _join(parts: list[Tensor]) -> Tensor:
    return prime.total(torch.stack(parts), 0)


FIELD = Arithmetic(draw_elements, _join, prime.sub, lambda x: prime.check_elements(x, "the dealer"))


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
    await send_corrections(
        me, parties, tapes, (Tagged(request, alpha) for request in requests), device, FIELD
    )


class TaggedStock:
    """A computing party's tagged shares in the order of the plan, each used once."""

    def __init__(self, stock: Stock, alpha: int):
        self.stock, self.alpha = stock, alpha

    @classmethod
    async def connect(
        cls, me: Party, rank: int, parties: int, dealer: str, device: str = "cpu"
    ) -> TaggedStock:
        stock = await Stock.connect(me, rank, parties, dealer, device, FIELD)
        return cls(stock, int(draw_elements(stock.tape, (1,))[0]))

    async def take(self, request: Request) -> dict[str, TaggedShare]:
        parts = await self.stock.take(Tagged(request))
        return {name: TaggedShare.join(parts[name], parts[f"α·{name}"]) for name in request.parts()}


def plan(program: Callable[[TaggedContext], Awaitable[Any]], **options: Any) -> list[Request]:
    """The requests of a program, from a dry run on torch's meta device."""
    from .tagged_context import TaggedContext

    dry_run = DryRun()
    run_alone(
        program(TaggedContext(None, 0, ("dry run",), TaggedStock(dry_run, 0), device="meta", **options))
    )
    return [request.request for request in dry_run.requests if isinstance(request, Tagged)]
