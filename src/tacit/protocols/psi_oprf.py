"""Private set intersection of large sets from oblivious transfer. Kolesnikov, Kumaresan, Rosulek, Trieu:
Efficient Batched Oblivious PRF with Applications to Private Set Intersection, CCS 2016, figures 2 and 6,
with the hashing of Pinkas, Schneider, Zohner 2018.

    receiver (Y)                                                sender (X)
      |--- BaseOffer(A) ------------------------------------------>|   w base transfers, roles reversed: the sender chooses with its secret bits s and
      |<-- BaseChoices(B_1 … B_w) ---------------------------------|   gets one seed of each pair; both stretch theirs to columns T0, T1 and Q
      |  each y into one of its three bins                         |
      |--- OprfRows(T0 ⊕ T1 ⊕ C(y)), a row a bin ----------------->|   Q ⊕ s·row = T0 ⊕ s·C(y) in y's bin: so the sender can compute
      |<-- Outputs(h(bin, T0 ⊕ s·(C(y) ⊕ C(x)))), sorted ----------|   for each x in each of its three bins, and it is h(bin, T0) exactly if x = y

C is a pseudorandom code (AES under keys of the session, after the sets are fixed): two codewords differ in
at least 128 of their w places, but with probability 2^-40, so that h of anything else is random to the
receiver. h is SHA-256 cut to 40 bits more than the sets can collide in. The receiver learns the sender's
set size and which of its own ids are shared; the sender the receiver's set size. It rests on
Diffie-Hellman for the base transfers, AES, SHA-256 as a correlation-robust hash, and on both following the
program. Things that go wrong by chance (an id that finds no bin, two codewords too near, two outputs
equal) each do so in less than one of 2^40 runs.

Sets above a million ids are dealt into buckets by a public hash, each padded to a size that follows from
the total alone, and go through one after the other: memory is that of two buckets, whatever the sets hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..crypto import ot
from ..crypto.agree import bind
from ..crypto.bits import pack, transpose
from ..crypto.cuckoo import FUNCTIONS, place, places_for
from ..crypto.tags import STATISTICAL, compute_tags, match, sort_by_digest, tag_bytes, words
from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .together import together

BUCKET = 1 << 20  # ids in a bucket, about
CHUNK = 1 << 15  # bins in a message: 1.8 MB, and matrices that stay in a core's cache
# tables the receiver may send before it has the outputs of the first: bounds what waits in the sender's
# mailbox
AHEAD = 2
DISTANCE = 128  # κ: places in which two codewords differ at least
BLOCK = 16  # bytes of an AES block, and of a digest


class BaseOffer(Message, reveals="a random group element: nothing"):
    point: bytes


class BaseChoices(Message, reveals="random group elements, whatever the other chose: nothing"):
    points: bytes


class OprfRows(
    Message,
    reveals="how many ids the other holds, rounded up; rows that are random without the seeds the receiver "
    "keeps",
):
    bucket: int
    table: int
    first: int
    rows: bytes


class Outputs(
    Message,
    reveals="a random-looking output for each of the other's ids; equal to yours where you hold the id, "
    "too, and telling nothing otherwise",
):
    bucket: int
    table: int
    outputs: bytes


@dataclass(frozen=True)
class OprfLayout:
    """What both come to from the two set sizes and the session: sizes of codes, outputs, buckets and tables,
    and the keys of the public hashes.
    """

    receivers: int
    senders: int
    session: bytes

    @property
    def buckets(self) -> int:
        return max(1, math.ceil(max(self.receivers, self.senders) / BUCKET))

    @property
    def code(self) -> int:
        """w/8: bytes of a codeword."""
        return code_bits(self.senders) // 8

    @property
    def size(self) -> int:
        """Places in each table of a bucket."""
        return places_for(capacity(self.receivers, self.buckets))

    @property
    def outputs(self) -> int:
        """Outputs for each table of a bucket."""
        return capacity(self.senders, self.buckets)

    @property
    def output(self) -> int:
        """Bytes of one."""
        return tag_bytes(self.receivers, self.buckets * self.outputs)

    def key(self, use: str, *which: int) -> bytes:
        return hashlib.sha256(bind("tacit psi oprf 1", self.session, use, *which)).digest()

    def dealt(self, digests: np.ndarray) -> Iterator[np.ndarray]:
        """The rows of each bucket."""
        if self.buckets == 1:
            yield np.arange(len(digests))
            return
        key, numbers = self.key("places"), np.empty(len(digests), np.uint16)
        for at in range(0, len(digests), BUCKET):
            numbers[at : at + BUCKET] = self._word(
                ot.encrypt_blocks(digests[at : at + BUCKET], key), 3, self.buckets
            )
        order = np.argsort(numbers, kind="stable").astype(np.uint32)
        ends = np.searchsorted(numbers[order], np.arange(self.buckets + 1))
        for b in range(self.buckets):
            yield order[ends[b] : ends[b + 1]].astype(np.int64)

    def positions(self, digests: np.ndarray) -> np.ndarray:
        """(ids, 3): each one's place in each table."""
        made = ot.encrypt_blocks(digests, self.key("places"))
        return np.stack([self._word(made, i, self.size) for i in range(FUNCTIONS)], 1)

    def placed(self, digests: np.ndarray) -> np.ndarray:
        """(3, places): which id lies where, −1 for none."""
        return place(self.positions(digests), self.size)

    @staticmethod
    def _word(made: np.ndarray, which: int, below: int) -> np.ndarray:
        """The which-th 32 bits of a row as a number below `below`."""
        word = made.view(np.uint32)[:, which].astype(np.uint64)
        return (word * np.uint64(below) >> np.uint64(32)).astype(np.int64)

    def codewords(self, digests: np.ndarray, table: int) -> np.ndarray:
        """C of each: AES under as many keys as it takes blocks to fill w bits."""
        blocks = [
            ot.encrypt_blocks(digests, self.key("code", table, k)) for k in range(-(-self.code // BLOCK))
        ]
        return np.concatenate(blocks, 1)[:, : self.code]

    def bins(self, bucket: int, table: int, places: np.ndarray) -> np.ndarray:
        """Numbers of bins that no other table or bucket has, as eight bytes each."""
        numbers = (bucket * FUNCTIONS + table) * self.size + places
        return numbers.astype(np.uint64).view(np.uint8).reshape(-1, 8)


def code_bits(items: int) -> int:
    """w: the least multiple of 8 such that, of 3·items pairs of random codewords, one is nearer than 128 with
    probability below 2^-40.
    """
    w = 3 * DISTANCE
    while FUNCTIONS * max(1, items) * sum(math.comb(w, k) for k in range(DISTANCE)) << STATISTICAL > 1 << w:
        w += 8
    return w


def capacity(n: int, buckets: int) -> int:
    """How many of n ids one of so many buckets may get: by Chernoff's bound one gets more with probability
    below 2^-41 over all buckets.
    """
    if buckets == 1 or n == 0:
        return n
    share = 1 / buckets
    low, high = n * share, float(n)
    while high - low > 1:
        middle = (low + high) / 2
        q = middle / n
        bound = -n * (q * math.log(q / share) + ((1 - q) * math.log((1 - q) / (1 - share)) if q < 1 else 0.0))
        low, high = (
            (low, middle) if bound + math.log(buckets) <= -(STATISTICAL + 1) * math.log(2) else (middle, high)
        )
    return math.ceil(high)


async def receiver(
    me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes
) -> tuple[np.ndarray, int]:
    """(my rows that are shared, in the order of their digests; how many)."""
    lay = OprfLayout(len(digests), theirs, session)
    a, said = ot.offer(me.secret.bytes)
    await me.send(other, BaseOffer(said))
    chosen = await me.recv(other, BaseChoices)
    seeds = await asyncio.to_thread(ot.pairs, a, said, chosen.points, 8 * lay.code, session)
    zeros, ones = map(ot.Columns, seeds)
    room = asyncio.Semaphore(AHEAD)
    asked: asyncio.Queue[tuple[np.ndarray, np.ndarray]] = asyncio.Queue()
    found: list[np.ndarray] = []

    async def ask() -> None:
        for b, rows in enumerate(lay.dealt(digests)):
            mine = digests[rows]
            _fits(len(rows), capacity(len(digests), lay.buckets))
            tables = await asyncio.to_thread(lay.placed, mine)
            for i in range(FUNCTIONS):
                await room.acquire()
                outputs = []
                for first in range(0, lay.size, CHUNK):
                    held = tables[i, first : first + CHUNK]
                    corrections, some = await asyncio.to_thread(
                        _corrected, lay, zeros, ones, mine, held, (b, i, first)
                    )
                    await me.send(other, OprfRows(b, i, first, corrections))
                    outputs.append(some)
                asked.put_nowait((rows[tables[i][tables[i] >= 0]], np.concatenate(outputs)))

    async def hear() -> None:
        for b in range(lay.buckets):
            for i in range(FUNCTIONS):
                rows, mine = await asked.get()
                came = await me.recv(other, Outputs)
                _due((came.bucket, came.table, len(came.outputs)), (b, i, lay.outputs * lay.output))
                yours = np.frombuffer(came.outputs, np.uint8).reshape(-1, lay.output)
                at, _ = await asyncio.to_thread(match, mine, yours)
                found.append(rows[at])
                room.release()

    await together(ask(), hear())
    rows = np.concatenate(found)
    return sort_by_digest(digests, rows), len(rows)


async def sender(me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes) -> None:
    lay = OprfLayout(theirs, len(digests), session)
    bits = np.unpackbits(np.frombuffer(me.secret.bytes(lay.code), np.uint8), bitorder="little")
    said = (await me.recv(other, BaseOffer)).point
    points, keys = await asyncio.to_thread(ot.choose, said, bits, session, me.secret.bytes)
    await me.send(other, BaseChoices(points))
    columns, s = ot.Columns(keys), pack(bits)
    for b, rows in enumerate(lay.dealt(digests)):
        mine = digests[rows]
        _fits(len(rows), lay.outputs)
        places = lay.positions(mine)
        for i in range(FUNCTIONS):
            by_bin = np.argsort(places[:, i], kind="stable")
            ordered, parts = places[by_bin, i], []
            for first in range(0, lay.size, CHUNK):
                last = min(first + CHUNK, lay.size)
                came = await me.recv(other, OprfRows)
                _due(
                    (came.bucket, came.table, came.first, len(came.rows)),
                    (b, i, first, (last - first) * lay.code),
                )
                low, high = np.searchsorted(ordered, (first, last))
                some, where = mine[by_bin[low:high]], ordered[low:high]
                parts.append(
                    await asyncio.to_thread(
                        _evaluated, lay, columns, s, came.rows, some, where, (b, i, first)
                    )
                )
            padding = np.frombuffer(
                me.secret.bytes((lay.outputs - len(rows)) * lay.output), np.uint8
            ).reshape(-1, lay.output)
            outputs = np.concatenate([*parts, padding])
            # by value, which says nothing of the ids or their bins
            await me.send(other, Outputs(b, i, outputs[np.argsort(words(outputs), kind="stable")].tobytes()))


def _corrected(
    lay: OprfLayout,
    zeros: ot.Columns,
    ones: ot.Columns,
    digests: np.ndarray,
    held: np.ndarray,
    at: tuple[int, int, int],
) -> tuple[bytes, np.ndarray]:
    """Rows T0 ⊕ T1 ⊕ C(y), and h(bin, T0) of those bins that hold an id. An empty bin's row is T0 ⊕ T1: as
    random as the others.
    """
    bucket, table, first = at
    t0, rows = transpose(zeros.take(len(held) // 8)), transpose(ones.take(len(held) // 8))
    rows ^= t0
    full = np.flatnonzero(held >= 0)
    rows[full] ^= lay.codewords(digests[held[full]], table)
    return rows.tobytes(), _hashed(lay, lay.bins(bucket, table, first + full), t0[full])


def _evaluated(
    lay: OprfLayout,
    columns: ot.Columns,
    s: np.ndarray,
    corrections: bytes,
    digests: np.ndarray,
    places: np.ndarray,
    at: tuple[int, int, int],
) -> np.ndarray:
    """h(bin, Q ⊕ s·(row ⊕ C(x))) for ids in these places."""
    bucket, table, first = at
    rows = np.frombuffer(corrections, np.uint8).reshape(-1, lay.code) & s
    rows ^= transpose(columns.take(len(rows) // 8))
    codes = lay.codewords(digests, table) & s
    codes ^= rows[places - first]
    return _hashed(lay, lay.bins(bucket, table, places), codes)


def _hashed(lay: OprfLayout, bins: np.ndarray, rows: np.ndarray) -> np.ndarray:
    whole = np.concatenate([bins, rows], 1)
    return compute_tags(whole.tobytes(), whole.shape[1], b"", lay.output)


def _fits(rows: int, room: int) -> None:
    if rows > room:
        raise ProtocolError(
            f"{rows} ids fell into a bucket for {room}, which happens by chance less often than once in "
            "2^40 runs. Run it again."
        )


def _due(came: tuple[int, ...], due: tuple[int, ...]) -> None:
    if came != due:
        raise ProtocolError(
            f"a message for {came} came where {due} was due (bucket, table, first bin, bytes): something on "
            "the way reorders or repeats "
            "messages, or the other runs another version."
        )
