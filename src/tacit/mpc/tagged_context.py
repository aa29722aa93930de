"""The context of parties whose shares carry tags, and the check that catches a party that cheats. Damgård,
Keller, Larraia, Pastro, Scholl, Smart: Practical Covertly Secure MPC for Dishonest Majority, ESORICS 2013
(SPDZ); its MACCheck is `TaggedContext.check`.

    party i                                            every other party
      |--- MaskedOpening(shares of x − a, …) ------------->|   values under one-time masks
      |--- MaskedCheckedBits(shares of bits) ------------->|   of comparisons (`tagged_bits.py`)
      |--- Commitment(H(openings, seed, salt)) ----------->|   1. commit to a seed and to the opened values
      |--- Opened(seed, salt) ---------------------------->|   2. open the seeds: random weights χ
      |--- BitProof -------------------------------------->|   3. verify the others' bits (`bit_proofs.py`)
      |--- Commitment(H(σ_i, salt)) ---------------------->|   4. σ_i = Σ_j χ_j (m_ij − α_i · y_j)
      |--- Opened(σ_i, salt) ----------------------------->|   5. Σ σ_i = 0, or everyone aborts

Before the check, only values under masks that nobody knows are opened. A result is opened after a check
of all before it, under a mask that only its receiver knows, and is checked once more. A party that
changed shares, openings, tags or bits, however many, passes the check with probability below 2^-59
(values 2/p, bits 2^-59.9): it has to guess α or ρ, or the χ that are drawn after its change. After a
failed check the keys may be known, and are not used again. Not prevented: a party may supply a false
input, or stop. The dealer must be honest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..crypto.prg import KEY
from ..errors import ProtocolError
from ..parties.message import Message
from . import prime, spdz, tagged_bits
from .beaver import MaskedFactor
from .bit_proofs import BitCheck, Check, draw_weights
from .context import Context
from .dealer import Mask
from .elements import TaggedShare
from .prime import FixedPointPrime
from .tagged import TaggedStock, draw_elements
from .tagged_bits import ComparedBits
from .tape import Tape

MOST_COMPARED = 1 << 18  # bytes of a row of comparisons that wait for a check: 2^21 comparisons, 200 MB


class MaskedOpening(Message, reveals="shares of values under one-time masks: uniform numbers"):
    values: list[Tensor]


class MaskedCheckedBits(Message, reveals="shares of bits under one-time masks: uniform bits"):
    values: list[Tensor]


class BitProof(
    Message, reveals="that the bits sent before are the prescribed ones: words under one-time masks"
):
    values: list[Tensor]


class MaskedEntry(Message, reveals="a value under a mask that only its sender knows: uniform numbers"):
    values: list[Tensor]


class Commitment(Message, reveals="a hash of a later message, with 32 random bytes: nothing yet"):
    digest: bytes


class Opened(
    Message, reveals="what was committed to: a random seed, or this party's part of a check whose sum is 0"
):
    value: bytes
    salt: bytes


@dataclass
class TaggedContext(Context):
    """A party's key share, and the values opened since the last check."""

    stock: TaggedStock
    fixed: FixedPointPrime = field(default_factory=FixedPointPrime)
    alpha: int | None = None  # None: the stock's; a key that outlives the stock is given here
    pending: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (opened value, my share of its tag)
    compared: list[ComparedBits] = field(default_factory=list)  # comparisons since the last check
    compared_size: int = 0  # bytes of a row of these, also in a dry run
    announced: list[Tensor] = field(default_factory=list)  # public values that one party sent to all
    checks: int = 0

    product = spdz.product
    product_public = spdz.product_public
    product_masked = spdz.product_masked
    square = spdz.square
    truncate = spdz.truncate
    sign = tagged_bits.sign
    argmax = spdz.argmax
    masked_input = MaskedEntry

    @property
    def key(self) -> Tensor:
        return torch.tensor(self.stock.alpha if self.alpha is None else self.alpha, device=self.device)

    def public(self, value: Any, like: TaggedShare | Tensor) -> TaggedShare:
        """One party's share is the value, the others' are 0; every party's tag share is α_i · value."""
        code = prime.from_signed(torch.as_tensor(value, dtype=torch.int64, device=like.device))
        return TaggedShare.join(
            code if self.first else torch.zeros_like(code),
            prime.mul(code, self.key.to(like.device).expand_as(code)),
        )

    async def open(self, *shares: TaggedShare) -> list[Tensor]:
        """Send my shares and add all; keep the tags for `check`.

        Before the check, open only values under one-time masks.
        """
        values = [x.data[0] for x in shares]
        if self.me is None:
            return values
        await self.me.send(self.peers, MaskedOpening(list(values)))
        self.charge(len(self.peers) * 8 * sum(x.numel() for x in values))
        for name, message in (await self.me.gather(self.peers, MaskedOpening)).items():
            self.check_values(name, message.values, [(tuple(x.shape), torch.int64) for x in values])
            values = [
                prime.add(a, prime.check_elements(b, repr(name)).to(self.device))
                for a, b in zip(values, message.values)
            ]
        self.pending += [(value, x.data[1]) for value, x in zip(values, shares)]
        return values

    async def reserve_bits(self, size: int) -> None:
        """Before a comparison of so many bytes a row: check those before it, if too many wait."""
        if self.compared_size and self.compared_size + size > MOST_COMPARED:
            await self.check()
        self.compared_size += size

    async def open_bits(self, bits: np.ndarray, record: ComparedBits, rows: slice) -> np.ndarray:
        """Open bits under one-time masks; what the others sent is kept in these rows, for `check`."""
        if self.me is None:
            return bits
        mine = torch.from_numpy(bits)
        await self.me.send(self.peers, MaskedCheckedBits([mine]))
        self.charge(len(self.peers) * mine.numel())
        opened = bits.copy()
        for name, message in (await self.me.gather(self.peers, MaskedCheckedBits)).items():
            self.check_values(name, message.values, [(tuple(mine.shape), torch.uint8)])
            theirs = message.values[0].cpu().numpy()
            record.received.setdefault(name, np.empty_like(record.public.opened))[rows] = theirs
            opened ^= theirs
        return opened

    def subtract_mask(self, value: Tensor, b: TaggedShare) -> Tensor:
        return prime.sub(value, b.data[0])

    async def mask_private(
        self, name: str | None, shape: tuple[int, ...], value: Tensor | None, owner: int
    ) -> MaskedFactor[TaggedShare]:
        factor = await super().mask_private(name, shape, value, owner)
        if self.me is not None:
            self.announced.append(prime.check_elements(factor.f, repr(self.names[owner])))
        return factor

    async def share_private(self, value: Tensor | None, shape: tuple[int, ...], owner: int) -> TaggedShare:
        """The owner announces f = value − b, and [value] = [b] + f."""
        factor = await self.mask_private(None, shape, value, owner)
        return factor.b + self.public(factor.f, factor.b)

    async def reveal(self, x: TaggedShare) -> Tensor:
        return (await self.open(x))[0]

    async def check(self) -> None:
        """Abort unless all values opened since the last check agree with their tags."""
        size, self.compared_size = self.compared_size, 0
        bits = BitCheck(size) if size else None
        if self.me is None:
            if bits is not None:
                await self.stock.take_proofs(bits)
            return
        self.checks += 1
        record = hashlib.sha256(b"tacit openings 2")
        for value in [*(value for value, _ in self.pending), *self.announced]:
            record.update(value.cpu().numpy().tobytes())
        for compared in self.compared:
            record.update(compared.public.opened.tobytes())
        seeds = await self._commit_and_open("seed", record.digest(), self.me.secret.bytes(KEY))  # 1, 2
        coins = record.digest() + b"".join(seeds)
        if bits is not None:
            await self._prove_bits(bits, Tape(hashlib.sha256(b"tacit bit weights 1" + coins).digest()))  # 3
        tape = Tape(hashlib.sha256(b"tacit weights 2" + coins).digest())
        sigma = torch.zeros((), dtype=torch.int64)
        for value, tag in self.pending:  # 4
            weights = draw_elements(tape, (value.numel(),))
            sigma = prime.add(sigma, prime.weigh_errors(value, tag, self.key, weights))
        sums = await self._commit_and_open("sum", record.digest(), int(sigma).to_bytes(8, "little"))  # 5
        parts = [int.from_bytes(s, "little") for s in sums]
        if any(len(s) != 8 for s in sums) or any(part >= prime.P for part in parts) or sum(parts) % prime.P:
            raise ProtocolError(
                f"check {self.checks} failed: an opened value does not match its tag, so a party changed "
                "a share, an opening or a tag. "
                "Nothing of the result was opened. Do not work with the other parties until you know which "
                "one it was."
            )
        self.pending.clear()
        self.announced.clear()

    async def _prove_bits(self, request: BitCheck, tape: Tape) -> None:
        """Prove to each of the others that all bits I sent are right, and verify theirs."""
        assert self.me is not None
        masks, keys = await self.stock.take_proofs(request)
        ranks = [rank for rank in range(len(self.names)) if rank != self.rank]
        check = Check(request, self.compared, draw_weights(tape, request))
        sums = check.multiply([*(masks[k].vector for k in ranks), *(keys[k].sums for k in ranks)])
        proofs = check.prove(list(sums[: len(ranks)]), [masks[k].pads for k in ranks])
        for rank, proof in zip(ranks, proofs):
            await self.me.send(self.names[rank], BitProof([torch.from_numpy(proof.view(np.int64))]))
        self.charge(len(ranks) * 8 * request.points)
        received = await self.me.gather(self.peers, BitProof)
        for rank, at_sums in zip(ranks, sums[len(ranks) :]):
            name = self.names[rank]
            values = received[name].values
            self.check_values(name, values, [((request.points,), torch.int64)])
            proof = values[0].cpu().numpy().view(np.uint64)
            if not check.verify(name, rank == 0, proof, keys[rank], at_sums):
                raise ProtocolError(
                    f"check {self.checks} failed: {name!r} sent other bits of a comparison than it had to, "
                    "or a wrong proof. Nothing of the result was opened. Do not work with it."
                )
        self.compared.clear()

    async def _commit_and_open(self, what: str, record: bytes, mine: bytes) -> list[bytes]:
        """Exchange one value per party, each chosen before the others are known; by rank."""
        assert self.me is not None

        def digest(rank: int, value: bytes, salt: bytes) -> bytes:
            about = f"tacit commitment 1|{what}|{self.checks}|{rank}|".encode()
            return hashlib.sha256(about + record + len(value).to_bytes(8, "little") + value + salt).digest()

        salt = self.me.secret.bytes(KEY)
        await self.me.send(self.peers, Commitment(digest(self.rank, mine, salt)))
        commitments = await self.me.gather(self.peers, Commitment)
        await self.me.send(self.peers, Opened(mine, salt))
        openings = await self.me.gather(self.peers, Opened)
        self.charge(len(self.peers) * KEY)
        self.charge(len(self.peers) * (len(mine) + KEY))
        values = []
        for rank, name in enumerate(self.names):
            if rank == self.rank:
                values.append(mine)
                continue
            opening = openings[name]
            if (
                len(opening.salt) != KEY
                or digest(rank, opening.value, opening.salt) != commitments[name].digest
            ):
                raise ProtocolError(
                    f"check {self.checks} failed: {name!r} opened something else than it committed to, or "
                    "saw other values opened than this "
                    "party. Nothing of the result was opened."
                )
            values.append(opening.value)
        return values

    async def open_to(self, x: TaggedShare, to: int) -> Tensor | None:
        """Open x under a mask that only the receiver knows, after everything before it was checked.

        The receiver removes the mask after a second check, which says that nobody changed the result itself.
        """
        await self.check()  # the receiver knows b: what it changed before must not show in what it is sent
        b = (await self.stock.take(Mask(None, tuple(x.shape), to)))["b"]
        (masked,) = await self.open(x - b)
        await self.check()
        if self.me is None:
            return masked
        return prime.add(masked, b.data[0]) if self.rank == to else None
