"""Shares with tags (message authentication codes): x modulo p is x_0 + … + x_{n−1}, and so is α·x, under a
key α of which each party holds a share. Damgård, Pastro, Smart, Zakarias: Multiparty Computation from
Somewhat Homomorphic Encryption, CRYPTO 2012 (SPDZ), with the tags of Damgård et al., ESORICS 2013: α is never
opened.

A tagged tensor has a first dimension of 2: [x_i, m_i], this party's shares of x and of α·x. Linear operations
are applied to both.

    dealer                                       computing party i of n
      |--- TapeKey(k_i) --------------------------->|   a tape: α_i, then shares of everything else
      |--- Corrections ---------------------------->|   to the last party only: differences

Requests and plans are as in `dealer.py`; here each part is tagged. The dealer knows α and must be honest: it
deals what was planned, and colludes with nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.party import Party
from ..parties.secret import Secret
from . import prime
from .beaver import Bilinear
from .dealer import SESSION, Corrections, TapeKey, run_alone
from .elements import TaggedShare
from .tape import KEY, Tape

if TYPE_CHECKING:
    from .tagged_context import TaggedContext

Shapes = dict[str, tuple[int, ...]]
Values = dict[str, Tensor]
DIGIT, DIGITS = 3, 21  # bits and number of a comparison's digits: 63 bits, for elements of 61
STEPS = (1 << DIGIT) - 1


class TaggedRequest:
    """One piece of correlated randomness: uniform parts, and parts derived from them.

    With a holder, the uniform parts are known to that party.
    """

    holder: int | None = None

    def uniform(self) -> Shapes:
        raise NotImplementedError

    def derived(self) -> Shapes:
        return {}

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {}


@dataclass(frozen=True)
class InputMask(TaggedRequest):
    """A mask b that its holder knows, for an input or an output of that party.

    With a name, it can be the mask of a factor in later products.
    """

    shape: tuple[int, ...]
    holder: int | None
    name: str | None = None

    def uniform(self) -> Shapes:
        return {"b": self.shape}

    def derive(self, uniform: Values, masks: Values) -> Values:
        if self.name is not None:
            if self.name in masks:
                raise ProtocolError(f"mask {self.name!r} is dealt twice; a mask may hide one value only.")
            masks[self.name] = uniform["b"]
        return {}


@dataclass(frozen=True)
class TaggedTriple(TaggedRequest):
    """a, b uniform and c = a ∘ b; if `mask` is given, b is the mask of that name."""

    op: Bilinear
    x: tuple[int, ...]
    y: tuple[int, ...]
    mask: str | None = None

    def uniform(self) -> Shapes:
        return {"a": self.x} if self.mask is not None else {"a": self.x, "b": self.y}

    def derived(self) -> Shapes:
        return {"c": self.op.shape(self.x, self.y)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {
            "c": prime.bilinear(
                self.op, uniform["a"], uniform["b"] if self.mask is None else masks[self.mask]
            )
        }


@dataclass(frozen=True)
class TaggedTruncation(TaggedRequest):
    """r uniform; R = r div 2^bits; s = 1 if r is in the topmost 2^59, where v + r may wrap around."""

    shape: tuple[int, ...]
    bits: int

    def uniform(self) -> Shapes:
        return {"r": self.shape}

    def derived(self) -> Shapes:
        return {"R": self.shape, "s": self.shape}

    def derive(self, uniform: Values, masks: Values) -> Values:
        r = uniform["r"]
        return {"R": r >> self.bits, "s": (r >= prime.P - (1 << (prime.ROOM + 1))).long()}


@dataclass(frozen=True)
class TaggedComparison(TaggedRequest):
    """r uniform; T: for each 3-bit digit r_d whether r_d > j, j = 0 … 6; low and high: whether r is within
    2^48 of the ends of 0 … p − 1.
    """

    shape: tuple[int, ...]

    def uniform(self) -> Shapes:
        return {"r": self.shape}

    def derived(self) -> Shapes:
        return {"T": (DIGITS, STEPS, *self.shape), "low": self.shape, "high": self.shape}

    def derive(self, uniform: Values, masks: Values) -> Values:
        r, near = uniform["r"], 1 << (prime.VALUE + 1)
        steps = torch.arange(STEPS, device=r.device).reshape(-1, *[1] * r.dim())
        return {
            "T": (split_digits(r).unsqueeze(1) > steps).long(),
            "low": (r < near).long(),
            "high": (r >= prime.P - near).long(),
        }


def split_digits(x: Tensor) -> Tensor:
    """The 3-bit digits of each element, lowest first, in a new first dimension."""
    return torch.stack([(x >> (DIGIT * d)) & STEPS for d in range(DIGITS)])


def draw_elements(tape: Tape, shape: tuple[int, ...], device: str) -> Tensor:
    """The next field elements of a tape."""
    return prime.from_words(tape.draw(shape)).to(device)


def draw_keys(parties: int, secret: Secret) -> list[int]:
    """Shares of a key α that outlives one dealing."""
    return [int(draw_elements(Tape(secret.bytes(KEY)), (1,), "cpu")[0]) for _ in range(parties)]


def share_tagged(x: Tensor, alphas: Sequence[int], secret: Secret) -> list[Tensor]:
    """Split x and α·x into shares, by a party that knows both."""
    alpha = prime.total(torch.tensor(list(alphas), device=x.device), 0)
    both = torch.stack([x, prime.mul(x, alpha.expand_as(x))])
    tape = Tape(secret.bytes(KEY))
    shares = [draw_elements(tape, tuple(both.shape), str(x.device)) for _ in alphas[1:]]
    return [*shares, prime.sub(both, prime.total(torch.stack(shares), 0))]


async def deal(
    me: Party,
    parties: Sequence[str],
    requests: Iterable[TaggedRequest],
    device: str = "cpu",
    alphas: Sequence[int] | None = None,
) -> None:
    """1. a fresh key to each, α from the tapes (or as given);  2. for each request: read the tapes, compute
    the derived parts and all tags, send the differences to the last party.
    """
    tapes, session = [], me.secret.bytes(SESSION)
    for name in parties:
        key = me.secret.bytes(KEY)
        await me.send(name, TapeKey(key, session))
        tapes.append(Tape(key))
    first = torch.stack([draw_elements(tape, (1,), device) for tape in tapes])
    alpha = prime.total(first[:, 0] if alphas is None else torch.tensor(list(alphas), device=device), 0)
    masks: Values = {}
    for request in requests:
        tape_parts = [
            {
                name: draw_elements(tape, shape, device)
                for name, shape in _on_tape(request, rank, len(parties)).items()
            }
            for rank, tape in enumerate(tapes)
        ]

        def add_shares(name: str, tape_parts: list[Values] = tape_parts) -> Tensor:
            return prime.total(torch.stack([parts[name] for parts in tape_parts if name in parts]), 0)

        uniform = {name: add_shares(name) for name in request.uniform()}
        values = {**uniform, **request.derive(uniform, masks)}
        corrections = []
        for name, shape in {**request.uniform(), **request.derived()}.items():
            value = values[name].reshape(shape)
            if name in request.derived():
                corrections.append(prime.sub(value, add_shares(name)))
            corrections.append(prime.sub(prime.mul(value, alpha.expand_as(value)), add_shares(f"α·{name}")))
        await me.send(parties[-1], Corrections([c.cpu() for c in corrections]))


def _on_tape(request: TaggedRequest, rank: int, parties: int) -> Shapes:
    """The parts that a party reads from its tape, in order; the last party reads uniform parts only."""
    uniform = request.uniform() if request.holder in (None, rank) else {}
    if rank == parties - 1:
        return uniform
    return {
        **uniform,
        **request.derived(),
        **{f"α·{name}": shape for name, shape in {**request.uniform(), **request.derived()}.items()},
    }


class TaggedStock:
    """A computing party's tagged shares in the order of the plan, each used once."""

    def __init__(
        self,
        tape: Tape,
        rank: int,
        parties: int,
        corrections: Callable[[], Awaitable[list[Tensor]]],
        device: str = "cpu",
    ):
        self.tape, self.rank, self.parties = tape, rank, parties
        self.corrections, self.device = corrections, device
        self.alpha = int(draw_elements(tape, (1,), "cpu")[0])

    @classmethod
    async def connect(
        cls, me: Party, rank: int, parties: int, dealer: str, device: str = "cpu"
    ) -> TaggedStock:
        key = (await me.recv(dealer, TapeKey)).key

        async def receive() -> list[Tensor]:
            return (await me.recv(dealer, Corrections)).values

        return cls(Tape(key), rank, parties, receive, device)

    async def take(self, request: TaggedRequest) -> dict[str, TaggedShare]:
        values = {
            name: draw_elements(self.tape, shape, self.device)
            for name, shape in _on_tape(request, self.rank, self.parties).items()
        }
        parts = {**request.uniform(), **request.derived()}
        if self.rank == self.parties - 1:
            names = [
                name
                for part in parts
                for name in ([part] if part in request.derived() else []) + [f"α·{part}"]
            ]
            corrections = await self.corrections()
            if [tuple(v.shape) for v in corrections] != [parts[name.removeprefix("α·")] for name in names]:
                raise ProtocolError(
                    f"the dealer's corrections do not match {type(request).__name__}. Dealer and parties "
                    "must plan the same program; repeat the dealing."
                )
            for name, value in zip(names, corrections):
                values[name] = prime.check_elements(value, "the dealer").to(self.device)
        for name, shape in parts.items():  # a mask that another party holds is a share of 0
            values.setdefault(name, torch.zeros(shape, dtype=torch.int64, device=self.device))
        return {name: TaggedShare(torch.stack([values[name], values[f"α·{name}"]])) for name in parts}


class TaggedDryRun(TaggedStock):
    """Records the requests and returns shares on torch's meta device."""

    def __init__(self) -> None:
        self.requests: list[TaggedRequest] = []
        self.alpha = 0

    async def take(self, request: TaggedRequest) -> dict[str, TaggedShare]:
        self.requests.append(request)
        return {
            name: TaggedShare(torch.empty((2, *shape), dtype=torch.int64, device="meta"))
            for name, shape in {**request.uniform(), **request.derived()}.items()
        }


def plan(program: Callable[[TaggedContext], Awaitable[Any]], **options: Any) -> list[TaggedRequest]:
    """The requests of a program, from a dry run on torch's meta device."""
    from .tagged_context import TaggedContext

    dry_run = TaggedDryRun()
    run_alone(program(TaggedContext(None, 0, ("dry run",), dry_run, device="meta", **options)))
    return dry_run.requests
