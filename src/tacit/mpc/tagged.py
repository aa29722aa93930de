"""Shares with tags (message authentication codes): x modulo p is x_0 + … + x_{n−1}, and so is α·x, under a
key α of which each party holds a share. Damgård, Pastro, Smart, Zakarias: Multiparty Computation from
Somewhat Homomorphic Encryption, CRYPTO 2012 (SPDZ), with the tags of Damgård et al., ESORICS 2013: α is never
opened.

A tagged tensor has a first dimension of 2: [x_i, m_i], this party's shares of x and of α·x. Linear operations
are applied to both.

    dealer                                       computing party i of n
      |--- TapeKey(k_i) --------------------------->|   a tape: α_i, then shares of everything else
      |--- Corrections ---------------------------->|   to the last party only: differences
      |--- ProofKeys ------------------------------>|   for each check: how to verify the others' bits

Requests, plans, dealing and stock are those of `dealer.py`, with every part as an element of the field and
its tag as one more derived part (`Tagged`). Bits have no tags; they are proved (`bit_proofs.py`). The dealer
knows α and must be honest: it deals what was planned, and colludes with nobody.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..crypto.prg import KEY
from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from ..parties.secret import Secret
from . import prime
from .beaver import Triple
from .bit_proofs import BitCheck, Key, Masks, Point, arrange, deal_key, draw_masks, draw_point
from .dealer import (
    Arithmetic,
    DryRun,
    Request,
    Stock,
    Values,
    join,
    run_alone,
    send_correction,
    send_keys,
)
from .elements import TaggedShare
from .tagged_bits import DEALT, TaggedComparison
from .tape import Parts, Tape
from .truncate import Truncation

if TYPE_CHECKING:
    from .tagged_context import TaggedContext


BIT_PARTS = ("random", "bits")  # of a comparison, in the order of its rows


class ProofKeys(
    Message,
    reveals="sums of the others' dealt bits at a random point, under masks of theirs: uniform words",
):
    values: list[Tensor]  # S and κ for each prover, by rank


@dataclass(frozen=True)
class Tagged(Request):
    """A request with a tag α·part for each part of words; only the dealer knows α. Bits have no tag."""

    request: Request
    alpha: Tensor | None = field(default=None, repr=False)

    def holds(self, name: str, rank: int) -> bool:
        return self.request.holds(name, rank)

    def uniform(self) -> Parts:
        return self.request.uniform()

    def derived(self) -> Parts:
        parts: Parts = {}
        for name, (shape, dtype) in self.request.derived().items():
            parts[name] = shape, dtype if dtype is torch.uint8 else torch.int64
        for name, (shape, dtype) in self.request.parts().items():
            if dtype is not torch.uint8:
                parts[f"α·{name}"] = (shape, torch.int64)
        return parts

    def derive(self, uniform: Values, masks: Values) -> Values:
        assert self.alpha is not None
        made = self.request.derive(uniform, masks)
        words = {n: v for n, v in {**uniform, **made}.items() if v.dtype is not torch.uint8}
        tags = {f"α·{n}": prime.mul(v, self.alpha.expand_as(v)) for n, v in words.items()}
        return {**made, **tags}


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
    return join(parts) if parts[0].dtype is torch.uint8 else functools.reduce(prime.add, parts)


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
    masks: Values = {}
    dealt: list[list[np.ndarray]] = [[] for _ in tapes]  # bits of comparisons since the last check
    for request in requests:
        kept = BIT_PARTS if isinstance(request, TaggedComparison) else ()
        shares = await send_correction(me, parties, tapes, Tagged(request, alpha), masks, device, FIELD, kept)
        if kept:
            for rows, share in zip(dealt, shares):
                rows.append(join_bits(share))
        if isinstance(request, BitCheck):
            await _send_keys_of_proofs(me, parties, tapes, request, dealt)
            dealt = [[] for _ in tapes]


async def _send_keys_of_proofs(
    me: Party,
    parties: Sequence[str],
    tapes: list[Tape],
    request: BitCheck,
    dealt: list[list[np.ndarray]],
) -> None:
    """Each verifier's S and κ for each prover; a party draws its masks first, then its points."""
    ranks = range(len(parties))
    masks: dict[tuple[int, int], Masks] = {}
    points: dict[tuple[int, int], Point] = {}
    for rank, tape in enumerate(tapes):
        masks |= {(rank, other): draw_masks(tape, request) for other in ranks if other != rank}
        points |= {(other, rank): draw_point(tape, request) for other in ranks if other != rank}
    keys: list[list[Tensor]] = [[] for _ in ranks]
    for prover in ranks:
        bits = arrange(dealt[prover], request)
        for verifier in ranks:
            if verifier != prover:
                pair = prover, verifier
                keys[verifier] += deal_key(bits, masks.pop(pair), points[pair], request)
    for name, values in zip(parties, keys):
        await me.send(name, ProofKeys(values))


def join_bits(parts: Values) -> np.ndarray:
    """A party's rows of dealt bits."""
    return np.concatenate([parts[name].cpu().numpy() for name in BIT_PARTS])


class ComparisonShares(NamedTuple):
    """A party's shares for one comparison: [r], [β], [β·r], and its rows of dealt bits."""

    r: TaggedShare
    beta: TaggedShare
    beta_r: TaggedShare
    bits: np.ndarray


class ProofShares(NamedTuple):
    """A party's randomness for a check of bits, by the rank of each other party."""

    masks: dict[int, Masks]  # for my proof to it
    keys: dict[int, Key]  # for its proof to me


class TaggedStock:
    """A computing party's tagged shares in the order of the plan, each used once; and its key share."""

    def __init__(
        self, stock: Stock, alpha: int, receive_keys: Callable[[], Awaitable[list[Tensor]]] | None = None
    ):
        self.stock, self.alpha, self.receive_keys = stock, alpha, receive_keys

    @classmethod
    async def connect(
        cls, me: Party, rank: int, parties: int, dealer: str, device: str = "cpu"
    ) -> TaggedStock:
        stock = await Stock.connect(me, rank, parties, dealer, device, FIELD)

        async def receive_keys() -> list[Tensor]:
            return (await me.recv(dealer, ProofKeys)).values

        return cls(stock, int(draw_elements(stock.tape, (1,))[0]), receive_keys)

    async def take(self, request: Request) -> dict[str, TaggedShare]:
        parts = await self.stock.take(Tagged(request))
        return {name: TaggedShare.join(parts[name], parts[f"α·{name}"]) for name in request.parts()}

    async def take_comparison(self, request: TaggedComparison) -> ComparisonShares:
        parts = await self.stock.take(Tagged(request))
        r, beta, beta_r = (TaggedShare.join(parts[name], parts[f"α·{name}"]) for name in ("r", "β", "βr"))
        bits = np.empty((0, 0), np.uint8) if r.data.is_meta else join_bits(parts)
        return ComparisonShares(r, beta, beta_r, bits)

    async def take_proofs(self, request: BitCheck) -> ProofShares:
        """In a dry run, nothing."""
        await self.stock.take(Tagged(request))
        if self.receive_keys is None:
            return ProofShares({}, {})
        others = [rank for rank in range(self.stock.parties) if rank != self.stock.rank]
        masks = {rank: draw_masks(self.stock.tape, request) for rank in others}
        points = {rank: draw_point(self.stock.tape, request) for rank in others}
        values = await self.receive_keys()
        shapes = [(DEALT, request.columns), (1,)] * len(others)
        if [(tuple(v.shape), v.dtype) for v in values] != [(shape, torch.int64) for shape in shapes]:
            raise ProtocolError(
                f"the dealer's keys for a check of {8 * request.size} comparisons have another form. Dealer "
                "and parties must plan the same program; repeat the dealing."
            )
        words = [value.cpu().numpy().view(np.uint64) for value in values]
        keys = {
            rank: Key(points[rank], sums, int(pad[0]))
            for rank, sums, pad in zip(others, words[::2], words[1::2])
        }
        return ProofShares(masks, keys)


def plan(program: Callable[[TaggedContext], Awaitable[Any]], **options: Any) -> list[Request]:
    """The requests of a program, from a dry run on torch's meta device."""
    from .tagged_context import TaggedContext

    dry_run = DryRun()
    ctx = TaggedContext(None, 0, ("dry run",), TaggedStock(dry_run, 0), device="meta", **options)

    async def checked() -> None:
        await program(ctx)
        await ctx.check()  # as every program is, before its result is used

    run_alone(checked())
    return [request.request for request in dry_run.requests if isinstance(request, Tagged)]
