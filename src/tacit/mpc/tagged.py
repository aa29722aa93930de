"""Tagged shares: x modulo p is x_0 + … + x_{n−1}, and so is α·x, under a key α of which each party holds a
share. Damgård, Pastro, Smart, Zakarias: Multiparty Computation from Somewhat Homomorphic Encryption,
CRYPTO 2012 (SPDZ), with the tags of Damgård et al., ESORICS 2013: α is never opened.

A tagged tensor is one tensor with a dimension of 2 in front: [x_i, m_i], this party's shares of x and of
α·x. What is linear is done to both alike.

    dealer                                       computing party i of n
      |--- TapeKey(k_i) --------------------------->|   α_i is the first word on the tape, shares of everything else follow
      |--- Corrections ---------------------------->|   to the last party only: what makes products and tags come out right

The requests and their plan are as in `dealer.py`; here each part is tagged. The dealer knows α and must be
honest: it deals what was asked, and works with nobody.
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
from .dealer import SESSION, Corrections, TapeKey
from .tape import KEY, Tape

if TYPE_CHECKING:
    from .spdz import Table

Shapes = dict[str, tuple[int, ...]]
Values = dict[str, Tensor]
DIGIT, DIGITS = 3, 21  # of a comparison: 63 bits, which hold the 61 of an element
STEPS = (1 << DIGIT) - 1


class Tagged:
    """One piece of correlated randomness; `free` parts are uniform, `fixed` ones follow. With a holder the
    free parts are known to that party.
    """

    holder: int | None = None

    def free(self) -> Shapes:
        raise ProtocolError(f"{type(self).__name__} does not say what it draws.")

    def fixed(self) -> Shapes:
        return {}

    def make(self, free: Values, masks: Values) -> Values:
        return {}


@dataclass(frozen=True)
class Entry(Tagged):
    """A mask b that its holder knows, to bring a value in or to learn one; with a name it stays, and products
    may ask for it.
    """

    shape: tuple[int, ...]
    holder: int | None
    name: str | None = None

    def free(self) -> Shapes:
        return {"b": self.shape}

    def make(self, free: Values, masks: Values) -> Values:
        if self.name is not None:
            if self.name in masks:
                raise ProtocolError(f"mask {self.name!r} is dealt twice; one mask hides one value only.")
            masks[self.name] = free["b"]
        return {}


@dataclass(frozen=True)
class TaggedTriple(Tagged):
    """a, b uniform and c = a ∘ b; with `kept`, b is the mask of that name."""

    op: Bilinear
    x: tuple[int, ...]
    y: tuple[int, ...]
    kept: str | None = None

    def free(self) -> Shapes:
        return {"a": self.x} if self.kept is not None else {"a": self.x, "b": self.y}

    def fixed(self) -> Shapes:
        return {"c": self.op.shape(self.x, self.y)}

    def make(self, free: Values, masks: Values) -> Values:
        return {"c": prime.bilinear(self.op, free["a"], free["b"] if self.kept is None else masks[self.kept])}


@dataclass(frozen=True)
class TaggedTruncation(Tagged):
    """r uniform; R = r div 2^bits; s says whether r is in the topmost 2^59, from where v + r may wrap
    around.
    """

    shape: tuple[int, ...]
    bits: int

    def free(self) -> Shapes:
        return {"r": self.shape}

    def fixed(self) -> Shapes:
        return {"R": self.shape, "s": self.shape}

    def make(self, free: Values, masks: Values) -> Values:
        r = free["r"]
        return {"R": r >> self.bits, "s": (r >= prime.P - (1 << (prime.ROOM + 1))).long()}


@dataclass(frozen=True)
class TaggedComparison(Tagged):
    """r uniform; for each 3-bit digit r_d whether r_d > j, j = 0 … 6; and whether r lies within 2^48 of
    either end of 0 … p − 1.
    """

    shape: tuple[int, ...]

    def free(self) -> Shapes:
        return {"r": self.shape}

    def fixed(self) -> Shapes:
        return {"T": (DIGITS, STEPS, *self.shape), "low": self.shape, "high": self.shape}

    def make(self, free: Values, masks: Values) -> Values:
        r, near = free["r"], 1 << (prime.VALUE + 1)
        steps = torch.arange(STEPS, device=r.device).reshape(-1, *[1] * r.dim())
        return {
            "T": (digits(r).unsqueeze(1) > steps).long(),
            "low": (r < near).long(),
            "high": (r >= prime.P - near).long(),
        }


def digits(x: Tensor) -> Tensor:
    """The 3-bit digits of each element, lowest first, in front."""
    return torch.stack([(x >> (DIGIT * d)) & STEPS for d in range(DIGITS)])


def drawn(tape: Tape, shape: tuple[int, ...], device: str) -> Tensor:
    return prime.words(tape.draw(shape)).to(device)


def keys(parties: int, secret: Secret) -> list[int]:
    """Shares of a key α, for a table that stays."""
    return [int(drawn(Tape(secret.bytes(KEY)), (1,), "cpu")[0]) for _ in range(parties)]


def tagged(x: Tensor, alphas: Sequence[int], secret: Secret) -> list[Tensor]:
    """Whoever knows x and α cuts both x and α·x into shares."""
    alpha = prime.total(torch.tensor(list(alphas), device=x.device), 0)
    both = torch.stack([x, prime.mul(x, alpha.expand_as(x))])
    tape = Tape(secret.bytes(KEY))
    shares = [drawn(tape, tuple(both.shape), str(x.device)) for _ in alphas[1:]]
    return [*shares, prime.sub(both, prime.total(torch.stack(shares), 0))]


async def deal(
    me: Party,
    parties: Sequence[str],
    requests: Iterable[Tagged],
    device: str = "cpu",
    alphas: Sequence[int] | None = None,
) -> None:
    """1. a fresh key to each, α from the tapes (or the table's own);  2. for each request: read the tapes, make the fixed parts and all tags, send what
    is missing to the last party.
    """
    tapes, session = [], me.secret.bytes(SESSION)
    for name in parties:
        key = me.secret.bytes(KEY)
        await me.send(name, TapeKey(key, session))
        tapes.append(Tape(key))
    first = torch.stack([drawn(tape, (1,), device) for tape in tapes])
    alpha = prime.total(first[:, 0] if alphas is None else torch.tensor(list(alphas), device=device), 0)
    masks: Values = {}
    for request in requests:
        read = [
            {
                name: drawn(tape, shape, device)
                for name, shape in _on_tape(request, rank, len(parties)).items()
            }
            for rank, tape in enumerate(tapes)
        ]

        def known(name: str, read: list[Values] = read) -> Tensor:
            return prime.total(torch.stack([r[name] for r in read if name in r]), 0)

        free = {name: known(name) for name in request.free()}
        values = {**free, **request.make(free, masks)}
        missing = []
        for name, shape in {**request.free(), **request.fixed()}.items():
            value = values[name].reshape(shape)
            if name in request.fixed():
                missing.append(prime.sub(value, known(name)))
            missing.append(prime.sub(prime.mul(value, alpha.expand_as(value)), known(f"α·{name}")))
        await me.send(parties[-1], Corrections([m.cpu() for m in missing]))


def _on_tape(request: Tagged, rank: int, parties: int) -> Shapes:
    """What this party reads from its tape, in order: of the last party only what is free."""
    free = request.free() if request.holder in (None, rank) else {}
    if rank == parties - 1:
        return free
    return {
        **free,
        **request.fixed(),
        **{f"α·{name}": shape for name, shape in {**request.free(), **request.fixed()}.items()},
    }


class TaggedStock:
    """A computing party's side: tagged shares in the order of the plan, each used once."""

    def __init__(
        self,
        tape: Tape,
        rank: int,
        parties: int,
        corrections: Callable[[], Awaitable[list[Tensor]]],
        device: str = "cpu",
    ):
        self.tape, self.rank, self.parties, self.corrections, self.device = (
            tape,
            rank,
            parties,
            corrections,
            device,
        )
        self.alpha = int(drawn(tape, (1,), "cpu")[0])

    @classmethod
    async def live(cls, me: Party, rank: int, parties: int, dealer: str, device: str = "cpu") -> TaggedStock:
        key = (await me.recv(dealer, TapeKey)).key

        async def receive() -> list[Tensor]:
            return (await me.recv(dealer, Corrections)).values

        return cls(Tape(key), rank, parties, receive, device)

    async def take(self, request: Tagged) -> Values:
        """Each part with its tag: shape [2, …]."""
        got = {
            name: drawn(self.tape, shape, self.device)
            for name, shape in _on_tape(request, self.rank, self.parties).items()
        }
        parts = {**request.free(), **request.fixed()}
        if self.rank == self.parties - 1:
            due = [
                name for part in parts for name in ([part] if part in request.fixed() else []) + [f"α·{part}"]
            ]
            came = await self.corrections()
            if [tuple(v.shape) for v in came] != [parts[name.removeprefix("α·")] for name in due]:
                raise ProtocolError(
                    f"the dealer's corrections do not fit {type(request).__name__}. Dealer and parties must "
                    "rehearse the same program; "
                    "deal anew."
                )
            got |= {name: prime.whole(v, "the dealer").to(self.device) for name, v in zip(due, came)}
        return {
            name: torch.stack(
                [
                    got[name] if name in got else torch.zeros(shape, dtype=torch.int64, device=self.device),
                    got[f"α·{name}"],
                ]
            )
            for name, shape in parts.items()
        }


class TaggedRehearsal(TaggedStock):
    """Notes what is asked for and gives shapes without numbers."""

    def __init__(self) -> None:
        self.requests: list[Tagged] = []
        self.alpha = 0

    async def take(self, request: Tagged) -> Values:
        self.requests.append(request)
        return {
            name: torch.empty((2, *shape), dtype=torch.int64, device="meta")
            for name, shape in {**request.free(), **request.fixed()}.items()
        }


def plan(program: Callable[[Table], Awaitable[Any]], **options: Any) -> list[Tagged]:
    """The requests of a program, run alone on torch's meta device, where tensors have shapes and no
    numbers.
    """
    from .spdz import Table

    rehearsal = TaggedRehearsal()
    for _ in program(Table(None, 0, ("rehearsal",), rehearsal, device="meta", **options)).__await__():
        raise ProtocolError("a rehearsed program waits for a message; only openings may stand in it.")
    return rehearsal.requests
