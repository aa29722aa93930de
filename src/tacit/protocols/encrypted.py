"""The sum of encrypted vectors: parties share a key, the server adds what it cannot read.

    client k                                             server
      |--- AdvertisedKeys(channel) ------------------------>|  0  those that answered, at least `enough`
      |<-- RoundKeys(everybody's) --------------------------|     to one of them, the maker; to the next, if it leaves
      |--- SealedShares({v: the round's secret key}) ------>|  1  from the maker
      |<-- RoundSecret(maker, its channel, sealed) ---------|     to everybody
      |--- CipherVector(E(x_k)) --------------------------->|  2  whose vectors make the sum, at least `enough`
      |<-- CipherSum(Σ E(x_k)) -----------------------------|     to two of them; to the next, if one leaves
      |--- DecryptedSum(Σ x_k) ---------------------------->|  3  both must say the same
      |<-- SumMade() ---------------------------------------|     or RoundOver(why), as in secagg.py

The server learns the sum and who dropped out; it never has the key. So do the two clients that open it:
noise that is to hide the sum from clients must be in it before. Clients learn who else takes part and
nobody's vector, but every one of them holds the key: the server and any single client together can open
every vector, and a server that strays from the protocol can have one client's ciphertext opened in place
of the sum. So this is for a server that follows the protocol and colludes with nobody; secure aggregation
(secagg.py) needs neither. It rests on ring learning with errors at 128 bits (crypto/ckks.py), X25519 and
ChaCha20-Poly1305. A fresh key every round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..crypto import ckks
from ..crypto.agree import PUBLIC, SEALED, agree, bind, public_of, seal, unseal
from ..errors import BadData, ProtocolError
from ..parameters import bad, real, whole
from ..parties.message import Message
from ..parties.party import Identity, Party
from .consent import UNCOMMITTED, Commitment, RoundSpent
from .secagg import AdvertisedKeys, RoundKeys, SealedShares, ideal
from .summing import SumOutcome, SumSteps, check_keys, check_owner, hear, signed_keys, some_of, weigh

__all__ = ["EncryptedSumTerms", "client", "ideal", "server", "traffic"]

OPENERS = 2  # parties that open the sum: one alone could say anything


class RoundSecret(
    Message,
    reveals="the key of this round, which the parties share and the server, passing it on sealed, does not "
    "have",
):
    maker: str
    channel: bytes
    signature: bytes
    sealed: bytes


class CipherVector(
    Message,
    reveals="one party's update and weight, encrypted (CKKS, 128-bit security) under a key the server does "
    "not have",
):
    blocks: list[bytes]


class CipherSum(Message, reveals="the sum of all updates, encrypted under the key the parties share"):
    blocks: list[bytes]


class DecryptedSum(
    Message,
    reveals="the sum of all updates, whole numbers; the encryption's error, below a quarter of a unit, is "
    "rounded away",
):
    total: Tensor


class SumMade(Message, reveals="that the sum was opened and the round is over"):
    pass


@dataclass(frozen=True)
class EncryptedSumTerms:
    """What all parties of a round agree on beforehand."""

    federation: str
    parties: int = whole(least=2, doc="how many are asked to take part in the round")
    length: int = whole(least=1, doc="numbers in a vector")
    bound: int = whole(least=1, doc="no number is larger")
    threshold: float = real(0.6, above=0.0, most=1.0, doc="the share whose vectors must be in the sum")
    sent: bytes = b""  # digest of what the server sent down in this round

    def check(self) -> None:
        if self.bits > ckks.BITS:
            raise bad(
                "Encrypt",
                "the range of a sum",
                f"±{self.parties * self.bound}",
                f"below 2^{ckks.BITS - 1}",
                f"Quantize to at most {ckks.BITS} bits.",
            )

    @property
    def bits(self) -> int:
        return (2 * self.parties * self.bound).bit_length()

    def fits(self, names: Sequence[str]) -> None:
        some_of(names, self.parties, self.enough)

    @property
    def enough(self) -> int:
        return max(2, math.ceil(self.threshold * self.parties))

    def context(self, me: Party) -> bytes:
        return bind(
            "tacit encrypted sum 2", self.federation, me.tag, self.parties, self.length, self.bound, self.sent
        )


async def client(
    me: Party,
    values: Tensor,
    terms: EncryptedSumTerms,
    identity: Identity | None = None,
    boss: str = "server",
    commitment: Commitment = UNCOMMITTED,
) -> bool:
    """Whether this client's whole numbers are in the sum; False when the round went on without it. An aborted
    round is an error.
    """
    about, draw, identity = terms.context(me), me.secret.bytes, identity or me.identity
    if len(values) != terms.length or int(values.abs().max()) > terms.bound:
        raise BadData(
            f"party {me.name!r} has {len(values)} numbers up to {int(values.abs().max())}; the terms say "
            f"{terms.length} of at most {terms.bound}."
        )
    private = draw(32)
    mine = (public_of(private),)
    await me.send(boss, AdvertisedKeys(mine[0], b"", signed_keys(me, mine, about, identity)))
    made = b""
    told: Any = await hear(me, boss, RoundKeys, RoundSecret)
    if isinstance(told, RoundKeys):
        check_keys(me, told.keys, mine, terms.enough, terms.parties, about, identity)
        made = ckks.secret()
        lines = {
            v: agree(private, entry[0], _line(about, me.name, mine[0], v, entry[0]))
            for v, entry in told.keys.items()
            if v != me.name
        }
        await me.send(
            boss,
            SealedShares({v: seal(line, made, bind(about, me.name, v), draw) for v, line in lines.items()}),
        )
        told = await hear(me, boss, RoundSecret)
    if told is None:
        return False
    if told.maker == me.name:
        key = made
    else:
        check_owner(me, told.maker, (told.channel,), told.signature, about, identity)
        line = agree(private, told.channel, _line(about, told.maker, told.channel, me.name, mine[0]))
        key = unseal(line, told.sealed, bind(about, told.maker, me.name))
    if not commitment.upload(None):  # whoever holds the round's key can open it alone
        await me.send(boss, RoundSpent())
        return False
    await me.send(boss, CipherVector(ckks.encrypt(key, values.numpy(), terms.bits)))
    asked = await hear(me, boss, CipherSum, SumMade)
    if isinstance(asked, CipherSum):
        if not commitment.reveal():
            await me.send(boss, RoundSpent())
            return False
        total, error = ckks.decrypt(key, asked.blocks, terms.length, terms.bits)
        # in its own ledger and nowhere else: what is told of the error helps to find the key (Li, Micciancio
        # 2021), so it is told as a power of two
        me.ledger.record(
            me.name,
            me.name,
            "DecryptedSum",
            f"the sum of all updates, which it decrypted; CKKS was off by less than "
            f"2^{math.ceil(math.log2(max(error, 2.0**-40)))} of a unit, and the rest was rounded away",
            bytes=total.nbytes,
        )
        await me.send(boss, DecryptedSum(torch.from_numpy(total).to(torch.int32)))
        asked = await hear(me, boss, SumMade)
    return asked is not None


def _line(about: bytes, maker: str, maker_key: bytes, other: str, other_key: bytes) -> bytes:
    return bind(about, "channel", maker, maker_key, other, other_key)


async def server(
    me: Party,
    names: Sequence[str],
    terms: EncryptedSumTerms,
    within: float | None = None,
    first: float | None = None,
) -> SumOutcome:
    """The sum of those that stayed up to their upload. `within`: seconds for each step, after which whoever
    has not answered is dropped; `first`: for the first step, before which clients may still be at work on
    their vectors.
    """
    terms.fits(names)
    steps = SumSteps(me, terms.enough, within)
    there = await steps.ask(
        names, AdvertisedKeys, "key exchange", within=first, valid=lambda _, m: len(m.channel) == PUBLIC
    )

    everyone = {name: (m.channel, b"", m.signature) for name, m in there.items()}
    for maker in list(there):
        await me.send(maker, RoundKeys(everyone))
        made = (
            await steps.ask(
                [maker],
                SealedShares,
                "making the key",
                lambda name, m: set(m.sealed) == set(everyone) - {name},
                enough=0,
            )
        ).get(maker)
        if made is not None:
            break
        there.pop(maker)
        if len(there) < terms.enough:
            raise await steps.abort(
                names, f"making the key: {len(there)} parties are left and {terms.enough} are needed"
            )
    assert made is not None
    for name in there:
        await me.send(
            name, RoundSecret(maker, there[maker].channel, there[maker].signature, made.sealed.get(name, b""))
        )

    ups = await steps.ask(
        there, CipherVector, "upload", lambda _, m: len(m.blocks) == ckks.blocks(terms.length, terms.bits)
    )
    try:
        total = ckks.add(up.blocks for up in ups.values())
    except ProtocolError as error:
        raise await steps.abort(names, str(error).rstrip(".")) from None

    opened: dict[str, Tensor] = {}
    left = list(ups)
    while left and len(opened) < OPENERS:
        some = [left.pop(0) for _ in range(min(OPENERS - len(opened), len(left)))]
        await me.send(some, CipherSum(total))
        came = await steps.ask(
            some,
            DecryptedSum,
            "opening",
            lambda _, m: m.total.dtype == torch.int32 and tuple(m.total.shape) == (terms.length,),
            enough=0,
        )
        opened |= {name: m.total for name, m in came.items()}
    if not opened:
        raise await steps.abort(names, "opening: nobody that holds the key is left")
    one = next(iter(opened.values()))
    if not all(torch.equal(one, other) for other in opened.values()):
        raise await steps.abort(
            names, f"opening: {' and '.join(map(repr, opened))} do not say the same sum; one of them is wrong"
        )
    await me.send([name for name in ups if steps.dropped.get(name) != "opening"], SumMade())
    return SumOutcome(one.to(torch.int64), tuple(ups), steps.dropped)


def traffic(names: Sequence[str], terms: EncryptedSumTerms, signature: int = 0) -> tuple[int, int]:
    """As in secagg.py; one of them makes the key, two open the sum."""
    key, signed, n = bytes(PUBLIC), bytes(signature), len(names)
    sealed, blocks = (
        bytes(SEALED + ckks.SECRET_BYTES),
        [bytes(ckks.BLOCK_BYTES)] * ckks.blocks(terms.length, terms.bits),
    )
    up = n * weigh([AdvertisedKeys(key, b"", signed), CipherVector(blocks)]) + weigh(
        [SealedShares(dict.fromkeys(sorted(names)[1:], sealed))]
    )
    down = (
        n * weigh([SumMade()])
        + (n - 1) * weigh([RoundSecret(names[0], key, signed, sealed)])
        + weigh([RoundSecret(names[0], key, signed, b"")])
    )
    opening = weigh([DecryptedSum(torch.zeros(terms.length, dtype=torch.int32))]), weigh([CipherSum(blocks)])
    return up + min(OPENERS, n) * opening[0], down + weigh(
        [RoundKeys(dict.fromkeys(names, (key, b"", signed)))]
    ) + min(OPENERS, n) * opening[1]
