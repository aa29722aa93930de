"""Private set intersection from Diffie-Hellman. Meadows 1986; Huberman, Franklin, Hogg: Enhancing Privacy and
Trust in Electronic Communities, 1999.

    receiver (Y, key b)                                 sender (X, key a)
      |--- BlindedIds(b·H(y)) for each y, in order ------->|   both directions at once, in chunks
      |<-- BlindedIds(a·H(x)) for each x, shuffled --------|
      |<-- Tags(h(a·b·H(y))), in order --------------------|
      |  b·a·H(x) = a·b·H(y) exactly when x = y            |

H maps an id to ristretto255 (libsodium's map, `crypto.group`), bound to this session; h is SHA-256 truncated
so that collisions have probability below 2^-40. The receiver learns the sender's set size and which of its
own ids are shared; the sender learns the receiver's set size. Neither learns anything about ids it does not
hold. Security rests on the decisional Diffie-Hellman assumption in ristretto255, on H as a random oracle, and
on both following the protocol: a party that deviates can claim ids it does not have, or answer wrongly. No
such protocol protects against guessing: a receiver whose set contains every possible id learns all of the
sender's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import numpy as np

from ..crypto import group
from ..crypto.manycore import PointPool
from ..crypto.tags import compute_tags, match, permutation, sort_by_digest, tag_bytes
from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .together import together

M = TypeVar("M", bound=Message)
CHUNK = 2048  # ids in a message: 64 KiB, and about a tenth of a second of work on one core


class BlindedIds(
    Message,
    reveals="how many ids the other holds; each is hidden under its key, which it used for nothing else "
    "(decisional Diffie-Hellman)",
):
    first: int
    points: bytes


class Tags(
    Message,
    reveals="a tag for each of your own ids under both keys: compared with the other's ids under both keys, "
    "which are shared",
):
    first: int
    tags: bytes


async def receiver(
    me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes
) -> tuple[np.ndarray, int]:
    """Return (my shared rows, sorted by digest; their number)."""
    key, size = group.scalar(me.secret.bytes), tag_bytes(len(digests), theirs)
    to, of = me.scope("receiver's ids"), me.scope("sender's ids")
    with PointPool(len(digests) + theirs) as shop:
        _, my_tags, their_tags = await together(
            send_blinded(to, other, digests, key, shop, session),
            receive_tags(to, other, len(digests), size),
            raise_to_key(of, other, theirs, key, shop, session, size, None),
        )
    rows, _ = match(my_tags, their_tags)
    return sort_by_digest(digests, rows), len(rows)


async def sender(me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes) -> None:
    key, size = group.scalar(me.secret.bytes), tag_bytes(theirs, len(digests))
    order = permutation(len(digests), me.secret.bytes)
    of, to = me.scope("receiver's ids"), me.scope("sender's ids")
    with PointPool(len(digests) + theirs) as shop:
        await together(
            raise_to_key(of, other, theirs, key, shop, session, size, of),
            send_blinded(to, other, digests[order], key, shop, session),
        )


async def blind_ids(
    digests: np.ndarray, key: bytes, shop: PointPool, session: bytes
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (index of the first id, points): my ids under my key, chunk by chunk."""
    for first in range(0, len(digests), CHUNK):
        part = digests[first : first + CHUNK]
        yield first, await asyncio.to_thread(shop.lift, part.tobytes(), part.shape[1], session, key)


async def receive_chunks(
    me: Party,
    other: str,
    kind: type[M],
    read: Callable[[M], tuple[int, bytes]],
    each: int,
    total: int,
    what: str,
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the other's chunks in order, until `total` items of `each` bytes have arrived."""
    count = 0
    while count < total:
        first, data = read(await me.recv(other, kind))
        before, count = count, check_chunk(first, count, len(data), each, total, what)
        yield before, data


def concatenate(parts: list[np.ndarray], size: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, size), np.uint8)


async def send_blinded(
    me: Party, other: str | Sequence[str], digests: np.ndarray, key: bytes, shop: PointPool, session: bytes
) -> None:
    """Send my ids under my key; the next chunk is computed while one is being sent."""
    async for first, points in blind_ids(digests, key, shop, session):
        await me.send(other, BlindedIds(first, points))


async def raise_to_key(
    me: Party,
    other: str,
    theirs: int,
    key: bytes,
    shop: PointPool,
    session: bytes,
    size: int,
    reply_to: Party | None,
) -> np.ndarray:
    """Return the other's ids under both keys, as tags; send them back if `reply_to` is given."""
    parts = []
    async for first, points in receive_chunks(
        me, other, BlindedIds, lambda m: (m.first, m.points), group.POINT, theirs, "ids"
    ):
        parts.append(
            compute_tags(await asyncio.to_thread(shop.multiply, key, points), group.POINT, session, size)
        )
        if reply_to is not None:
            await reply_to.send(other, Tags(first, parts[-1].tobytes()))
    return concatenate(parts, size)


async def receive_tags(me: Party, other: str, count: int, size: int) -> np.ndarray:
    """Receive the tags of all my ids."""
    chunks = receive_chunks(me, other, Tags, lambda m: (m.first, m.tags), size, count, "tags")
    return concatenate([np.frombuffer(tags, np.uint8).reshape(-1, size) async for _, tags in chunks], size)


def check_chunk(first: int, expected: int, length: int, each: int, total: int, what: str) -> int:
    """Return the new count, or refuse a chunk that is out of order.

    A relay that swaps or repeats chunks would give answers for other ids.
    """
    if first != expected:
        raise ProtocolError(
            f"received {what} from index {first}, expected index {expected}: messages were reordered or "
            "repeated on the way."
        )
    if length == 0 or length % each or expected + length // each > total:
        raise ProtocolError(
            f"received {length} bytes of {what}; expected 1 to {total - expected} times {each} bytes."
        )
    return expected + length // each
