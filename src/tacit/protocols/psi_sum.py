"""A sum over the people two parties share, without saying who they are. Ion, Kreuter, Nergiz, Patel, Saxena, Seth, Raykova, Shanahan, Yung: On
Deploying Secure Computation: Private Intersection-Sum-with-Cardinality, EuroS&P 2020, figure 2 (DDH), with the sum masked so that the receiver
gets it.

    receiver (Y, key b)                                            sender (X with a number v_x each, key a, ElGamal key P = p·G)
      |--- BlindedIds(b·H(y)) in order ------------------------------>|
      |<-- Tags(h(a·b·H(y))), all together, shuffled -----------------|
      |<-- PublicKey(P); BlindedIds(a·H(x)), EncryptedValues(v_x) ----|   shuffled, in the same order
      |  adds up Enc(v_x) over those x whose b·a·H(x) has a tag       |
      |--- MaskedSum(Enc(Σ v + m) made anew) ------------------------>|   m is random: the sender sees nothing
      |<-- OpenedSum((Σ v + m)·G) ------------------------------------|
      |  takes m·G away                                               |

The receiver learns the sender's set size, how many ids are shared, and the sum of the sender's numbers over them; not which ids. The sender learns
the receiver's set size. It rests on decisional Diffie-Hellman in ristretto255 and on both following the program. A sum over one person is that
person's number: ask for sums over many, and not for two sums that differ in one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from ..crypto import elgamal, group
from ..crypto.manycore import Workshop
from ..crypto.tags import match, permutation, tag_bytes
from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .psi_dh import CHUNK, answered, arriving, heard, offer, say
from .together import together


class PublicKey(Message, reveals="a random group element: nothing"):
    point: bytes


class EncryptedValues(Message, reveals="how many numbers the other holds; each is encrypted under its own key (decisional Diffie-Hellman)"):
    first: int
    ciphertexts: bytes


class MaskedSum(Message, reveals="an encrypted sum moved by a random number: nothing"):
    ciphertexts: bytes


class OpenedSum(Message, reveals="the sum of the other's numbers over the shared ids, once your own mask is taken away"):
    points: bytes


async def receiver(me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes, limit: int) -> tuple[int, int]:
    """(how many ids are shared, the sum of the sender's numbers over them)."""
    key, size, limbs = group.scalar(me.secret.bytes), tag_bytes(len(digests), theirs), elgamal.limbs(limit)
    to, of, sums = me.scope("receiver's ids"), me.scope("sender's ids"), me.scope("values")
    public = (await sums.recv(other, PublicKey)).point
    each = limbs * elgamal.PAIR

    async def values() -> list[bytes]:
        held: list[bytes] = []
        async for _, some in arriving(sums, other, EncryptedValues, lambda m: (m.first, m.ciphertexts), each, theirs, "values"):
            held += [some[at:at + each] for at in range(0, len(some), each)]
        return held

    with Workshop(len(digests) + theirs) as shop:
        _, mine, yours, encrypted = await together(offer(to, other, digests, key, shop, session), heard(to, other, len(digests), size),
                                                   answered(of, other, theirs, key, shop, session, size, None), values())
    _, places = match(mine, yours)
    masks = [group.scalar(me.secret.bytes) for _ in range(limbs)]
    asked = await asyncio.to_thread(_summed, [encrypted[k] for k in places], public, masks, me.secret.bytes)
    await sums.send(other, MaskedSum(asked))
    points = (await sums.recv(other, OpenedSum)).points
    if len(points) != limbs * group.POINT:
        raise ProtocolError(f"{len(points)} bytes came for a sum of {limbs} limbs; they must be {limbs * group.POINT}.")

    def read() -> int:
        most, total = len(places) * ((1 << elgamal.LIMB) - 1), 0
        for k, mask in enumerate(masks):
            total += elgamal.number(group.minus(points[group.POINT * k:group.POINT * (k + 1)], group.times_base(mask)), most) << elgamal.LIMB * k
        return total

    return len(places), await asyncio.to_thread(read)


async def sender(me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes, limit: int, values: Sequence[int]) -> None:
    held = [int(v) for v in values]
    wrong = next((v for v in held if not 0 <= v <= limit), None)
    if len(held) != len(digests) or wrong is not None:
        raise BadData(f"party {me.name!r} has {len(held)} values for {len(digests)} ids" + (f", one of them {wrong}" if wrong is not None else "") +
                      f"; there must be one for each, from 0 to {limit}.")
    key, private = group.scalar(me.secret.bytes), group.scalar(me.secret.bytes)
    order = permutation(len(digests), me.secret.bytes)
    of, to, sums = me.scope("receiver's ids"), me.scope("sender's ids"), me.scope("values")
    limbs = elgamal.limbs(limit)
    await sums.send(other, PublicKey(group.times_base(private)))

    def encrypted(some: np.ndarray) -> bytes:
        return b"".join([elgamal.encrypt(private, limb, me.secret.bytes) for k in some for limb in elgamal.cut(held[k], limbs)])

    async def give() -> None:
        for first in range(0, len(order), CHUNK):
            await sums.send(other, EncryptedValues(first, await asyncio.to_thread(encrypted, order[first:first + CHUNK])))

    with Workshop(len(digests) + theirs) as shop:
        async def answer() -> None:
            tags = await answered(of, other, theirs, key, shop, session, tag_bytes(theirs, len(digests)), None)
            await say(of, other, tags[permutation(theirs, me.secret.bytes)])

        await together(answer(), offer(to, other, digests[order], key, shop, session), give())
    asked = (await sums.recv(other, MaskedSum)).ciphertexts
    if len(asked) != limbs * elgamal.PAIR:
        raise ProtocolError(f"{len(asked)} bytes came for a sum of {limbs} limbs; they must be {limbs * elgamal.PAIR}.")
    await sums.send(other, OpenedSum(b"".join(elgamal.opened(private, asked[at:at + elgamal.PAIR]) for at in range(0, len(asked), elgamal.PAIR))))


def ideal(mine: Sequence[bytes], theirs: Sequence[bytes], values: Sequence[int]) -> tuple[int, int]:
    """What the receiver gets."""
    there = set(map(bytes, mine))
    found = [v for d, v in zip(theirs, values) if bytes(d) in there]
    return len(found), sum(found)


def _summed(chosen: list[bytes], public: bytes, masks: list[bytes], draw: group.Draw) -> bytes:
    totals = [elgamal.NEUTRAL * 2] * len(masks)
    for ciphertexts in chosen:
        totals = [elgamal.add(total, ciphertexts[elgamal.PAIR * k:elgamal.PAIR * (k + 1)]) for k, total in enumerate(totals)]
    return b"".join(elgamal.masked(total, public, mask, draw) for total, mask in zip(totals, masks))
