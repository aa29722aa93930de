"""A sum of encrypted vectors: the parties share a key, and the server adds ciphertexts.

    client k                                             server
      |--- AdvertisedKeys(channel) ------------------------>|  0  those that answered, at least `enough`
      |<-- RoundKeys(everybody's) --------------------------|     to one client, the maker; else the next
      |--- SealedShares({v: the round's secret key}) ------>|  1  from the maker
      |<-- RoundSecret(maker, its channel, sealed) ---------|     to everybody
      |--- CipherVector(E(x_k)) --------------------------->|  2  clients in the sum, at least `enough`
      |<-- CipherSum(Σ E(x_k)) -----------------------------|     to two of them; to the next if one leaves
      |--- DecryptedSum(Σ x_k) ---------------------------->|  3  both must agree
      |<-- SumMade() ---------------------------------------|     or RoundOver(why), as in secagg.py

The server learns the sum and who dropped out; it never has the key. The two clients that decrypt learn the
sum as well, so noise that hides the sum from clients must be added before. Clients learn who takes part, but
no other client's vector. Every client holds the key: the server and any one client together can decrypt every
vector, and a server that deviates can have one client's ciphertext decrypted instead of the sum. Use it only
with a server that follows the protocol and colludes with nobody; secure aggregation (secagg.py) needs
neither. Security rests on ring learning with errors at 128 bits (crypto/ckks.py), X25519 and
ChaCha20-Poly1305. Every round has a fresh key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..crypto import ckks
from ..crypto.agree import PUBLIC, SEALED, KeyPair, bind, seal, unseal
from ..errors import BadData, ProtocolError
from ..parameters import bad, real
from ..parties.message import Message
from ..parties.party import Identity, Party
from .consent import UNCOMMITTED, Commitment
from .secagg import ideal
from .summing import (
    AdvertisedKeys,
    RoundKeys,
    SealedShares,
    SumOutcome,
    SumSteps,
    SumTerms,
    advertise,
    check_keys,
    check_owner,
    leave_unless,
    message_bytes,
    receive,
    whether_included,
)

__all__ = ["EncryptedSumTerms", "client", "ideal", "server", "traffic"]

OPENERS = 2  # parties that decrypt the sum: a single one could send any number


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
class EncryptedSumTerms(SumTerms):
    """Parameters that all parties of a round agree on."""

    threshold: float = real(0.6, above=0.0, most=1.0, doc="the share whose vectors must be in the sum")

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

    def context(self, me: Party) -> bytes:
        return bind(
            "tacit encrypted sum 2", self.federation, me.tag, self.parties, self.length, self.bound, self.sent
        )


@whether_included
async def client(
    me: Party,
    values: Tensor,
    terms: EncryptedSumTerms,
    identity: Identity | None = None,
    server: str = "server",
    commitment: Commitment = UNCOMMITTED,
) -> None:
    """Take part in one sum; return whether this client's integers are included, as in secagg.py."""
    about, draw, identity = terms.context(me), me.secret.bytes, identity or me.identity
    if len(values) != terms.length or int(values.abs().max()) > terms.bound:
        raise BadData(
            f"party {me.name!r} has {len(values)} numbers up to {int(values.abs().max())}; the terms require "
            f"{terms.length} of at most {terms.bound}."
        )
    private = KeyPair(draw(32))
    own_keys = await advertise(me, server, about, identity, private)
    own_secret = b""
    message = await receive(me, server, RoundKeys, RoundSecret)
    if isinstance(message, RoundKeys):
        check_keys(me, message.keys, own_keys, terms.enough, terms.parties, about, identity)
        own_secret = ckks.secret()
        lines = {
            v: private.agree(entry[0], _key_context(about, me.name, own_keys[0], v, entry[0]))
            for v, entry in message.keys.items()
            if v != me.name
        }
        await me.send(
            server,
            SealedShares(
                {v: seal(line, own_secret, bind(about, me.name, v), draw) for v, line in lines.items()}
            ),
        )
        message = await receive(me, server, RoundSecret)
    if message.maker == me.name:
        key = own_secret
    else:
        check_owner(me, message.maker, (message.channel,), message.signature, about, identity)
        line = private.agree(
            message.channel,
            _key_context(about, message.maker, message.channel, me.name, own_keys[0]),
        )
        key = unseal(line, message.sealed, bind(about, message.maker, me.name))
    # None: a single holder of the round's key can decrypt
    await leave_unless(me, server, commitment.upload(None))
    await me.send(server, CipherVector(ckks.encrypt(key, values.numpy(), terms.bits)))
    request = await receive(me, server, CipherSum, SumMade)
    if isinstance(request, CipherSum):
        await leave_unless(me, server, commitment.reveal())
        total, error = ckks.decrypt(key, request.blocks, terms.length, terms.bits)
        # only in its own ledger, and rounded to a power of two: the error helps to find the key (Li,
        # Micciancio 2021)
        me.ledger.record(
            me.name,
            me.name,
            "DecryptedSum",
            f"the sum of all updates, which it decrypted; CKKS was off by less than "
            f"2^{math.ceil(math.log2(max(error, 2.0**-40)))} of a unit, and the rest was rounded away",
            bytes=total.nbytes,
        )
        await me.send(server, DecryptedSum(torch.from_numpy(total).to(torch.int32)))
        await receive(me, server, SumMade)


def _key_context(about: bytes, maker: str, maker_key: bytes, other: str, other_key: bytes) -> bytes:
    return bind(about, "channel", maker, maker_key, other, other_key)


async def server(
    me: Party,
    names: Sequence[str],
    terms: EncryptedSumTerms,
    within: float | None = None,
    first: float | None = None,
) -> SumOutcome:
    """Return the sum over the clients that stayed; `within` and `first` as in secagg.py."""
    terms.fits(names)
    steps = SumSteps(me, terms.enough, within)
    present = await steps.ask(
        names, AdvertisedKeys, "key exchange", within=first, valid=lambda _, m: len(m.channel) == PUBLIC
    )

    everyone = {name: (m.channel, b"", m.signature) for name, m in present.items()}
    for maker in list(present):
        await me.send(maker, RoundKeys(everyone))
        sealed_key = (
            await steps.ask(
                [maker],
                SealedShares,
                "making the key",
                lambda name, m: set(m.sealed) == set(everyone) - {name},
                enough=0,
            )
        ).get(maker)
        if sealed_key is not None:
            break
        present.pop(maker)
        if len(present) < terms.enough:
            raise await steps.abort(
                names, f"making the key: {len(present)} parties are left and {terms.enough} are needed"
            )
    assert sealed_key is not None
    for name in present:
        await me.send(
            name,
            RoundSecret(
                maker, present[maker].channel, present[maker].signature, sealed_key.sealed.get(name, b"")
            ),
        )

    ups = await steps.ask(
        present, CipherVector, "upload", lambda _, m: len(m.blocks) == ckks.blocks(terms.length, terms.bits)
    )
    try:
        total = ckks.add(up.blocks for up in ups.values())
    except ProtocolError as error:
        raise await steps.abort(names, str(error).rstrip(".")) from None

    opened: dict[str, Tensor] = {}
    candidates = list(ups)
    while candidates and len(opened) < OPENERS:
        some = [candidates.pop(0) for _ in range(min(OPENERS - len(opened), len(candidates)))]
        await me.send(some, CipherSum(total))
        answers = await steps.ask(
            some,
            DecryptedSum,
            "opening",
            lambda _, m: m.total.dtype == torch.int32 and tuple(m.total.shape) == (terms.length,),
            enough=0,
        )
        opened |= {name: m.total for name, m in answers.items()}
    if not opened:
        raise await steps.abort(names, "opening: no client that holds the key is left")
    one = next(iter(opened.values()))
    if not all(torch.equal(one, other) for other in opened.values()):
        raise await steps.abort(
            names,
            f"opening: {' and '.join(map(repr, opened))} decrypted different sums; one of them is wrong",
        )
    await me.send([name for name in ups if steps.dropped.get(name) != "opening"], SumMade())
    return SumOutcome(one.to(torch.int64), tuple(ups), steps.dropped)


def traffic(names: Sequence[str], terms: EncryptedSumTerms, signature: int = 0) -> tuple[int, int]:
    """As in secagg.py; one client makes the key and two decrypt the sum."""
    key, signed, n = bytes(PUBLIC), bytes(signature), len(names)
    sealed, blocks = (
        bytes(SEALED + ckks.SECRET_BYTES),
        [bytes(ckks.BLOCK_BYTES)] * ckks.blocks(terms.length, terms.bits),
    )
    up = n * message_bytes([AdvertisedKeys(key, b"", signed), CipherVector(blocks)]) + message_bytes(
        [SealedShares(dict.fromkeys(sorted(names)[1:], sealed))]
    )
    down = (
        n * message_bytes([SumMade()])
        + (n - 1) * message_bytes([RoundSecret(names[0], key, signed, sealed)])
        + message_bytes([RoundSecret(names[0], key, signed, b"")])
    )
    opening = (
        message_bytes([DecryptedSum(torch.zeros(terms.length, dtype=torch.int32))]),
        message_bytes([CipherSum(blocks)]),
    )
    return up + min(OPENERS, n) * opening[0], down + message_bytes(
        [RoundKeys(dict.fromkeys(names, (key, b"", signed)))]
    ) + min(OPENERS, n) * opening[1]
