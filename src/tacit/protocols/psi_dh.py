"""Private set intersection from Diffie-Hellman. Meadows 1986; Huberman, Franklin, Hogg: Enhancing Privacy and
Trust in Electronic Communities, 1999.

    receiver (Y, key b)                                 sender (X, key a)
      |--- BlindedIds(b·H(y)) for each y, in order ------->|   both directions at once, in chunks
      |<-- BlindedIds(a·H(x)) for each x, shuffled --------|
      |<-- Tags(h(a·b·H(y))), in order --------------------|
      |  b·a·H(x) = a·b·H(y) exactly when x = y            |

H maps an id to ristretto255 (libsodium's own map, `crypto.group`), bound to this session; h is SHA-256 cut to
40 bits more than the sets can collide in. The receiver learns the sender's set size and which of its own ids
are shared; the sender learns the receiver's set size. Neither learns anything of an id it does not hold
itself. It rests on the decisional Diffie-Hellman assumption in ristretto255, H as a random oracle, and on
both following the program: one who deviates can claim ids it does not have, or answer wrongly. Against
guessing there is no cure in any such protocol: a receiver that puts every possible id into its set learns all
of the sender's.
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
    """(my rows that are shared, in the order of their digests; how many)."""
    key, size = group.scalar(me.secret.bytes), tag_bytes(len(digests), theirs)
    to, of = me.scope("receiver's ids"), me.scope("sender's ids")
    with PointPool(len(digests) + theirs) as shop:
        _, mine, yours = await together(
            offer(to, other, digests, key, shop, session),
            heard(to, other, len(digests), size),
            answered(of, other, theirs, key, shop, session, size, None),
        )
    rows, _ = match(mine, yours)
    return sort_by_digest(digests, rows), len(rows)


async def sender(me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes) -> None:
    key, size = group.scalar(me.secret.bytes), tag_bytes(theirs, len(digests))
    order = permutation(len(digests), me.secret.bytes)
    of, to = me.scope("receiver's ids"), me.scope("sender's ids")
    with PointPool(len(digests) + theirs) as shop:
        await together(
            answered(of, other, theirs, key, shop, session, size, of),
            offer(to, other, digests[order], key, shop, session),
        )


async def lifted(
    digests: np.ndarray, key: bytes, shop: PointPool, session: bytes
) -> AsyncIterator[tuple[int, bytes]]:
    """(the place of its first, points) of my ids under my key, chunk after chunk."""
    for first in range(0, len(digests), CHUNK):
        part = digests[first : first + CHUNK]
        yield first, await asyncio.to_thread(shop.lift, part.tobytes(), part.shape[1], session, key)


async def arriving(
    me: Party,
    other: str,
    kind: type[M],
    read: Callable[[M], tuple[int, bytes]],
    each: int,
    total: int,
    what: str,
) -> AsyncIterator[tuple[int, bytes]]:
    """The other's chunks as they come and as `read` reads them, until `total` things of `each` bytes are
    here; each in its place.
    """
    count = 0
    while count < total:
        first, data = read(await me.recv(other, kind))
        before, count = count, in_order(first, count, len(data), each, total, what)
        yield before, data


def stacked(parts: list[np.ndarray], size: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, size), np.uint8)


async def offer(
    me: Party, other: str | Sequence[str], digests: np.ndarray, key: bytes, shop: PointPool, session: bytes
) -> None:
    """My ids under my key, to one or to several; the next chunk is computed while one is on its way."""
    async for first, points in lifted(digests, key, shop, session):
        await me.send(other, BlindedIds(first, points))


async def answered(
    me: Party,
    other: str,
    theirs: int,
    key: bytes,
    shop: PointPool,
    session: bytes,
    size: int,
    back: Party | None,
) -> np.ndarray:
    """The other's ids under both keys, as tags; said `back` chunk by chunk if asked to."""
    parts = []
    async for first, points in arriving(
        me, other, BlindedIds, lambda m: (m.first, m.points), group.POINT, theirs, "ids"
    ):
        parts.append(
            compute_tags(await asyncio.to_thread(shop.multiply, key, points), group.POINT, session, size)
        )
        if back is not None:
            await back.send(other, Tags(first, parts[-1].tobytes()))
    return stacked(parts, size)


async def heard(me: Party, other: str, count: int, size: int) -> np.ndarray:
    """Tags of all my ids."""
    came = arriving(me, other, Tags, lambda m: (m.first, m.tags), size, count, "tags")
    return stacked([np.frombuffer(tags, np.uint8).reshape(-1, size) async for _, tags in came], size)


def in_order(first: int, expected: int, length: int, each: int, total: int, what: str) -> int:
    """How many there are now. A relay that swaps or repeats chunks would give answers to other ids than were
    asked about.
    """
    if first != expected:
        raise ProtocolError(
            f"{what} from {first} on came where those from {expected} on were due: something on the way "
            "reorders or repeats messages."
        )
    if length == 0 or length % each or expected + length // each > total:
        raise ProtocolError(
            f"{length} bytes of {what} came; they must be 1 to {total - expected} times {each} bytes."
        )
    return expected + length // each
