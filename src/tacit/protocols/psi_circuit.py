"""Circuit PSI, the part before the circuit: the ids of two parties in common bins, where equal words mean a
shared id, and the sender's columns under masks.

B. Pinkas, T. Schneider, O. Tkachenko, A. Yanai: Efficient Circuit-Based PSI with Linear Communication,
EUROCRYPT 2019, with the programmable OPRF of P. Rindal, P. Schoppmann: VOLE-PSI, EUROCRYPT 2021, section 5.

    receiver (Y)                                                  sender (X with p words v_x each)
      |  y → one of its bins h_0(y), h_1(y), h_2(y)                 |  x → all three; in bin j, a target r_j
      |    (cuckoo hashing: at most one id in a bin)                |    and masks s_j, the same for all ids
      |--- Store(P ⊕ a), after Noise, Trees ----------------------->|  the OPRF F of `psi_oprf`, at (id, i)
      |<-- Hint(a store of (x, i) → F(x, i) ⊕ (r_j, v_x − s_j)) ----|  j = h_i(x);  3·m keys
      |  word_j = hint(y, i) ⊕ F(y, i); random in an empty bin      |  word_j = (r_j, s_j)

The first words are equal if the receiver's id of bin j is the sender's, too, and then the others add up to
v_x modulo 2^64. Otherwise the receiver's words are independent of the sender's: the first ones are equal with
probability 2^-ℓ, ℓ = 40 + log₂(bins). Whether they are equal is computed on shares (`mpc/equality.py`), and
the other words are multiplied by that bit (`mpc/shared_rows.py`): what is left are shares of membership and
of the sender's columns, by bin. Bins that hold no id of the receiver stay, because which ones they are
depends on its ids. The receiver's own columns are in its bins already.

Learns: each party the other's set size, and nothing else. The receiver's view: the hint's values look random
at keys that are not its own (F is pseudorandom), and at its own they are r_j and v_x − s_j, which are random
without the sender's words. The sender's view is that of `psi_oprf`. Assumptions: as there.

Semi-honest. A receiver that deviates can put several ids of one bin into its store (it has room for 1.3·n +
104 keys) and see whether their words are equal: then the sender has both. So it learns about id y whether it
is the sender's if it knows another id of that bin that is. A sender that deviates can give wrong words, which
make matches vanish or values wrong; it receives nothing about matches, so it learns only from figures that
are opened later.

Failures by chance: ids that do not fit into their bins. With 1.27·n bins and three functions this has a
probability below 2^-40 for large n (Pinkas et al. 2019); for small n the likeliest cause is four ids with the
same three bins, and the number of bins is raised until that is below 2^-42.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..crypto import okvs, ot
from ..crypto.tags import STATISTICAL
from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .psi_oprf import (
    CHUNK,
    OprfLayout,
    check_position,
    connect_receiver,
    connect_sender,
    receive_store,
    send_store,
)

FUNCTIONS = okvs.FUNCTIONS  # bins that an id may be in, one in each third
SPACE = 1.27  # bins for each id of the receiver
CROWD = 4  # the fewest ids that three bins have no room for
MOST_IDS = 1 << 20  # of a party: one store, and the memory of its words
MOST_WORDS = 64  # of an id's payload
WORD = 8  # bytes


class Hint(
    Message,
    reveals="a table that gives random words at your own keys, and looks random at all others: how many ids "
    "the other holds, and nothing of which",
):
    first: int
    entries: bytes


class BinWords(NamedTuple):
    """One party's words by bin, the first for equality; `rows`: the receiver's own row in each bin, or −1."""

    words: np.ndarray  # (bins, 1 + p), uint64
    rows: np.ndarray | None


@dataclass(frozen=True)
class CircuitLayout(OprfLayout):
    """Sizes and public hashes, the same at both parties; `width`: words of an id's payload."""

    width: int = 0

    @property
    def buckets(self) -> int:
        return 1

    @property
    def third(self) -> int:
        """The number of bins of each hash function."""
        crowds = math.comb(self.receivers, CROWD) * 2.0 ** (STATISTICAL + 2)
        room = math.ceil(math.pow(crowds, 1 / (FUNCTIONS * (CROWD - 1))))
        return max(1, math.ceil(SPACE * self.receivers / FUNCTIONS), room)

    @property
    def bins(self) -> int:
        return FUNCTIONS * self.third

    @property
    def bits(self) -> int:
        """The bits of the first words that are compared."""
        return STATISTICAL + math.ceil(math.log2(max(2, self.bins)))

    @property
    def hint(self) -> int:
        """The number of entries of the hint."""
        return okvs.entries(FUNCTIONS * self.senders)

    def hash_all(self, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((ids, 3) bins, (ids, 3, 16) keys) of each id, by function."""
        keys = np.empty((len(digests), FUNCTIONS, digests.shape[1]), np.uint8)
        bins = np.empty((len(digests), FUNCTIONS), np.int32)
        for i in range(FUNCTIONS):
            keys[:, i] = ot.encrypt_blocks(digests, self.key("bin", i))
            word = np.ascontiguousarray(keys[:, i, :4]).view(np.uint32)[:, 0]
            bins[:, i] = (word * np.uint64(self.third) >> np.uint64(32)) + np.uint64(i * self.third)
        return bins, keys

    def evaluate(self, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """F: 1 + p words of each key, from c or k ⊕ δ·g at this key."""
        blocks = [ot.pads(values, keys, self.key("words", k)) for k in range(self.width // 2 + 1)]
        return np.ascontiguousarray(np.concatenate(blocks, 1).view(np.uint64)[:, : 1 + self.width])


def place(bins: np.ndarray, total: int) -> np.ndarray:
    """One bin for each id, of the three it may be in; no two ids in the same.

    Most ids have a bin that no other id may be in, once those before them are placed ("peeling"). The few
    others form a matching by augmenting paths.
    """
    order, own, peeled = ot.compiled().peel(bins, total)
    chosen = np.full(len(bins), -1, np.int64)
    chosen[order] = own
    holder: dict[int, int] = {}
    for key in np.flatnonzero(~peeled).tolist():
        came: dict[int, tuple[int, int]] = {}  # bin: (the id that asks for it, the bin which that id has now)
        waiting, free = [(key, -1)], -1
        while waiting and free < 0:
            asking, held = waiting.pop()
            for bin in bins[asking].tolist():
                if bin not in came:
                    came[bin] = asking, held
                    if bin not in holder:
                        free = bin
                        break
                    waiting.append((holder[bin], bin))
        if free < 0:
            raise ProtocolError(
                f"{len(bins)} ids do not fit into {total} bins, which has probability below 2^-40. Run again."
            )
        while free >= 0:
            asking, held = came[free]
            holder[free], free = asking, held
    for bin, key in holder.items():
        chosen[key] = bin
    return chosen


async def receiver(
    me: Party, digests: np.ndarray, other: str, theirs: int, session: bytes, width: int
) -> BinWords:
    """Return my words by bin, and the row of the id that is in each bin."""
    layout = _check(CircuitLayout(len(digests), theirs, session, width))
    bins, keys = await asyncio.to_thread(layout.hash_all, digests)
    chosen = await asyncio.to_thread(place, bins, layout.bins)
    function = chosen // layout.third
    own = np.ascontiguousarray(keys[np.arange(len(digests)), function])
    vole = await connect_receiver(me, other, session)
    values = await send_store(me, other, layout, vole, 0, own)
    hint = np.empty((layout.hint, 1 + width), np.uint64)
    each = _rows_in_message(width)
    for first in range(0, len(hint), each):
        message, part = await me.recv(other, Hint), hint[first : first + each]
        check_position(
            (message.first, len(message.entries)), (first, part.nbytes), "(first entry, bytes of the hint)"
        )
        part[:] = np.frombuffer(message.entries, np.uint64).reshape(part.shape)
    shape = (layout.bins, 1 + width)
    words = np.frombuffer(me.secret.bytes(WORD * math.prod(shape)), np.uint64).reshape(shape).copy()
    rows = np.full(layout.bins, -1, np.int64)
    rows[chosen] = np.arange(len(digests))
    words[chosen] = await asyncio.to_thread(_read_hint, layout, own, values, hint)
    return BinWords(words, rows)


async def sender(
    me: Party, digests: np.ndarray, payload: np.ndarray, other: str, theirs: int, session: bytes
) -> BinWords:
    """Return my words by bin: what is equal for a shared id, and the masks of its payload."""
    layout = _check(CircuitLayout(theirs, len(digests), session, payload.shape[1]))
    shape = (layout.bins, 1 + layout.width)
    words = np.frombuffer(me.secret.bytes(WORD * math.prod(shape)), np.uint64).reshape(shape).copy()
    vole = await connect_sender(me, other, session)
    store = await receive_store(me, other, layout, vole, 0)

    def encode() -> np.ndarray:
        bins, keys = layout.hash_all(digests)
        keys = keys.reshape(-1, digests.shape[1])
        values = okvs.decode(store.view(np.uint8), keys, layout.key("store")).view(np.uint64)
        vole.add_products(values, layout.targets(keys).view(np.uint64)[:, 0])
        wanted = layout.evaluate(keys, values.view(np.uint8))
        here = words[bins.reshape(-1)]
        wanted[:, 0] ^= here[:, 0]
        wanted[:, 1:] ^= np.repeat(payload, FUNCTIONS, axis=0) - here[:, 1:]
        hint = okvs.encode(keys, wanted.view(np.uint8), layout.key("hint"), me.secret.bytes)
        return hint.view(np.uint64)

    hint, each = await asyncio.to_thread(encode), _rows_in_message(layout.width)
    for first in range(0, len(hint), each):
        await me.send(other, Hint(first, hint[first : first + each].tobytes()))
    return BinWords(words, None)


def ideal(
    mine: np.ndarray, theirs: np.ndarray, payload: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(1 where the sender holds the id, its payload there and 0 elsewhere) by bin, as the rows are placed."""
    place_of = {bytes(d): k for k, d in enumerate(theirs)}
    found = [place_of.get(bytes(mine[row]), -1) if row >= 0 else -1 for row in rows.tolist()]
    at = np.array(found, np.int64)
    values = np.zeros((len(rows), payload.shape[1]), np.uint64)
    values[at >= 0] = payload[at[at >= 0]]
    return (at >= 0).astype(np.int64), values


def _read_hint(layout: CircuitLayout, own: np.ndarray, values: np.ndarray, hint: np.ndarray) -> np.ndarray:
    outputs = okvs.decode(values.view(np.uint8), own, layout.key("store"))
    at_keys = okvs.decode(hint.view(np.uint8), own, layout.key("hint")).view(np.uint64)
    return np.asarray(layout.evaluate(own, outputs) ^ at_keys)


def _rows_in_message(width: int) -> int:
    return max(1, CHUNK // (1 + width))


def _check(layout: CircuitLayout) -> CircuitLayout:
    if max(layout.receivers, layout.senders) > MOST_IDS or not 0 <= layout.width <= MOST_WORDS:
        raise BadData(
            f"a match that stays shared takes at most {MOST_IDS:,} ids a party and {MOST_WORDS} columns; "
            f"these are {layout.receivers:,} and {layout.senders:,} ids, and {layout.width} columns."
        )
    return layout
