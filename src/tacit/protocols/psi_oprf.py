"""Private set intersection of large sets by oblivious transfer. Kolesnikov, Kumaresan, Rosulek, Trieu:
Efficient Batched Oblivious PRF with Applications to Private Set Intersection, CCS 2016, figures 2 and 6,
with the hashing of Pinkas, Schneider, Zohner 2018.

    receiver (Y)                                                sender (X)
      |--- BaseOffer(A) ------------------------------------------>|   w base transfers, roles reversed:
      |<-- BaseChoices(B_1 … B_w) ---------------------------------|   s chooses seeds of columns T0, T1, Q
      |  each y into one of its three bins                         |
      |--- OprfRows(T0 ⊕ T1 ⊕ C(y)), a row a bin ----------------->|   Q ⊕ s·row = T0 ⊕ s·C(y) in y's bin
      |<-- Outputs(h(bin, T0 ⊕ s·(C(y) ⊕ C(x)))), sorted ----------|   x in its bins; h(bin, T0) iff x = y

C is a pseudorandom code (AES under keys of the session, chosen after the sets are fixed): except with
probability 2^-40, two codewords differ in at least 128 of their w bits, so any other output looks random to
the receiver. h is SHA-256 truncated so that collisions have probability below 2^-40. The receiver learns the
sender's set size and which of its own ids are shared; the sender learns the receiver's set size. Security
rests on Diffie-Hellman for the base transfers, AES, SHA-256 as a correlation-robust hash, and on both
following the protocol. Failures by chance (an id that fits in no bin, codewords that are too close, equal
outputs) each have probability below 2^-40.

Sets above a million ids are split into buckets by a public hash. Each bucket is padded to a size that depends
only on the total, and buckets are processed in sequence: memory is that of two buckets, whatever the set
size.
"""

from __future__ import annotations

import asyncio
import functools
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

BUCKET = 1 << 20  # approximate number of ids in a bucket
CHUNK = 1 << 15  # bins in a message: 1.8 MB, and matrices that stay in a core's cache
# tables the receiver may send ahead of their outputs: bounds the sender's mailbox
AHEAD = 2
DISTANCE = 128  # κ: the least Hamming distance of two codewords
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
    """Sizes of codes, outputs, buckets and tables, and keys of public hashes; the same at both parties.

    They follow from the two set sizes and the session.
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
        """The number of bins in each table of a bucket."""
        return places_for(capacity(self.receivers, self.buckets))

    @property
    def outputs(self) -> int:
        """The number of outputs for each table of a bucket."""
        return capacity(self.senders, self.buckets)

    @property
    def output(self) -> int:
        """The number of bytes of an output."""
        return tag_bytes(self.receivers, self.buckets * self.outputs)

    def key(self, use: str, *which: int) -> bytes:
        return hashlib.sha256(bind("tacit psi oprf 1", self.session, use, *which)).digest()

    def bucket_rows(self, digests: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the rows of each bucket."""
        if self.buckets == 1:
            yield np.arange(len(digests))
            return
        key, numbers = self.key("places"), np.empty(len(digests), np.uint16)
        for at in range(0, len(digests), BUCKET):
            numbers[at : at + BUCKET] = self._word(
                ot.encrypt_blocks(digests[at : at + BUCKET], key), 3, self.buckets
            )
        order = np.argsort(numbers, kind="stable").astype(np.uint32)
        bounds = np.searchsorted(numbers[order], np.arange(self.buckets + 1))
        for b in range(self.buckets):
            yield order[bounds[b] : bounds[b + 1]].astype(np.int64)

    def positions(self, digests: np.ndarray) -> np.ndarray:
        """Return (ids, 3): each id's bin in each table."""
        words_of_id = ot.encrypt_blocks(digests, self.key("places"))
        return np.stack([self._word(words_of_id, i, self.size) for i in range(FUNCTIONS)], 1)

    def place_ids(self, digests: np.ndarray) -> np.ndarray:
        """Return (3, bins): the id in each bin, −1 for none."""
        return place(self.positions(digests), self.size)

    @staticmethod
    def _word(words_of_id: np.ndarray, which: int, below: int) -> np.ndarray:
        """Map the which-th 32 bits of a row to a number below `below`."""
        word = words_of_id.view(np.uint32)[:, which].astype(np.uint64)
        return (word * np.uint64(below) >> np.uint64(32)).astype(np.int64)

    def codewords(self, digests: np.ndarray, table: int) -> np.ndarray:
        """Return C of each id: AES under as many keys as needed to fill w bits."""
        blocks = [
            ot.encrypt_blocks(digests, self.key("code", table, k)) for k in range(-(-self.code // BLOCK))
        ]
        return np.concatenate(blocks, 1)[:, : self.code]

    def bins(self, bucket: int, table: int, places: np.ndarray) -> np.ndarray:
        """Return bin numbers that are unique over all tables and buckets, as eight bytes each."""
        numbers = (bucket * FUNCTIONS + table) * self.size + places
        return numbers.astype(np.uint64).view(np.uint8).reshape(-1, 8)


@functools.lru_cache
def code_bits(items: int) -> int:
    """Return w: the code length at which a distance below 128 has probability below 2^-40.

    The least multiple of 8, for 3·items pairs of random codewords.
    """
    w = 3 * DISTANCE
    while FUNCTIONS * max(1, items) * sum(math.comb(w, k) for k in range(DISTANCE)) << STATISTICAL > 1 << w:
        w += 8
    return w


def capacity(n: int, buckets: int) -> int:
    """Return the bucket size that n ids exceed with probability below 2^-41 (Chernoff, all buckets)."""
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
    """Return (my shared rows, sorted by digest; their number)."""
    layout = OprfLayout(len(digests), theirs, session)
    a, offer = ot.offer(me.secret.bytes)
    await me.send(other, BaseOffer(offer))
    points = (await me.recv(other, BaseChoices)).points
    seeds = await asyncio.to_thread(ot.pairs, a, offer, points, 8 * layout.code, session)
    zeros, ones = map(ot.Columns, seeds)
    room = asyncio.Semaphore(AHEAD)
    pending: asyncio.Queue[tuple[np.ndarray, np.ndarray]] = asyncio.Queue()
    shared: list[np.ndarray] = []

    async def send_tables() -> None:
        for b, rows in enumerate(layout.bucket_rows(digests)):
            own = digests[rows]
            _check_bucket(len(rows), capacity(len(digests), layout.buckets))
            tables = await asyncio.to_thread(layout.place_ids, own)
            for i in range(FUNCTIONS):
                await room.acquire()
                outputs = []
                for first in range(0, layout.size, CHUNK):
                    slots = tables[i, first : first + CHUNK]
                    corrections, some = await asyncio.to_thread(
                        _correct_rows, layout, zeros, ones, own, slots, (b, i, first)
                    )
                    await me.send(other, OprfRows(b, i, first, corrections))
                    outputs.append(some)
                pending.put_nowait((rows[tables[i][tables[i] >= 0]], np.concatenate(outputs)))

    async def receive_outputs() -> None:
        for b in range(layout.buckets):
            for i in range(FUNCTIONS):
                rows, own = await pending.get()
                message = await me.recv(other, Outputs)
                _check_position(
                    (message.bucket, message.table, len(message.outputs)),
                    (b, i, layout.outputs * layout.output),
                )
                theirs_outputs = np.frombuffer(message.outputs, np.uint8).reshape(-1, layout.output)
                at, _ = await asyncio.to_thread(match, own, theirs_outputs)
                shared.append(rows[at])
                room.release()

    await together(send_tables(), receive_outputs())
    rows = np.concatenate(shared)
    return sort_by_digest(digests, rows), len(rows)


async def sender(me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes) -> None:
    layout = OprfLayout(theirs, len(digests), session)
    bits = np.unpackbits(np.frombuffer(me.secret.bytes(layout.code), np.uint8), bitorder="little")
    offer = (await me.recv(other, BaseOffer)).point
    points, keys = await asyncio.to_thread(ot.choose, offer, bits, session, me.secret.bytes)
    await me.send(other, BaseChoices(points))
    columns, s = ot.Columns(keys), pack(bits)
    for b, rows in enumerate(layout.bucket_rows(digests)):
        own = digests[rows]
        _check_bucket(len(rows), layout.outputs)
        places = layout.positions(own)
        for i in range(FUNCTIONS):
            by_bin = np.argsort(places[:, i], kind="stable")
            ordered, parts = places[by_bin, i], []
            for first in range(0, layout.size, CHUNK):
                last = min(first + CHUNK, layout.size)
                message = await me.recv(other, OprfRows)
                _check_position(
                    (message.bucket, message.table, message.first, len(message.rows)),
                    (b, i, first, (last - first) * layout.code),
                )
                low, high = np.searchsorted(ordered, (first, last))
                some, where = own[by_bin[low:high]], ordered[low:high]
                parts.append(
                    await asyncio.to_thread(
                        _evaluate, layout, columns, s, message.rows, some, where, (b, i, first)
                    )
                )
            padding = np.frombuffer(
                me.secret.bytes((layout.outputs - len(rows)) * layout.output), np.uint8
            ).reshape(-1, layout.output)
            outputs = np.concatenate([*parts, padding])
            # sorted by value, which is independent of the ids and their bins
            await me.send(other, Outputs(b, i, outputs[np.argsort(words(outputs), kind="stable")].tobytes()))


def _correct_rows(
    layout: OprfLayout,
    zeros: ot.Columns,
    ones: ot.Columns,
    digests: np.ndarray,
    slots: np.ndarray,
    at: tuple[int, int, int],
) -> tuple[bytes, np.ndarray]:
    """Return rows T0 ⊕ T1 ⊕ C(y), and h(bin, T0) of the bins that hold an id.

    An empty bin's row is T0 ⊕ T1, which is as random as the others.
    """
    bucket, table, first = at
    t0, rows = transpose(zeros.take(len(slots) // 8)), transpose(ones.take(len(slots) // 8))
    rows ^= t0
    full = np.flatnonzero(slots >= 0)
    rows[full] ^= layout.codewords(digests[slots[full]], table)
    return rows.tobytes(), _hash_rows(layout, layout.bins(bucket, table, first + full), t0[full])


def _evaluate(
    layout: OprfLayout,
    columns: ot.Columns,
    s: np.ndarray,
    corrections: bytes,
    digests: np.ndarray,
    places: np.ndarray,
    at: tuple[int, int, int],
) -> np.ndarray:
    """Return h(bin, Q ⊕ s·(row ⊕ C(x))) for the ids in these bins."""
    bucket, table, first = at
    rows = np.frombuffer(corrections, np.uint8).reshape(-1, layout.code) & s
    rows ^= transpose(columns.take(len(rows) // 8))
    codes = layout.codewords(digests, table) & s
    codes ^= rows[places - first]
    return _hash_rows(layout, layout.bins(bucket, table, places), codes)


def _hash_rows(layout: OprfLayout, bins: np.ndarray, rows: np.ndarray) -> np.ndarray:
    whole = np.concatenate([bins, rows], 1)
    return compute_tags(whole.tobytes(), whole.shape[1], b"", layout.output)


def _check_bucket(rows: int, room: int) -> None:
    if rows > room:
        raise ProtocolError(
            f"a bucket got {rows} ids and has room for {room}, which has probability below 2^-40. Run again."
        )


def _check_position(position: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if position != expected:
        raise ProtocolError(
            f"received a message for {position}, expected {expected} (bucket, table, first bin, bytes): "
            "messages were reordered or repeated, or the other runs another version."
        )
