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
      |--- DecoyIds(b·H'(s, k)) -------------------------------------->|  5  each must be among a⁻¹·(3)
      |<-- DecoyPlaces ------------------------------------------------|  6  for sums: the decoys' rows
      |--- DecoyMasks(m) --------------------------------------------->|     must decrypt to values + m
      |<-- OpenedCount(count, places, Σ (v_x + m_x)·G) or RefusedQuery |  7  shared if h(b·H(x)) is an IdTag

EncryptedValues, ReturnedValues and the two messages of line 6 are sent with reveal="sum" only.

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
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from ..crypto import elgamal, group
from ..crypto.manycore import PointPool
from ..crypto.tags import compute_tags, match, permutation, tag_bytes
from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .psi_dh import CHUNK, BlindedIds, M, blind_ids, concatenate, receive_chunks
from .psi_policy import RefusedQuery, refusal
from .together import together

SEED = 32
# least number of decoys: with m rows and D decoys, r changed rows contain no decoy with probability below
# (m / (m + D))^r
FEWEST = 64


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
    places: bytes
    points: bytes


def decoys(ids: int) -> int:
    """Return the number of decoys for a set of this size."""
    return max(FEWEST, ids)


async def receiver(
    me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes, limit: int | None
) -> tuple[int, int | None]:
    """Return (number of shared ids, sum of the sender's numbers over them); `limit` None: no sum."""
    n, total = len(digests), theirs + decoys(theirs)
    key, size, each = group.scalar(me.secret.bytes), tag_bytes(n, total), _bytes(limit)
    ids, rows, sums, checks = _scopes(me)
    with PointPool(n + 2 * total) as shop:
        tags = concatenate(
            [
                compute_tags(points, group.POINT, session, size)
                async for _, points in blind_ids(digests, key, shop, session)
            ],
            size,
        )
        await _stream(ids, other, IdTags, tags[permutation(n, me.secret.bytes)].tobytes(), size)  # 1
        public = (await sums.recv(other, PublicKey)).point if each else b""

        async def points() -> bytes:
            chunks = receive_chunks(
                rows, other, BlindedIds, lambda m: (m.first, m.points), group.POINT, total, "ids"
            )
            return b"".join([await asyncio.to_thread(shop.multiply, key, some) async for _, some in chunks])

        blinded, values = await together(
            points(),
            _collect(
                sums, other, EncryptedValues, lambda m: (m.first, m.ciphertexts), each, total if each else 0
            ),
        )
        order = permutation(total, me.secret.bytes)
        await _stream(
            rows, other, ReturnedIds, _rows(blinded, group.POINT)[order].tobytes(), group.POINT
        )  # 3
        masks = (
            [[group.scalar(me.secret.bytes) for _ in range(each // elgamal.PAIR)] for _ in range(total)]
            if each
            else []
        )
        for first in range(0, len(masks), CHUNK):
            some = b"".join(
                values[each * at : each * (at + 1)] for at in order[first : first + CHUNK].tolist()
            )
            await sums.send(
                other,
                ReturnedValues(
                    first,
                    await asyncio.to_thread(
                        _mask_values, some, public, masks[first : first + CHUNK], me.secret.bytes
                    ),
                ),
            )
        seed = (await checks.recv(other, DecoySeed)).seed
        if len(seed) != SEED:
            raise ProtocolError(f"party {other!r} sends a seed of {len(seed)} bytes; it must be {SEED}.")
        await _stream(
            checks, other, DecoyIds, await _lift_decoys(shop, decoys(theirs), session, seed, key), group.POINT
        )  # 5
    if each:
        places = _places((await checks.recv(other, DecoyPlaces)).places, total)
        if len(places) != decoys(theirs):
            raise ProtocolError(
                f"party {other!r} requests the masks of {len(places)} rows; there are {decoys(theirs)} "
                "decoys."
            )
        await _stream(
            checks, other, DecoyMasks, b"".join(m for at in places.tolist() for m in masks[at]), each // 2
        )
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
    shared = _places(result.places, total)
    if len(shared) != result.count or len(result.points) != each // 2:
        raise ProtocolError(
            f"party {other!r} opens a sum over {len(shared)} rows in {len(result.points)} bytes; expected "
            f"{result.count} rows and {each // 2} bytes."
        )
    return result.count, await asyncio.to_thread(
        _unmask_sum, result.points, [masks[at] for at in shared.tolist()]
    )


async def sender(
    me: Party,
    digests: np.ndarray,
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
    numbers = _check_numbers(me.name, values, len(digests), limit)
    m, hidden = len(digests), decoys(len(digests))
    total, size, each = m + hidden, tag_bytes(theirs, m + hidden), _bytes(limit)
    key, private, seed = group.scalar(me.secret.bytes), group.scalar(me.secret.bytes), me.secret.bytes(SEED)
    order = permutation(total, me.secret.bytes)
    ids, rows, sums, checks = _scopes(me)
    tags = _rows(
        await _collect(ids, other, IdTags, lambda m: (m.first, m.tags), size, theirs), size
    )  # 1: before we send anything
    with PointPool(2 * total) as shop:
        blinded = b"".join(
            [points async for _, points in blind_ids(digests, key, shop, session)]
        ) + await _lift_decoys(shop, hidden, session, seed, key)
        secrets = [
            [group.scalar(me.secret.bytes) for _ in range(each // elgamal.PAIR)] for _ in range(hidden)
        ]  # the numbers of decoys: any scalars

        def encrypt(some: np.ndarray) -> bytes:
            scalars = (
                v
                for k in some.tolist()
                for v in (
                    [
                        group.scalar_from_int(part)
                        for part in elgamal.split_limbs(numbers[k], each // elgamal.PAIR)
                    ]
                    if k < m
                    else secrets[k - m]
                )
            )
            return b"".join([elgamal.encrypt_scalar(private, v, me.secret.bytes) for v in scalars])

        async def send_values() -> None:
            if each:
                await sums.send(other, PublicKey(group.times_base(private)))
                for first in range(0, total, CHUNK):
                    await sums.send(
                        other,
                        EncryptedValues(
                            first, await asyncio.to_thread(encrypt, order[first : first + CHUNK])
                        ),
                    )

        async def unblind() -> bytes:
            chunks = receive_chunks(
                rows, other, ReturnedIds, lambda m: (m.first, m.points), group.POINT, total, "ids"
            )
            return b"".join(
                [await asyncio.to_thread(shop.multiply, group.inverse(key), some) async for _, some in chunks]
            )

        _, _, unblinded, masked = await together(
            _stream(rows, other, BlindedIds, _rows(blinded, group.POINT)[order].tobytes(), group.POINT),
            send_values(),
            unblind(),
            _collect(
                sums, other, ReturnedValues, lambda m: (m.first, m.ciphertexts), each, total if each else 0
            ),
        )
    await checks.send(other, DecoySeed(seed))
    answers = await _collect(checks, other, DecoyIds, lambda m: (m.first, m.points), group.POINT, hidden)
    decoy_rows = _find_decoys(unblinded, answers, other)
    if each:
        await checks.send(other, DecoyPlaces(decoy_rows.astype("<u4").tobytes()))
        masks = await _collect(checks, other, DecoyMasks, lambda m: (m.first, m.masks), each // 2, hidden)
        await asyncio.to_thread(_check_values, private, masked, decoy_rows, secrets, masks, each, other)
    shared, _ = match(np.delete(compute_tags(unblinded, group.POINT, session, size), decoy_rows, 0), tags)
    shared = np.delete(np.arange(total), decoy_rows)[shared]
    if len(shared) < min_overlap:
        await checks.send(other, RefusedQuery("min_overlap"))
        raise refusal("min_overlap", me.name)
    points = await asyncio.to_thread(_decrypt_sum, private, masked, shared, each)
    await checks.send(
        other, OpenedCount(len(shared), shared.astype("<u4").tobytes() if each else b"", points)
    )
    return len(shared)


def ideal(mine: Sequence[bytes], theirs: Sequence[bytes], values: Sequence[int]) -> tuple[int, int]:
    """Return (size, sum) as the receiver learns them."""
    my_ids = set(map(bytes, mine))
    shared_values = [v for d, v in zip(theirs, values) if bytes(d) in my_ids]
    return len(shared_values), sum(shared_values)


def _scopes(me: Party) -> tuple[Party, Party, Party, Party]:
    return me.scope("receiver's ids"), me.scope("sender's ids"), me.scope("values"), me.scope("decoys")


def _bytes(limit: int | None) -> int:
    """Return the bytes of one number's ciphertexts; 0 without a sum."""
    return 0 if limit is None else elgamal.count_limbs(limit) * elgamal.PAIR


def _check_numbers(name: str, values: Sequence[int], ids: int, limit: int | None) -> list[int]:
    numbers = [int(v) for v in values]
    if limit is None:
        return numbers
    wrong = next((v for v in numbers if not 0 <= v <= limit), None)
    if len(numbers) != ids or wrong is not None:
        raise BadData(
            f"party {name!r} has {len(numbers)} values for {ids} ids"
            + (f", one of them {wrong}" if wrong is not None else "")
            + f"; there must be one for each id, from 0 to {limit}."
        )
    return numbers


def _rows(data: bytes, each: int) -> np.ndarray:
    return np.frombuffer(data, np.uint8).reshape(-1, each)


async def _stream(
    me: Party, other: str, make: Callable[[int, bytes], Message], data: bytes, each: int
) -> None:
    """Send `data` in messages of up to CHUNK items of `each` bytes."""
    for first in range(0, len(data) // each, CHUNK):
        await me.send(other, make(first, data[each * first : each * (first + CHUNK)]))


async def _collect(
    me: Party, other: str, kind: type[M], read: Callable[[M], tuple[int, bytes]], each: int, total: int
) -> bytes:
    """Receive all items; memory grows with what arrived, not with what was announced."""
    return b"".join([some async for _, some in receive_chunks(me, other, kind, read, each, total, kind.kind)])


async def _lift_decoys(shop: PointPool, count: int, session: bytes, seed: bytes, key: bytes) -> bytes:
    """Return key·H'(seed, k) for each decoy k.

    The hashed input is longer than for an id, so no id maps to the same element, whatever the seed.
    """
    return await asyncio.to_thread(
        shop.lift, np.arange(count, dtype="<u8").tobytes(), 8, b"decoy" + session + seed, key
    )


def _find_decoys(unblinded: bytes, answers: bytes, other: str) -> np.ndarray:
    """Return the row of each decoy among the returned rows, which must all differ."""
    place = {
        unblinded[at : at + group.POINT]: at // group.POINT for at in range(0, len(unblinded), group.POINT)
    }
    if len(place) * group.POINT != len(unblinded):
        twice = len(unblinded) // group.POINT - len(place)
        raise ProtocolError(
            f"party {other!r} returned {twice} rows twice: it does not follow the protocol. Nothing was "
            "opened."
        )
    expected = [answers[at : at + group.POINT] for at in range(0, len(answers), group.POINT)]
    lost = sum(point not in place for point in expected)
    if lost:
        raise ProtocolError(
            f"party {other!r} did not return {lost} of {len(expected)} decoys: it does not follow the "
            "protocol. Nothing was opened."
        )
    return np.array([place[point] for point in expected], np.int64)


def _check_values(
    private: bytes,
    masked: bytes,
    decoy_rows: np.ndarray,
    secrets: list[list[bytes]],
    masks: bytes,
    each: int,
    other: str,
) -> None:
    """Check that the decoys' numbers were returned with only the declared mask added."""
    limbs, wrong = each // elgamal.PAIR, 0
    for k, at in enumerate(decoy_rows.tolist()):
        for limb in range(limbs):
            ciphertext = masked[each * at + elgamal.PAIR * limb : each * at + elgamal.PAIR * (limb + 1)]
            mask = masks[group.SCALAR * (limbs * k + limb) : group.SCALAR * (limbs * k + limb + 1)]
            wrong += elgamal.decrypt_to_point(private, ciphertext) != group.plus(
                group.times_base(secrets[k][limb]), _times_base(mask)
            )
    if wrong:
        raise ProtocolError(
            f"party {other!r} changed the numbers of {wrong} decoys: it does not follow the protocol. "
            "Nothing was opened."
        )


def _times_base(scalar: bytes) -> bytes:
    """Return scalar·G for a scalar from the other party."""
    try:
        return group.times_base(scalar)
    except (RuntimeError, TypeError, ValueError):
        raise ProtocolError(
            "received a mask of 0, which has probability below 2^-250: the other party does not follow the "
            "protocol."
        ) from None


def _mask_values(ciphertexts: bytes, public: bytes, masks: list[list[bytes]], draw: group.Draw) -> bytes:
    return b"".join(
        [
            elgamal.mask(ciphertexts[elgamal.PAIR * k : elgamal.PAIR * (k + 1)], public, mask, draw)
            for k, mask in enumerate(chain.from_iterable(masks))
        ]
    )


def _decrypt_sum(private: bytes, masked: bytes, shared: np.ndarray, each: int) -> bytes:
    """Return Σ (v + m)·G over the shared rows, limb by limb. The masks hide it from us."""
    totals = [elgamal.NEUTRAL * 2] * (each // elgamal.PAIR)
    for at in shared.tolist():
        totals = [
            elgamal.add(total, masked[each * at + elgamal.PAIR * k : each * at + elgamal.PAIR * (k + 1)])
            for k, total in enumerate(totals)
        ]
    return b"".join(
        elgamal.decrypt_to_point(private, total) if len(shared) else elgamal.NEUTRAL for total in totals
    )


def _places(data: bytes, total: int) -> np.ndarray:
    """Read row numbers, each at most once."""
    places = np.frombuffer(data[: len(data) // 4 * 4], "<u4").astype(np.int64)
    if len(data) % 4 or len(np.unique(places)) < len(places) or (len(places) and int(places.max()) >= total):
        raise ProtocolError(
            f"{len(data)} bytes are not row numbers below {total}: expected 4 bytes each, without repetition."
        )
    return places


def _unmask_sum(points: bytes, masks: list[list[bytes]]) -> int:
    """Return the sum of the numbers by removing the masks of its rows, limb by limb."""
    most, total = len(masks) * ((1 << elgamal.LIMB) - 1), 0
    for k in range(len(points) // group.POINT if masks else 0):
        mask = masks[0][k]
        for row in masks[1:]:
            mask = group.scalar_sum(mask, row[k])
        total += (
            elgamal.discrete_log(
                group.minus(points[group.POINT * k : group.POINT * (k + 1)], group.times_base(mask)), most
            )
            << elgamal.LIMB * k
        )
    return total
