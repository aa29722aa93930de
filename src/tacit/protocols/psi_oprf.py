"""Private set intersection of large sets by vector OLE. Raghuraman, Rindal: Blazing Fast PSI from Improved
OKVS and Subfield VOLE, CCS 2022, figure 8 (semi-honest); Rindal, Schoppmann: VOLE-PSI, EUROCRYPT 2021.

    receiver (Y)                                                  sender (X, δ)
      |--- BaseOffer(A) -------------------------------------------->|   128 base transfers, roles reversed:
      |<-- BaseChoices(B_1 … B_128) ---------------------------------|   the bits of δ choose
      |--- Noise(…) -------------------------------------------------|   `crypto.vole`: the receiver gets
      |<-- Trees(…) -------------------------------------------------|   (a, c), the sender b, c = b ⊕ δ·a
      |  P: a key-value store of y → g(y)                            |
      |--- Store(P ⊕ a) -------------------------------------------->|   k = b ⊕ δ·(P ⊕ a) = c ⊕ δ·P
      |<-- Outputs(h(x, k(x) ⊕ δ·g(x))), sorted ---------------------|   k(x): the store's value at x
      |  h(y, c(y)) is the output for y; for x ∉ Y, k(x) ⊕ δ·g(x) = c(x) ⊕ δ·(P(x) ⊕ g(x))

g is AES under a key of the session, truncated to 64 bits; h is `ot.pads` with x as tweak, truncated so that
two outputs are equal by chance with probability below 2^-40. The receiver learns the sender's set size and
which of its own ids are shared; the sender learns the receiver's set size.

The sender sees P ⊕ a, where a is pseudorandom by dual LPN (parameters in `crypto.vole`), and base transfers
(Diffie-Hellman). The receiver sees outputs whose arguments it cannot compute, as δ has 128 bits of entropy
and P(x) ≠ g(x): these are equal with probability 2^-64 for each x that it does not hold, so for one of the
sender's ids with probability below 2^-40 up to 16 million ids, and 2^-37 at 100 million. Other failures
by chance are below 2^-40 each: a bucket that overflows, a store that cannot be solved, equal outputs.

All this holds if both follow the protocol. A receiver that deviates can put other ids into its store: at most
as many as the store has entries, 1.3·n + 104, because each further id that agrees with a store by chance
costs 2^64 trials. To learn δ instead, with which it could try any id, it would have to guess its bits: the
vector OLE checks its messages. A sender that deviates can answer wrongly, and see from the receiver's
reaction (with reveal="both") which answers mattered.

Sets above a million ids are split into buckets by a public hash. Each bucket is padded to a size that depends
only on the total, and buckets are processed in sequence: memory is that of a few buckets, whatever the set
size, if the ids themselves are in files (`id_buckets.StoredIds`). Messages for another bucket than the next
one, or of another size than the padded one, are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from dataclasses import dataclass

import numpy as np

from ..crypto import okvs, ot
from ..crypto.agree import bind
from ..crypto.tags import STATISTICAL, match, tag_bytes, words
from ..crypto.vole import BASE, VoleReceiver, VoleSender
from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .id_buckets import IdBuckets
from .psi_resume import Checkpoint, Resumed
from .together import in_thread, together

log = logging.getLogger("tacit.party")
BUCKET = 1 << 20  # approximate number of ids in a bucket
CHUNK = 1 << 17  # entries of a store in a message: 1 MB
# buckets the receiver may send ahead of their outputs: bounds the sender's mailbox
AHEAD = 2
ENTRY = 8  # bytes of an entry: an element of GF(2^64)


class BaseOffer(Message, reveals="a random group element: nothing"):
    point: bytes


class BaseChoices(Message, reveals="random group elements, whatever the other chose: nothing"):
    points: bytes


class Noise(
    Message,
    reveals="how many ids the other holds, rounded up; bits that are random without the seeds the receiver "
    "keeps",
):
    bucket: int
    columns: bytes


class Trees(Message, reveals="sums of pseudorandom numbers, half of them under pads: nothing"):
    bucket: int
    sums: bytes


class Store(
    Message,
    reveals="a table of the other's ids under a pseudorandom mask: nothing (learning parity with noise)",
):
    bucket: int
    first: int
    entries: bytes


class Outputs(
    Message,
    reveals="a random-looking output for each of the other's ids; equal to yours where you hold the id, "
    "too, and telling nothing otherwise",
):
    bucket: int
    outputs: bytes


@dataclass(frozen=True)
class OprfLayout:
    """Sizes of outputs, buckets and stores, and keys of public hashes; the same at both parties.

    They follow from the two set sizes and the session.
    """

    receivers: int
    senders: int
    session: bytes

    @property
    def buckets(self) -> int:
        return max(1, math.ceil(max(self.receivers, self.senders) / BUCKET))

    @property
    def room(self) -> int:
        """The number of the receiver's ids for which a bucket's store has entries."""
        return capacity(self.receivers, self.buckets)

    @property
    def entries(self) -> int:
        """The number of entries of a bucket's store."""
        return okvs.entries(self.room)

    @property
    def outputs(self) -> int:
        """The number of outputs of a bucket."""
        return capacity(self.senders, self.buckets)

    @property
    def output(self) -> int:
        """The number of bytes of an output."""
        return tag_bytes(self.receivers, self.buckets * self.outputs)

    def key(self, use: str, *which: int) -> bytes:
        return hashlib.sha256(bind("tacit psi oprf 2", self.session, use, *which)).digest()

    def targets(self, digests: np.ndarray) -> np.ndarray:
        """Return g of each id: the first 8 bytes of a block."""
        return np.ascontiguousarray(ot.encrypt_blocks(digests, self.key("value"))[:, :ENTRY])

    def hash(self, digests: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return h(x, value) of each id."""
        return np.ascontiguousarray(
            ot.pads(values.view(np.uint8), digests, self.key("output"))[:, : self.output]
        )


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
    me: Party,
    ids: IdBuckets,
    other: str,
    theirs: int,
    session: bytes,
    checkpoint: Checkpoint | None = None,
    resumed: Resumed | None = None,
) -> None:
    """Find which of the ids are shared; they are kept in `ids`, and in `checkpoint` bucket by bucket."""
    layout, answers = OprfLayout(len(ids), theirs, session), me.scope("outputs")
    record = Checkpoint(None, {}) if checkpoint is None else checkpoint
    first = 0 if resumed is None else resumed.answered
    if resumed is None:
        await in_thread(ids.deal, layout.buckets, layout.key("places"))
        record.begin(session, theirs, ids)
    else:
        await in_thread(_restore, ids, record, resumed.done)
    vole = await connect_receiver(me, other, session)
    room = asyncio.Semaphore(AHEAD)
    pending: asyncio.Queue[tuple[np.ndarray, np.ndarray, np.ndarray]] = asyncio.Queue()

    async def send_stores() -> None:
        for b in range(first, layout.buckets):
            await room.acquire()
            own, places = await in_thread(_ordered_bucket, ids, b)
            check_bucket(len(own), layout.room)
            masked, values = await make_store(me, other, layout, vole, b, own)
            outputs = await asyncio.to_thread(_own_outputs, layout, own, values)
            await in_thread(record.keep_own, b, outputs)  # before the sender can answer
            await send_entries(me, other, b, masked)
            pending.put_nowait((own, places, outputs))

    async def receive_bucket(b: int, own: np.ndarray, places: np.ndarray, own_outputs: np.ndarray) -> None:
        message = await answers.recv(other, Outputs)
        check_position(
            (message.bucket, len(message.outputs)), (b, layout.outputs * layout.output), "(bucket, bytes)"
        )
        outputs = np.frombuffer(message.outputs, np.uint8).reshape(-1, layout.output)
        at, _ = await asyncio.to_thread(match, own_outputs, outputs)
        await in_thread(ids.add_shared, own[at], places[at])
        await in_thread(record.keep_found, b, places[at])
        log_bucket(me, b, layout.buckets)

    async def receive_outputs() -> None:
        for b in range(first, layout.buckets):
            await receive_bucket(b, *await pending.get())
            room.release()

    # answered before the stop: kept before another store is sent, so that after another stop the sender is
    # not further ahead than the answers it keeps
    for b in range(first if resumed is None else resumed.done, first):
        own, places = await in_thread(_ordered_bucket, ids, b)
        await receive_bucket(b, own, places, record.own(b, len(own), layout.output))
    await together(send_stores(), receive_outputs())


def _restore(ids: IdBuckets, record: Checkpoint, done: int) -> None:
    """Find the shared ids of the first buckets again, by their rows."""
    for b in range(done):
        digests, places = ids.bucket(b)
        at = np.isin(places, record.found(b))
        ids.add_shared(digests[at], places[at])


def _ordered_bucket(ids: IdBuckets, b: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (digests, places) of a bucket in an order that depends on nothing else."""
    digests, places = ids.bucket(b)
    if ids.buckets == 1:
        return digests, places
    order = np.argsort(words(digests), kind="stable")
    return digests[order], places[order]


async def sender(
    me: Party,
    ids: IdBuckets,
    other: str,
    theirs: int,
    session: bytes,
    checkpoint: Checkpoint | None = None,
    resumed: Resumed | None = None,
) -> None:
    layout, answers = OprfLayout(theirs, len(ids), session), me.scope("outputs")
    record = Checkpoint(None, {}) if checkpoint is None else checkpoint
    first = 0 if resumed is None else resumed.answered
    if resumed is None:
        await in_thread(ids.deal, layout.buckets, layout.key("places"))
        record.begin(session, theirs, ids)
    vole = await connect_sender(me, other, session)
    for b in range(first if resumed is None else resumed.done, first):  # the same bytes again
        await answers.send(other, Outputs(b, record.answer(b, layout.outputs * layout.output)))
    for b in range(first, layout.buckets):
        own, _ = await in_thread(ids.bucket, b)
        check_bucket(len(own), layout.outputs)
        keys = await receive_store(me, other, layout, vole, b)
        outputs = await asyncio.to_thread(evaluate, layout, vole, keys, own)
        padding = np.frombuffer(
            me.secret.bytes((layout.outputs - len(own)) * layout.output), np.uint8
        ).reshape(-1, layout.output)
        outputs = np.concatenate([outputs, padding])
        # sorted by value, which is independent of the ids
        answer = outputs[np.argsort(words(outputs))].tobytes()
        await in_thread(record.keep_answer, b, answer)
        await answers.send(other, Outputs(b, answer))
        log_bucket(me, b, layout.buckets)


def log_bucket(me: Party, b: int, buckets: int) -> None:
    if buckets > 1:
        log.info("party %r: bucket %d of %d", me.name, b + 1, buckets)


async def connect_receiver(me: Party, other: str, session: bytes) -> VoleReceiver:
    """The base transfers, at the receiver."""
    a, offer = ot.offer(me.secret.bytes)
    await me.send(other, BaseOffer(offer))
    points = (await me.recv(other, BaseChoices)).points
    return VoleReceiver(*await asyncio.to_thread(ot.pairs, a, offer, points, BASE, session), session)


async def connect_sender(me: Party, other: str, session: bytes) -> VoleSender:
    """The base transfers, at the sender, which draws δ."""
    bits = np.unpackbits(np.frombuffer(me.secret.bytes(BASE // 8), np.uint8), bitorder="little")
    offer = (await me.recv(other, BaseOffer)).point
    points, seeds = await asyncio.to_thread(ot.choose, offer, bits, session, me.secret.bytes)
    await me.send(other, BaseChoices(points))
    return VoleSender(seeds, bits, session)


async def send_store(
    me: Party, other: str, layout: OprfLayout, vole: VoleReceiver, b: int, keys: np.ndarray
) -> np.ndarray:
    """Send the masked store of a bucket's keys; return c, from which their outputs follow."""
    masked, values = await make_store(me, other, layout, vole, b, keys)
    await send_entries(me, other, b, masked)
    return values


async def make_store(
    me: Party, other: str, layout: OprfLayout, vole: VoleReceiver, b: int, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (the masked store of a bucket's keys, c, from which their outputs follow)."""
    columns, wanted = vole.request(layout.entries, me.secret.bytes)
    await me.send(other, Noise(b, columns))
    store = await asyncio.to_thread(
        okvs.encode, keys, layout.targets(keys), layout.key("store"), me.secret.bytes, layout.room
    )
    trees = await me.recv(other, Trees)
    check_position((trees.bucket,), (b,), "(bucket)")
    mask, values = await asyncio.to_thread(wanted.finish, trees.sums)
    return store.view(np.uint64)[:, 0] ^ mask, values


async def send_entries(me: Party, other: str, b: int, masked: np.ndarray) -> None:
    for first in range(0, len(masked), CHUNK):
        await me.send(other, Store(b, first, masked[first : first + CHUNK].tobytes()))


async def receive_store(me: Party, other: str, layout: OprfLayout, vole: VoleSender, b: int) -> np.ndarray:
    """Receive the masked store of a bucket; return k, from which the output of any id follows."""
    noise = await me.recv(other, Noise)
    check_position((noise.bucket,), (b,), "(bucket)")
    sums, keys = await asyncio.to_thread(vole.answer, layout.entries, noise.columns, me.secret.bytes)
    await me.send(other, Trees(b, sums))
    for first in range(0, layout.entries, CHUNK):
        part = keys[first : first + CHUNK]
        store = await me.recv(other, Store)
        check_position(
            (store.bucket, store.first, len(store.entries)),
            (b, first, len(part) * ENTRY),
            "(bucket, first entry, bytes)",
        )
        vole.add_products(part, np.frombuffer(store.entries, np.uint64))
    return keys


def _own_outputs(layout: OprfLayout, digests: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return h(y, c(y))."""
    return layout.hash(digests, okvs.decode(values.view(np.uint8), digests, layout.key("store")))


def evaluate(layout: OprfLayout, vole: VoleSender, keys: np.ndarray, digests: np.ndarray) -> np.ndarray:
    """Return h(x, k(x) ⊕ δ·g(x))."""
    values = okvs.decode(keys.view(np.uint8), digests, layout.key("store")).view(np.uint64)
    vole.add_products(values, layout.targets(digests).view(np.uint64)[:, 0])
    return layout.hash(digests, values)


def check_bucket(rows: int, room: int) -> None:
    if rows > room:
        raise ProtocolError(
            f"a bucket got {rows} ids and has room for {room}, which has probability below 2^-40. Run again."
        )


def check_position(position: tuple[int, ...], expected: tuple[int, ...], what: str) -> None:
    if position != expected:
        raise ProtocolError(
            f"received a message for {position}, expected {expected} {what}: messages were reordered or "
            "repeated, or the other runs another version."
        )
