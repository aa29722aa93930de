"""Computing on tagged shares, so that a party that cheats is caught. Damgård, Keller, Larraia, Pastro,
Scholl, Smart: Practical Covertly Secure MPC for Dishonest Majority, ESORICS 2013 (SPDZ); its MACCheck is
`Table.check`.

    party i                                            every other party
      |--- MaskedOpening(shares of x − a, …) ------------->|   openings, each of a value under a one-time mask, their tags kept for later
      |--- Commitment(H(openings, seed, salt)) ----------->|   1. everyone commits to a seed, and says which values it saw opened
      |--- Opened(seed, salt) ---------------------------->|   2. the seeds open: random weights χ that nobody chose
      |--- Commitment(H(σ_i, salt)) ---------------------->|   3. σ_i = Σ_j χ_j (m_ij − α_i · y_j)
      |--- Opened(σ_i, salt) ----------------------------->|   4. Σ σ_i = 0, or somebody cheated and everyone stops

Nothing that says anything of a secret is opened before the check: results are opened under a mask as well,
which only the receiver knows. A party that changed any share, opening or tag passes with probability below
2/p < 2^-59 (it has to guess α, or the χ that are drawn after its change), and with it whatever number of
openings it changed. After a check that failed the key α may be known, and is not used again. What this
does not do: a party may still give another input than its true one, or stop; the dealer must be honest.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import prime
from .beaver import MUL, Bilinear
from .prime import FixedPrime
from .seat import Cost
from .tagged import (
    DIGITS,
    Entry,
    TaggedComparison,
    TaggedStock,
    TaggedTriple,
    TaggedTruncation,
    digits,
    drawn,
)
from .tape import KEY, Tape


class MaskedOpening(Message, reveals="shares of values under one-time masks: uniform numbers"):
    values: list[Tensor]


class MaskedEntry(Message, reveals="a value under a mask that only its sender knows: uniform numbers"):
    values: list[Tensor]


class Commitment(Message, reveals="a hash of something still to come, with 32 random bytes: nothing yet"):
    digest: bytes


class Opened(
    Message, reveals="what was committed to: a random seed, or this party's part of a check whose sum is 0"
):
    said: bytes
    salt: bytes


@dataclass
class Kept:
    """A value its owner has brought in: f = y − b is public, b tagged."""

    name: str
    f: Tensor
    b: Tensor


@dataclass
class Table:
    """A computing party's place: who it is, its stock, its share of α, and what was opened since the last
    check.
    """

    me: Party | None  # None in a rehearsal
    rank: int
    names: tuple[str, ...]
    stock: TaggedStock
    fixed: FixedPrime = field(default_factory=FixedPrime)
    device: str = "cpu"
    alpha: int | None = None  # the stock's, unless the table outlives it
    costs: dict[str, Cost] = field(default_factory=dict)
    label: str = "other"
    pending: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (opened value, my share of its tag)
    heard: list[Tensor] = field(
        default_factory=list
    )  # public values one party said, which all must have heard alike
    checks: int = 0

    @property
    def peers(self) -> list[str]:
        return [name for i, name in enumerate(self.names) if i != self.rank]

    @property
    def key(self) -> Tensor:
        return torch.tensor(self.stock.alpha if self.alpha is None else self.alpha, device=self.device)

    def charge(self, bytes: int) -> None:
        cost = self.costs.setdefault(self.label, Cost())
        cost.rounds += 1
        cost.bytes += bytes

    @contextlib.contextmanager
    def at(self, label: str) -> Iterator[None]:
        """What is opened inside counts for this operation."""
        before, self.label = self.label, label
        try:
            yield
        finally:
            self.label = before

    def public(self, value: Tensor | int, like: Tensor) -> Tensor:
        """A public element as this party's tagged share of it: one party's share is the value, and every tag
        α_i times it.
        """
        made = torch.as_tensor(value, dtype=torch.int64, device=like.device)
        return torch.stack(
            [
                made if self.rank == 0 else torch.zeros_like(made),
                prime.mul(made, self.key.to(like.device).expand_as(made)),
            ]
        )

    def plus(self, x: Tensor, value: Tensor | int) -> Tensor:
        """[x + value]; a value of fewer dimensions is broadcast behind the tag's."""
        value = torch.as_tensor(value, dtype=torch.int64, device=x.device)
        return prime.add(x, self.public(value.expand(x.shape[1:]), x))

    async def open(self, *shares: Tensor) -> list[Tensor]:
        """Send my shares, add up all; the tags stay here until `check`. Only values under a one-time mask may
        be opened before it.
        """
        if self.me is None:
            return [x[0] for x in shares]
        mine = [x[0] for x in shares]
        await self.me.send(self.peers, MaskedOpening([x.cpu() for x in mine]))
        self.charge(len(self.peers) * 8 * sum(x.numel() for x in mine))
        for name, message in (await self.me.gather(self.peers, MaskedOpening)).items():
            self._fits(name, message.values, [x.shape for x in mine])
            mine = [
                prime.add(a, prime.whole(b, repr(name)).to(self.device)) for a, b in zip(mine, message.values)
            ]
        self.pending += [(value, x[1]) for value, x in zip(mine, shares)]
        return mine

    async def bring(
        self, value: Tensor | None, shape: tuple[int, ...], owner: int, name: str | None = None
    ) -> Kept:
        """The owner's value, which the others do not learn: it says f = y − b, and [y] = [b] + f. `value` is
        None at the others.
        """
        b = (await self.stock.take(Entry(shape, owner, name)))["b"]
        if self.me is None:
            return Kept(name or "", torch.empty(shape, dtype=torch.int64, device="meta"), b)
        if self.rank == owner:
            assert value is not None
            f = prime.sub(value.to(self.device), b[0])
            await self.me.send(self.peers, MaskedEntry([f.cpu()]))
            self.charge(len(self.peers) * 8 * f.numel())
        else:
            values = (await self.me.recv(self.names[owner], MaskedEntry)).values
            self._fits(self.names[owner], values, [torch.Size(shape)])
            f = prime.whole(values[0], repr(self.names[owner])).to(self.device)
        self.heard.append(f)
        return Kept(name or "", f, b)

    def whole(self, kept: Kept) -> Tensor:
        """[y] of a value brought in."""
        return self.plus(kept.b, kept.f)

    def _fits(self, name: str, values: list[Tensor], due: list[torch.Size]) -> None:
        if [v.shape for v in values] != due:
            raise ProtocolError(
                f"{name!r} sent {[tuple(v.shape) for v in values]} where {[tuple(s) for s in due]} was due. "
                "All parties must run the same "
                "program on the same shapes."
            )

    async def check(self) -> None:
        """Were all values opened since the last check what the tags say? If not, nobody goes on."""
        if self.me is None:
            return
        self.checks += 1
        record = hashlib.sha256(b"tacit openings 1")
        for value in [*(v for v, _ in self.pending), *self.heard]:
            record.update(value.cpu().numpy().tobytes())
        seeds = await self._together("seed", record.digest(), self.me.secret.bytes(KEY))  # 1, 2
        tape = Tape(hashlib.sha256(b"tacit weights 1" + record.digest() + b"".join(seeds)).digest())
        sigma = torch.zeros((), dtype=torch.int64)
        for value, tag in self.pending:  # 3
            wrong = prime.sub(tag, prime.mul(value, self.key.expand_as(value))).flatten().cpu()
            sigma = prime.add(sigma, prime.total(prime.mul(wrong, drawn(tape, tuple(wrong.shape), "cpu")), 0))
        said = await self._together("sum", record.digest(), int(sigma).to_bytes(8, "little"))  # 4
        parts = [int.from_bytes(s, "little") for s in said]
        if any(len(s) != 8 for s in said) or any(part >= prime.P for part in parts) or sum(parts) % prime.P:
            raise ProtocolError(
                f"check {self.checks} failed: an opened value is not what its tag says, so a party changed "
                "a share, an opening or a tag. "
                "Nothing of the result was opened. Stop working with the others until you know who it was."
            )
        self.pending.clear()
        self.heard.clear()

    async def _together(self, what: str, record: bytes, mine: bytes) -> list[bytes]:
        """What all say, each without knowing what the others will: a hash first, then what it is a hash of.
        By rank.
        """
        assert self.me is not None

        def digest(rank: int, said: bytes, salt: bytes) -> bytes:
            about = f"tacit commitment 1|{what}|{self.checks}|{rank}|".encode()
            return hashlib.sha256(about + record + len(said).to_bytes(8, "little") + said + salt).digest()

        salt = self.me.secret.bytes(KEY)
        await self.me.send(self.peers, Commitment(digest(self.rank, mine, salt)))
        promised = await self.me.gather(self.peers, Commitment)
        await self.me.send(self.peers, Opened(mine, salt))
        opened = await self.me.gather(self.peers, Opened)
        self.charge(len(self.peers) * KEY)
        self.charge(len(self.peers) * (len(mine) + KEY))
        made = []
        for rank, name in enumerate(self.names):
            if rank == self.rank:
                made.append(mine)
                continue
            came = opened[name]
            if len(came.salt) != KEY or digest(rank, came.said, came.salt) != promised[name].digest:
                raise ProtocolError(
                    f"check {self.checks} failed: {name!r} opened something else than it committed to, or "
                    "saw other values opened than this "
                    "party. Nothing of the result was opened."
                )
            made.append(came.said)
        return made

    async def tell(self, x: Tensor, to: int) -> Tensor | None:
        """x for one party: opened under a mask that it alone knows, checked, and only then unmasked."""
        b = (await self.stock.take(Entry(tuple(x.shape[1:]), to)))["b"]
        (hidden,) = await self.open(prime.sub(x, b))
        await self.check()
        if self.me is None:
            return hidden
        return prime.add(hidden, b[0]) if self.rank == to else None


def _both(op: Bilinear, public: Tensor, x: Tensor, left: bool = True) -> Tensor:
    """public ∘ [x], or [x] ∘ public: share and tag alike."""
    return torch.stack(
        [prime.bilinear(op, public, part) if left else prime.bilinear(op, part, public) for part in x]
    )


def times_public(x: Tensor, public: Tensor, op: Bilinear = MUL) -> Tensor:
    """[x] ∘ public, without a word."""
    return _both(op, public, x, left=False)


async def product(table: Table, x: Tensor, y: Tensor, op: Bilinear = MUL) -> Tensor:
    """[x ∘ y], not truncated, by a tagged triple: [c] + e ∘ [b] + [a] ∘ f + e ∘ f (`beaver.py`)."""
    t = await table.stock.take(TaggedTriple(op, tuple(x.shape[1:]), tuple(y.shape[1:])))
    e, f = await table.open(prime.sub(x, t["a"]), prime.sub(y, t["b"]))
    return _joined(table, op, t["c"], t["a"], t["b"], e, f)


async def times_kept(table: Table, x: Tensor, kept: Kept, op: Bilinear) -> Tensor:
    """[x ∘ y] with y brought in once: f is known already."""
    t = await table.stock.take(TaggedTriple(op, tuple(x.shape[1:]), tuple(kept.f.shape), kept.name))
    (e,) = await table.open(prime.sub(x, t["a"]))
    return _joined(table, op, t["c"], t["a"], kept.b, e, kept.f)


def _joined(table: Table, op: Bilinear, c: Tensor, a: Tensor, b: Tensor, e: Tensor, f: Tensor) -> Tensor:
    made = prime.add(c, prime.add(_both(op, e, b), _both(op, f, a, left=False)))
    return table.plus(made, prime.bilinear(op, e, f))


async def truncate(table: Table, v: Tensor, bits: int | None = None) -> Tensor:
    """[v / 2^bits] to a unit in the last place, for |v| < 2^58.

    c = v + 2^58 + r is opened. It wrapped around exactly where s = 1 (r is in the topmost 2^59) and c < 2^59,
    because 0 ≤ v + 2^58 < 2^59; so [v / 2^f] = (c div 2^f) + s · ((c + p) div 2^f − c div 2^f) − [r div 2^f]
    − 2^(58−f), with the middle term only where c < 2^59.
    """
    bits = table.fixed.fraction if bits is None else bits
    t = await table.stock.take(TaggedTruncation(tuple(v.shape[1:]), bits))
    (c,) = await table.open(table.plus(prime.add(v, t["r"]), 1 << prime.ROOM))
    jump = torch.where(c < 1 << (prime.ROOM + 1), ((c + prime.P) >> bits) - (c >> bits), 0)
    made = prime.sub(times_public(t["s"], jump), t["R"])
    return table.plus(made, prime.sub(c >> bits, torch.full_like(c, 1 << (prime.ROOM - bits))))


async def positive(table: Table, x: Tensor) -> Tensor:
    """[x ≥ 0] as 0 or 1, for |x| < 2^48, by opening c = x + r and comparing it with r, digit by digit.

    x < 0 exactly where c < r, unless x + r left 0 … p − 1: upwards only if r is within 2^48 of p and c below
    2^48, where c < r though x ≥ 0; downwards only if r < 2^48 and c is within 2^48 of p, where c > r though x
    < 0. Which digits of r exceed which number is dealt, tagged, so looking c's up is linear.
    """
    t = await table.stock.take(TaggedComparison(tuple(x.shape[1:])))
    (c,) = await table.open(prime.add(x, t["r"]))
    one = table.public(torch.ones((DIGITS, 1, *x.shape[1:]), dtype=torch.int64, device=x.device), x)
    steps = torch.cat([one, t["T"], torch.zeros_like(one)], 2)  # r_d > −1, 0, …, 6, 7
    at = digits(c).unsqueeze(1).unsqueeze(0).expand(2, *one.shape[1:])
    lt = torch.gather(steps, 2, at + 1)[:, :, 0]
    eq = prime.sub(torch.gather(steps, 2, at)[:, :, 0], lt)
    while lt.shape[1] > 1:
        pairs = lt.shape[1] // 2
        low, high = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        joined = await product(
            table, torch.cat([eq[:, high], eq[:, high]], 1), torch.cat([lt[:, low], eq[:, low]], 1)
        )
        lt = torch.cat([prime.add(lt[:, high], joined[:, :pairs]), lt[:, 2 * pairs :]], 1)
        eq = torch.cat([joined[:, pairs:], eq[:, 2 * pairs :]], 1)
    near = 1 << (prime.VALUE + 1)
    up, down = (
        times_public(t["high"], (c < near).long()),
        times_public(t["low"], (c >= prime.P - near).long()),
    )
    negative = prime.add(prime.sub(lt[:, 0], up), down)
    return table.plus(prime.sub(torch.zeros_like(negative), negative), 1)


async def relu(table: Table, x: Tensor) -> Tensor:
    return await product(table, await positive(table, x), x)


async def largest(table: Table, x: Tensor) -> Tensor:
    """The maximum along the last dimension, by a knock-out."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half : 2 * half]
        x = torch.cat([prime.add(b, await relu(table, prime.sub(a, b))), x[..., 2 * half :]], -1)
    return x[..., 0]


async def argmax(table: Table, x: Tensor) -> Tensor:
    """[index of the maximum] along the last dimension, a whole number; the first one where several are
    equal.
    """
    place = table.public(torch.arange(x.shape[-1], device=x.device).expand(x.shape[1:]), x)
    while x.shape[-1] > 1:
        pairs = x.shape[-1] // 2
        (a, b), (i, j) = ((t[..., 0 : 2 * pairs : 2], t[..., 1 : 2 * pairs : 2]) for t in (x, place))
        won = await positive(table, prime.sub(a, b))
        both = await product(
            table, torch.cat([won, won], -1), torch.cat([prime.sub(a, b), prime.sub(i, j)], -1)
        )
        x = torch.cat([prime.add(b, both[..., :pairs]), x[..., 2 * pairs :]], -1)
        place = torch.cat([prime.add(j, both[..., pairs:]), place[..., 2 * pairs :]], -1)
    return place[..., 0]
