"""Private intersection size and sum, opened only if the sender has counted enough shared ids.

E. De Cristofaro, P. Gasti, G. Tsudik: Fast and Private Computation of Cardinality of Set Intersection and
Union, CANS 2012, with the roles such that the sender counts; the sum as in M. Ion, B. Kreuter, A. E.
Nergiz, S. Patel, S. Saxena, K. Seth, M. Raykova, D. Shanahan, M. Yung: On Deploying Secure Computation:
Private Intersection-Sum-with-Cardinality, EuroS&P 2020, permuted and masked by the receiver; decoys check
the receiver.

    receiver (Y, key b)                     sender (X with a number v_x each, key a, ElGamal key P = p·G)
      |--- IdTags(h(b·H(y))), shuffled ------------------------------->|  1  before it sees the sender's
      |<-- PublicKey(P), BlindedIds(a·H(x)), EncryptedValues(v_x) -----|  2  X and D decoys, shuffled
      |--- ReturnedIds(b·a·H(x)), ReturnedValues(v_x + m_x) ---------->|  3  shuffled; m_x is random
      |<-- DecoySeed(s) -----------------------------------------------|  4  decoy k is H'(s, k): no id
      |--- DecoyIds(b·H'(s, k)) -------------------------------------->|  5  must be different rows of a⁻¹·(3)
      |<-- DecoyPlaces ------------------------------------------------|  6  for sums: the decoys' rows
      |--- DecoyMasks(m) --------------------------------------------->|     must decrypt to values + m
      |<-- OpenedCount(count, Σ (v_x + m_x)·G) or RefusedQuery --------|  7  shared if h(b·H(x)) is an IdTag
      |<-- OpenedPlaces -----------------------------------------------|  8  for sums: the shared rows

PublicKey, EncryptedValues, ReturnedValues and lines 6 and 8 are sent with reveal="sum" only. Messages have
CHUNK items; whoever receives confirms them (ChunkRead), and the other is AHEAD messages ahead at most.

If both follow the protocol, the receiver learns the sender's set size, and the count and the sum if there are
at least `min_overlap` shared ids, else that there are fewer. The sender learns the receiver's set size and
the count. Neither learns which ids are shared. Security rests on decisional Diffie-Hellman in ristretto255
and on H, H' and h as random oracles.

Against a receiver that deviates (the sender follows the protocol): a row that is not returned as specified
(replaced by a copy of another row, under another key, or with another number) is detected if it is a decoy,
and the receiver cannot tell decoys from ids. There are at least as many decoys as rows, so r changed rows go
undetected with probability at most 2^-r, and so does a count that is too high by r. Made-up ids in Y do not
increase the count. Not prevented: Y may be chosen freely, so a receiver that knows min_overlap − 1 shared
ids, or asks twice with sets that differ in one id, learns about one more. A sender that deviates can learn
which of its own ids are shared, and can return any number.

Sets larger than memory. All orders are those of the whole set, not of a part of it: a count or a sum of a
part would tell more than that of the set. Both shuffle by dealing rows to random parts, and shuffle each (Rao
1961; Sandelius 1962): every order is equally likely. The sender then compares part by part, where a part has
the rows whose tags are in a range; tags are under the receiver's key, so which ids meet in a part is not
known to it. Parts are never seen by the other: what is sent is ordered by row number, since an order by tag
would let the receiver, who knows the tags of its ids, find out which of them are shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from ..crypto import elgamal, group
from ..crypto.manycore import PointPool
from ..crypto.tags import compute_tags, tag_bytes
from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .id_buckets import IdBuckets
from .psi_dh import BlindedIds
from .psi_oprf import check_position
from .psi_policy import RefusedQuery, refusal
from .psi_sum_parts import (
    CHUNK,
    ROW,
    Comparison,
    Item,
    Scalars,
    Shuffled,
    count_parts,
    decoy_numbers,
    mix,
    ranges,
    spans,
    split_rows,
)
from .together import in_thread

SEED = 32
# least number of decoys: with m rows and D decoys, r changed rows contain no decoy with probability below
# (m / (m + D))^r
FEWEST = 64
AHEAD = 64  # messages that are sent and not confirmed: 40 MB with the values of a sum


class IdTags(
    Message, reveals="how many ids the other holds; each is hidden under its key (decisional Diffie-Hellman)"
):
    first: int
    tags: bytes


class PublicKey(Message, reveals="a random group element: nothing"):
    point: bytes


class EncryptedValues(
    Message,
    reveals="how many numbers the other holds; each is encrypted under its own key (decisional "
    "Diffie-Hellman)",
):
    first: int
    ciphertexts: bytes


class ReturnedIds(
    Message,
    reveals="your own ids under both keys, in an order you do not know: how many are shared, not which",
):
    first: int
    points: bytes


class ReturnedValues(
    Message, reveals="your own numbers in that order, each moved by a random number: nothing"
):
    first: int
    ciphertexts: bytes


class DecoySeed(Message, reveals="a random seed: nothing"):
    seed: bytes


class DecoyIds(Message, reveals="points that stand for no id under the other's key: nothing"):
    first: int
    points: bytes


class DecoyPlaces(Message, reveals="which rows were decoys: nothing"):
    first: int
    places: bytes


class DecoyMasks(Message, reveals="the masks of the decoys: nothing"):
    first: int
    masks: bytes


class OpenedCount(
    Message,
    reveals="how many ids are shared and, if asked for, the sum of the other's numbers over them, once your "
    "own masks are taken away",
):
    count: int
    points: bytes


class OpenedPlaces(
    Message, reveals="which rows, in the order you returned them, are shared: not which ids they are"
):
    first: int
    places: bytes


class ChunkRead(Message, reveals="that the other has read a message: nothing"):
    chunk: int


def decoys(ids: int) -> int:
    """Return the number of decoys for a set of this size."""
    return max(FEWEST, ids)


async def receiver(
    me: Party, ids: IdBuckets, other: str, theirs: int, session: bytes, limit: int | None
) -> tuple[int, int | None]:
    """Return (number of shared ids, sum of the sender's numbers over them); `limit` None: no sum."""
    ids.forget_parts()  # of a matching that did not come to its end
    n, hidden, total = len(ids), decoys(theirs), theirs + decoys(theirs)
    key, size, each = group.scalar(me.secret.bytes), tag_bytes(n, total), bytes_of_number(limit)
    masks = Scalars(b"mask", me.secret.bytes(SEED), each)
    to, rows, sums, checks = _scopes(me)
    with PointPool(n + 2 * total) as shop:
        tags = Shuffled(ids.new_parts(count_parts(n), size), me.secret.bytes)
        for digests, _ in ids.chunks():
            for first in range(0, len(digests), CHUNK):
                some = digests[first : first + CHUNK]
                points = await asyncio.to_thread(shop.lift, some.tobytes(), some.shape[1], session, key)
                await in_thread(tags.add, compute_tags(points, group.POINT, session, size))
        await in_thread(tags.finish)
        async for first, some in _send_chunks(to, other, tags.chunks()):  # 1
            await to.send(other, IdTags(first, some.tobytes()))
        tags.parts.remove()
        public = (await sums.recv(other, PublicKey)).point if each else b""
        returned = Shuffled(ids.new_parts(count_parts(total), group.POINT + each), me.secret.bytes)
        async for first, count in _receive_chunks(rows, other, total):  # 2
            data = _checked(await rows.recv(other, BlindedIds), "points", first, count * group.POINT)
            points = await asyncio.to_thread(shop.multiply, key, data)
            columns = [split_rows(points, group.POINT)]
            if each:
                encrypted = await sums.recv(other, EncryptedValues)
                columns.append(split_rows(_checked(encrypted, "ciphertexts", first, count * each), each))
            await in_thread(returned.add, np.concatenate(columns, 1))
        await in_thread(returned.finish)
        async for first, some in _send_chunks(rows, other, returned.chunks()):  # 3
            await rows.send(other, ReturnedIds(first, some[:, : group.POINT].tobytes()))
            if each:
                values = some[:, group.POINT :].tobytes()
                numbers = range(first, first + len(some))
                masked = await asyncio.to_thread(
                    _mask_values, values, public, masks, numbers, me.secret.bytes
                )
                await sums.send(other, ReturnedValues(first, masked))
        returned.parts.remove()
        seed = (await checks.recv(other, DecoySeed)).seed
        if len(seed) != SEED:
            raise ProtocolError(f"party {other!r} sends a seed of {len(seed)} bytes; it must be {SEED}.")
        async for first, some in _send_chunks(checks, other, ranges(hidden)):  # 5
            points = await asyncio.to_thread(_lift_decoys, shop, some, session, seed, key)
            await checks.send(other, DecoyIds(first, points))
    if each:
        before = -1
        for first, count in spans(hidden):  # 6
            message = await checks.recv(other, DecoyPlaces)
            places = _places(_checked(message, "places", first, 4 * count), before, total, other)
            before = int(places[-1])
            scalars = await asyncio.to_thread(masks.of, places.tolist())
            await checks.send(other, DecoyMasks(first, b"".join(chain.from_iterable(scalars))))
    result: Message = await checks.recv(other, OpenedCount, RefusedQuery)
    if isinstance(result, RefusedQuery):
        raise refusal(result.rule, other)
    assert isinstance(result, OpenedCount)
    if not 0 <= result.count <= min(n, theirs):
        raise ProtocolError(
            f"party {other!r} reports {result.count} shared ids; it must be between 0 and {min(n, theirs)}."
        )
    if not each:
        return result.count, None
    if len(result.points) != each // 2:
        raise ProtocolError(
            f"party {other!r} opens a sum in {len(result.points)} bytes; expected {each // 2}."
        )
    mask, before = [bytes(group.SCALAR)] * (each // elgamal.PAIR), -1
    async for first, count in _receive_chunks(checks, other, result.count):  # 8
        opened = await checks.recv(other, OpenedPlaces)
        places = _places(_checked(opened, "places", first, 4 * count), before, total, other)
        before = int(places[-1])
        mask = await asyncio.to_thread(_add_scalars, mask, masks, places.tolist())
    return result.count, await asyncio.to_thread(_unmask_sum, result.points, mask, result.count)


async def sender(
    me: Party,
    ids: IdBuckets,
    other: str,
    theirs: int,
    session: bytes,
    limit: int | None,
    values: Sequence[int],
    min_overlap: int,
) -> int:
    """Return the number of shared ids.

    With fewer than `min_overlap`, nothing is opened and both sides raise QueryRefused.
    """
    ids.forget_parts()  # of a matching that did not come to its end
    numbers = _check_numbers(me.name, values, ids, limit)
    m, hidden = len(ids), decoys(len(ids))
    total, size, each = m + hidden, tag_bytes(theirs, m + hidden), bytes_of_number(limit)
    key, private, seed = group.scalar(me.secret.bytes), group.scalar(me.secret.bytes), me.secret.bytes(SEED)
    secrets = Scalars(b"decoy", me.secret.bytes(SEED), each)  # the numbers of decoys: any scalars
    of, rows, sums, checks = _scopes(me)
    parts, compare = count_parts(total), Comparison(ids, theirs, total, hidden, session, size, each, other)
    compare.spread = int.from_bytes(me.secret.bytes(8), "little") | 1
    async for first, count in _receive_chunks(of, other, theirs):  # 1: before we send anything
        data = _checked(await of.recv(other, IdTags), "tags", first, count * size)
        await in_thread(compare.add_tags, split_rows(data, size))
    with PointPool(2 * total) as shop:
        mixed = Shuffled(ids.new_parts(parts, Item.WIDTH), me.secret.bytes)
        await in_thread(mix, mixed, ids, numbers, m, hidden)
        if each:
            await sums.send(other, PublicKey(group.times_base(private)))

        def blind(some: np.ndarray) -> tuple[bytes, bytes]:
            points = _blind(shop, some, session, seed, key)
            return points, _encrypt(private, some, secrets, each, me.secret.bytes) if each else b""

        async for first, some in _send_chunks(rows, other, mixed.chunks()):  # 2
            points, ciphertexts = await asyncio.to_thread(blind, some)
            await rows.send(other, BlindedIds(first, points))
            if each:
                await sums.send(other, EncryptedValues(first, ciphertexts))
        mixed.parts.remove()
        inverse = group.inverse(key)
        async for first, count in _receive_chunks(rows, other, total):  # 3
            data = _checked(await rows.recv(other, ReturnedIds), "points", first, count * group.POINT)
            unblinded = await asyncio.to_thread(shop.multiply, inverse, data)
            back = b""
            if each:
                masked = await sums.recv(other, ReturnedValues)
                back = _checked(masked, "ciphertexts", first, count * each)
            await in_thread(compare.add_rows, unblinded, first, back)
    await checks.send(other, DecoySeed(seed))
    async for first, count in _receive_chunks(checks, other, hidden):  # 5
        data = _checked(await checks.recv(other, DecoyIds), "points", first, count * group.POINT)
        await in_thread(compare.add_decoys, data, first)
    await in_thread(compare.finish)
    wrong = 0
    async for first, some in _numbered(compare.decoys_by_row() if each else iter(())):  # 6
        places = some[:, :ROW].copy().view("<i8")[:, 0]
        await checks.send(other, DecoyPlaces(first, places.astype("<u4").tobytes()))
        data = _checked(await checks.recv(other, DecoyMasks), "masks", first, len(some) * each // 2)
        wrong += await asyncio.to_thread(_count_wrong, private, some, secrets, data, each)
    if wrong:
        raise ProtocolError(
            f"party {other!r} changed the numbers of {wrong} decoys: it does not follow the protocol. "
            "Nothing was opened."
        )
    if compare.count < min_overlap:
        await checks.send(other, RefusedQuery("min_overlap"))
        raise refusal("min_overlap", me.name)
    opened = await asyncio.to_thread(_decrypt_sum, private, compare, each)
    await checks.send(other, OpenedCount(compare.count, opened))
    if each:
        async for first, some in _send_chunks(checks, other, compare.shared_by_row()):  # 8
            places = some[:, :ROW].copy().view("<i8")[:, 0]
            await checks.send(other, OpenedPlaces(first, places.astype("<u4").tobytes()))
    return compare.count


def ideal(mine: Sequence[bytes], theirs: Sequence[bytes], values: Sequence[int]) -> tuple[int, int]:
    """Return (size, sum) as the receiver learns them."""
    my_ids = set(map(bytes, mine))
    shared_values = [v for d, v in zip(theirs, values) if bytes(d) in my_ids]
    return len(shared_values), sum(shared_values)


# messages ---------------------------------------------------------------------------------------------------


async def _send_chunks(
    me: Party, other: str, chunks: Iterator[np.ndarray]
) -> AsyncIterator[tuple[int, np.ndarray]]:
    """Yield (index of the first item, items) of each message, when it may be sent."""
    async for first, some in _numbered(chunks):
        ahead = first // CHUNK - AHEAD
        if ahead >= 0:
            check_position(((await me.recv(other, ChunkRead)).chunk,), (ahead,), "(message)")
        yield first, some


async def _numbered(chunks: Iterator[np.ndarray]) -> AsyncIterator[tuple[int, np.ndarray]]:
    first = 0
    while (some := await in_thread(next, chunks, None)) is not None:
        yield first, some
        first += len(some)


async def _receive_chunks(me: Party, other: str, total: int) -> AsyncIterator[tuple[int, int]]:
    """Yield (index of the first item, number of items) of each message, and confirm it afterwards."""
    for number, (first, count) in enumerate(spans(total)):
        yield first, count
        if (number + AHEAD) * CHUNK < total:
            await me.send(other, ChunkRead(number))


def _checked(message: Any, name: str, first: int, size: int) -> bytes:
    """Return the bytes of a message, which must be the expected ones."""
    data: bytes = getattr(message, name)
    check_position((message.first, len(data)), (first, size), f"(first item, bytes of {name})")
    return data


def _scopes(me: Party) -> tuple[Party, Party, Party, Party]:
    return me.scope("receiver's ids"), me.scope("sender's ids"), me.scope("values"), me.scope("decoys")


def bytes_of_number(limit: int | None) -> int:
    """Return the bytes of one number's ciphertexts; 0 without a sum."""
    return 0 if limit is None else elgamal.count_limbs(limit) * elgamal.PAIR


def _check_numbers(name: str, values: Sequence[int], ids: IdBuckets, limit: int | None) -> list[int]:
    """Return the values of ids in memory; those of ids in files are with them."""
    numbers = [int(v) for v in values]
    if limit is None:
        return []
    count, wrong = ids.measure_values(numbers, limit)
    if count != len(ids) or wrong is not None:
        raise BadData(
            f"party {name!r} has {count} values for {len(ids)} ids"
            + (f", one of them {wrong}" if wrong is not None else "")
            + f"; there must be one for each id, from 0 to {limit}."
        )
    return numbers


def _lift_decoys(shop: PointPool, numbers: np.ndarray, session: bytes, seed: bytes, key: bytes) -> bytes:
    """Return key·H'(seed, k) for each decoy k.

    The hashed input is longer than for an id, so no id maps to the same element, whatever the seed.
    """
    return shop.lift(numbers.astype("<u8").tobytes(), 8, b"decoy" + session + seed, key)


def _blind(shop: PointPool, some: np.ndarray, session: bytes, seed: bytes, key: bytes) -> bytes:
    """Return a·H(x) of ids and decoys, as they come."""
    points, is_decoy = np.empty((len(some), group.POINT), np.uint8), some[:, 0] == 1
    digests = some[~is_decoy, Item.DIGEST : Item.VALUE]
    points[~is_decoy] = split_rows(shop.lift(digests.tobytes(), digests.shape[1], session, key), group.POINT)
    points[is_decoy] = split_rows(
        _lift_decoys(shop, decoy_numbers(some[is_decoy]), session, seed, key), group.POINT
    )
    return points.tobytes()


def _encrypt(private: bytes, some: np.ndarray, secrets: Scalars, each: int, draw: group.Draw) -> bytes:
    limbs = each // elgamal.PAIR
    values = some[:, Item.VALUE :].copy().view("<i8")[:, 0].tolist()
    numbers, is_decoy = decoy_numbers(some).tolist(), (some[:, 0] == 1).tolist()
    scalars = (
        scalar
        for k in range(len(some))
        for scalar in (
            secrets.of([numbers[k]])[0]
            if is_decoy[k]
            else [group.scalar_from_int(limb) for limb in elgamal.split_limbs(values[k], limbs)]
        )
    )
    return b"".join([elgamal.encrypt_scalar(private, scalar, draw) for scalar in scalars])


def _count_wrong(private: bytes, some: np.ndarray, secrets: Scalars, masks: bytes, each: int) -> int:
    """Return how many numbers of decoys were returned with another than the declared mask added."""
    limbs, wrong = each // elgamal.PAIR, 0
    numbers = some[:, ROW : 2 * ROW].copy().view("<i8")[:, 0].tolist()
    masked = some[:, 2 * ROW :].tobytes()
    for at, scalars in enumerate(secrets.of(numbers)):
        for limb in range(limbs):
            ciphertext = masked[each * at + elgamal.PAIR * limb : each * at + elgamal.PAIR * (limb + 1)]
            mask = masks[group.SCALAR * (limbs * at + limb) : group.SCALAR * (limbs * at + limb + 1)]
            wrong += elgamal.decrypt_to_point(private, ciphertext) != group.plus(
                group.times_base(scalars[limb]), _times_base(mask)
            )
    return wrong


def _times_base(scalar: bytes) -> bytes:
    """Return scalar·G for a scalar from the other party."""
    try:
        return group.times_base(scalar)
    except (RuntimeError, TypeError, ValueError):
        raise ProtocolError(
            "received a mask of 0, which has probability below 2^-250: the other party does not follow the "
            "protocol."
        ) from None


def _mask_values(
    ciphertexts: bytes, public: bytes, masks: Scalars, numbers: Sequence[int], draw: group.Draw
) -> bytes:
    return b"".join(
        [
            elgamal.mask(ciphertexts[elgamal.PAIR * k : elgamal.PAIR * (k + 1)], public, mask, draw)
            for k, mask in enumerate(chain.from_iterable(masks.of(numbers)))
        ]
    )


def _decrypt_sum(private: bytes, compare: Comparison, each: int) -> bytes:
    """Return Σ (v + m)·G over the shared rows, limb by limb. The masks hide it from us."""
    totals, limbs = [elgamal.NEUTRAL * 2] * (each // elgamal.PAIR), each // elgamal.PAIR
    for some in compare.shared_by_row() if each else ():
        for row in some[:, ROW:]:
            data = row.tobytes()
            totals = [
                elgamal.add(total, data[elgamal.PAIR * k : elgamal.PAIR * (k + 1)])
                for k, total in zip(range(limbs), totals)
            ]
    if not compare.count:
        return elgamal.NEUTRAL * limbs
    return b"".join(elgamal.decrypt_to_point(private, total) for total in totals)


def _places(data: bytes, before: int, total: int, other: str) -> np.ndarray:
    """Read row numbers, which must grow from message to message: so each occurs at most once."""
    places = np.frombuffer(data, "<u4").astype(np.int64)
    grown = np.diff(places, prepend=before)
    if (grown <= 0).any() or int(places[-1]) >= total:
        raise ProtocolError(
            f"party {other!r} sent row numbers that do not grow, or are not below {total}: it does not "
            "follow the protocol."
        )
    return places


def _add_scalars(sums: list[bytes], masks: Scalars, places: list[int]) -> list[bytes]:
    for row in masks.of(places):
        sums = [group.scalar_sum(total, mask) for total, mask in zip(sums, row)]
    return sums


def _unmask_sum(points: bytes, mask: list[bytes], count: int) -> int:
    """Return the sum of the numbers of `count` rows by removing the sum of their masks, limb by limb."""
    most, total = count * ((1 << elgamal.LIMB) - 1), 0
    for k, scalar in enumerate(mask if count else []):
        point = group.minus(points[group.POINT * k : group.POINT * (k + 1)], group.times_base(scalar))
        total += elgamal.discrete_log(point, most) << elgamal.LIMB * k
    return total
