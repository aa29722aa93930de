"""Private set intersection of N parties. Kolesnikov, Matania, Pinkas, Rosulek, Trieu: Practical Multi-party
Private Set Intersection from Symmetric-Key Techniques, CCS 2017, the protocol for augmented semi-honest
parties (figure 6), with the OPRF of `psi_oprf` or one from Diffie-Hellman, and the key-value store of
`crypto.okvs`.

    party i ≠ leader                                              leader (Y)
      |--- Opening(count, …) --------------------------------------->|
      |<-- Session(id, count) ---------------------------------------|
      |--- PairSeed --> party j > i                                  |   each pair of members has a key k_ij
      |    for each bucket:                                          |
      |<-- BlindedIds(b·H(y)) ---------------------------------------|   up to 10,000 ids on the larger side:
      |--- Answers(a_i·b·H(y)) ------------------------------------->|   without b: F_i(y) = h(a_i·H(y))
      |    or Noise, Trees, Store ---------------------------------->|   above: F_i is that of `psi_oprf`
      |--- Hints(store of x → F_i(x) ⊕ z_i(x)) --------------------->|   z_i(x) = ⊕_j AES_kij(x); ⊕_i z_i = 0
      |    at the end, with reveal="all" only:                       |
      |<-- SharedTags(bucket, h'(F_i(y)) of the shared y) -----------|   two buckets ahead at most
      |--- SharedRead(bucket) -------------------------------------->|

The leader looks up its ids in every store and adds the results: the sum is 0 exactly if all members hold the
id. If one of them lacks it, the sum is random. So the leader learns which of its ids all parties share, and
nothing else: not who holds which id, nor which members overlap. It learns every set size; the members learn
the leader's and, with "all", which of their own ids all parties share. Security rests on the OPRF's
assumptions (Diffie-Hellman, or those of `psi_oprf`), AES, and on all parties following the protocol. A leader
that colludes with some members learns which of its ids all the other members share.

Buckets are those of `psi_oprf`: a public hash of the session. The leader's sets above a million ids are split
by its own size alone, which all know; a bucket is split again with a member that has more ids, which only the
two know. So no member learns another's size, and a party's memory is that of a few buckets. Stores and hints
are padded: lengths of messages follow from the leader's size and the member's.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..crypto import group, okvs, ot
from ..crypto.agree import bind
from ..crypto.manycore import PointPool
from ..crypto.ot import encrypt_blocks
from ..crypto.spool import Parts
from ..crypto.tags import compute_tags, tag_bytes
from ..crypto.vole import VoleReceiver, VoleSender
from ..errors import ProtocolError
from ..parameters import bad
from ..parties.message import Message
from ..parties.party import Party
from . import psi_oprf
from .id_buckets import ArrayIds, IdBuckets, StoredIds, bucket_numbers
from .psi import (
    ASSUMES,
    METHODS,
    NONCE,
    SMALL,
    Opening,
    SharedRead,
    admit,
    as_buckets,
    match_shared,
    shared_tags,
)
from .psi_dh import CHUNK, BlindedIds, blind_ids, concatenate, receive_chunks
from .psi_oprf import OprfLayout, check_bucket, check_position
from .psi_policy import MAX_IDS, PsiPolicy, Queries, RefusedQuery, policy_of, refusal
from .together import in_thread, together

REVEALS = ("leader", "all")


class Session(Message, reveals="how many ids the leader holds, and the name of this run"):
    session: bytes
    count: int


class PairSeed(Message, reveals="a random key for two parties: nothing"):
    seed: bytes


class Answers(
    Message,
    reveals="a random-looking value for each of your own ids under the other's key: nothing by itself",
):
    first: int
    points: bytes


class Hints(
    Message,
    reveals="a table that gives a share of zero at ids the other holds and random bytes elsewhere; it tells "
    "only together with all others'",
):
    bucket: int
    table: bytes


class SharedTags(Message, reveals="which of your own ids all parties hold"):
    bucket: int
    tags: bytes


@dataclass(frozen=True)
class ManyLayout(OprfLayout):
    """Sizes and public hashes of the leader ("receivers") and one member, the same at both.

    `method`: "dh" or "oprf". `places`: the key by which all parties deal their ids.
    """

    method: str = "oprf"
    places: bytes = b""

    @property
    def outer(self) -> int:
        """The number of the leader's buckets."""
        return 1 if self.method == "dh" else max(1, math.ceil(self.receivers / psi_oprf.BUCKET))

    @property
    def inner(self) -> int:
        """The number of parts of each, with this member."""
        if self.method == "dh":
            return 1
        return max(1, math.ceil(self.senders / (self.outer * psi_oprf.BUCKET)))

    @property
    def buckets(self) -> int:
        return self.outer * self.inner

    @property
    def table(self) -> int:
        """The bytes of a hint."""
        return okvs.entries(self.outputs) * okvs.VALUE

    def hash(self, digests: np.ndarray, values: np.ndarray) -> np.ndarray:
        return ot.pads(values.view(np.uint8), digests, self.key("output"))


def _layout(method: str, session: bytes, name: str, leaders: int, members: int) -> ManyLayout:
    chosen = method
    if method == "auto":
        chosen = "dh" if max(leaders, members) <= SMALL else "oprf"
    pair = hashlib.sha256(bind("tacit psi many pair 1", session, name)).digest()
    places = hashlib.sha256(bind("tacit psi many places 1", session)).digest()
    return ManyLayout(leaders, members, pair, chosen, places)


async def leader(
    me: Party,
    digests: Any,
    *,
    others: Sequence[str],
    reveal: str = "all",
    method: str = "auto",
    within: float | None = None,
) -> dict[str, Any]:
    """Run the leader; return {"rows", "size", "theirs": set sizes}.

    `digests`: an array, or a `StoredIds`. "rows" are my rows that all parties share, bucket after bucket
    (there is one up to a million ids of mine), in each sorted by digest. `within`: seconds to wait for the
    members.
    """
    ids = _check(digests, method)
    me.ledger.stamp(ASSUMES)
    replies = await me.gather(others, Opening, RefusedQuery, within=within)
    for name, reply in replies.items():
        if isinstance(reply, RefusedQuery):
            raise refusal(reply.rule, name)
    openings = {name: reply for name, reply in replies.items() if isinstance(reply, Opening)}
    mismatches = {
        name: (m.method, m.reveal)
        for name, m in openings.items()
        if (m.method, m.reveal) != (_named(method), reveal) or len(m.nonce) != NONCE or m.count < 0
    }
    if mismatches:
        raise ProtocolError(
            f"party {me.name!r} has method={_named(method)!r} and reveal={reveal!r}, but {mismatches}. Use "
            "the same options at all parties; nothing was compared."
        )
    for name, m in openings.items():
        check_count(name, m.count)
    sides = [x for name in sorted(others) for x in (name, openings[name].count, openings[name].nonce)]
    session = hashlib.sha256(
        bind("tacit psi many 2", me.tag, me.name, len(ids), me.secret.bytes(NONCE), *sides)
    ).digest()
    await me.send(others, Session(session, len(ids)))
    layouts = {n: _layout(method, session, n, len(ids), openings[n].count) for n in others}
    first = layouts[others[0]]
    outer = max(layout.outer for layout in layouts.values())  # the same with all
    await in_thread(ids.deal, outer, first.places)
    kept = {n: ids.new_parts(layouts[n].buckets, okvs.VALUE) for n in others}
    by_dh = [n for n in others if layouts[n].method == "dh"]
    with PointPool(len(ids) * (1 + len(by_dh))) as shop:
        pairs: list[_LeaderPair] = []
        blinding = _Blinding(group.scalar(me.secret.bytes), shop, session) if by_dh else None
        for name in others:
            vole = None
            if name not in by_dh:
                vole = await psi_oprf.connect_receiver(me, name, layouts[name].session)
            pairs.append(_LeaderPair(me, name, layouts[name], vole, blinding, kept[name]))
        for b in range(outer):
            own, places = await in_thread(ids.bucket, b)
            answers = await together(*(pair.look_up(b, own) for pair in pairs))
            total = np.zeros((len(own), okvs.VALUE), np.uint8)
            for _, shares in answers:
                total ^= shares
            rows = np.flatnonzero(~total.any(1))
            await in_thread(ids.add_shared, own[rows], places[rows])
            if reveal == "all":
                for pair, (values, _) in zip(pairs, answers):
                    await in_thread(pair.keep, own[rows], values[rows])
            psi_oprf.log_bucket(me, b, outer)
    if reveal == "all":
        await together(*(pair.show(session) for pair in pairs))
    found = ids.shared_places()
    return {"rows": found, "size": len(found), "theirs": {name: openings[name].count for name in others}}


@dataclass
class _Blinding:
    """The leader's ids under its key, for Diffie-Hellman: computed once for all members."""

    key: bytes
    shop: PointPool
    session: bytes
    points: bytes | None = None

    def blind(self, digests: np.ndarray) -> bytes:
        if self.points is None:
            self.points = self.shop.lift(digests.tobytes(), digests.shape[1], self.session, self.key)
        return self.points


@dataclass
class _LeaderPair:
    """What the leader does with one member. `kept`: the values of shared ids, by bucket."""

    me: Party
    name: str
    layout: ManyLayout
    vole: VoleReceiver | None
    blinding: _Blinding | None
    kept: Parts

    def _numbers(self, digests: np.ndarray) -> np.ndarray:
        places = np.zeros(len(digests), np.int64)
        return bucket_numbers(digests, places, self.layout.buckets, self.layout.places)[0].astype(np.int64)

    async def look_up(self, b: int, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (F_i, F_i ⊕ the store) at each id of a bucket."""
        values = np.empty((len(own), okvs.VALUE), np.uint8)
        shares, inner = np.empty_like(values), self.layout.inner
        numbers = await asyncio.to_thread(self._numbers, own)
        for number in range(b * inner, (b + 1) * inner):
            at = np.flatnonzero(numbers == number)
            check_bucket(len(at), self.layout.room)
            values[at] = await self._evaluate(number, own[at])
            hints = await self.me.recv(self.name, Hints)
            check_position(
                (hints.bucket, len(hints.table)), (number, self.layout.table), "(bucket, bytes of the hint)"
            )
            table = np.frombuffer(hints.table, np.uint8).reshape(-1, okvs.VALUE)
            shares[at] = values[at] ^ await asyncio.to_thread(
                okvs.decode, table, own[at], self.layout.key("hint")
            )
        return values, shares

    async def _evaluate(self, number: int, own: np.ndarray) -> np.ndarray:
        me, name, layout = self.me, self.name, self.layout
        if self.vole is not None:
            c = await psi_oprf.send_store(me, name, layout, self.vole, number, own)
            salt = layout.key("store")
            return layout.hash(own, await asyncio.to_thread(okvs.decode, c.view(np.uint8), own, salt))
        assert self.blinding is not None
        blinding, parts = self.blinding, []
        blinded = await asyncio.to_thread(blinding.blind, own)

        async def send() -> None:
            for first in range(0, len(own), CHUNK):
                some = blinded[group.POINT * first : group.POINT * (first + CHUNK)]
                await me.send(name, BlindedIds(first, some))

        async def receive() -> None:
            key, total = group.inverse(blinding.key), len(own)
            async for _, answers in receive_chunks(
                me, name, Answers, lambda m: (m.first, m.points), group.POINT, total, "answers"
            ):
                points = await asyncio.to_thread(blinding.shop.multiply, key, answers)
                parts.append(compute_tags(points, group.POINT, layout.session, okvs.VALUE))

        await together(send(), receive())
        return concatenate(parts, okvs.VALUE)

    def keep(self, digests: np.ndarray, values: np.ndarray) -> None:
        """Keep the values of shared ids, from which the member recognizes them."""
        order = np.lexsort(tuple(digests[:, k] for k in range(digests.shape[1] - 1, -1, -1)))
        self.kept.append(self._numbers(digests[order]), values[order])

    async def show(self, session: bytes) -> None:
        """Tell the member which ids are shared."""
        size = tag_bytes(self.layout.receivers, self.layout.senders)
        for number in range(self.layout.buckets):
            tags = shared_tags(await in_thread(self.kept.read, number), session, size)
            if number >= psi_oprf.AHEAD:
                read = await self.me.recv(self.name, SharedRead)
                check_position((read.bucket,), (number - psi_oprf.AHEAD,), "(bucket)")
            await self.me.send(self.name, SharedTags(number, tags.tobytes()))


async def member(
    me: Party,
    digests: Any,
    *,
    leader: str,
    others: Sequence[str],
    reveal: str = "all",
    method: str = "auto",
    policy: PsiPolicy | Mapping[str, Any] | None = None,
    queries: Queries | None = None,
    within: float | None = None,
) -> dict[str, Any]:
    """Run a member; return the same keys as `leader`. "rows" and "size" are None unless reveal="all".

    `others`: all members in any order, including this one. `policy` and `queries` as for `psi.sender`, where
    "all" counts as "both" and "leader" as "receiver".
    """
    ids, rules = _check(digests, method), policy_of(policy)
    equivalent = "both" if reveal == "all" else "receiver"
    me.ledger.stamp(ASSUMES)
    await admit(me, leader, rules, queries, equivalent, 0)
    await me.send(leader, Opening(len(ids), _named(method), reveal, 0, me.secret.bytes(NONCE)))
    opened = await me.recv(leader, Session, within=within)
    check_count(leader, opened.count)
    await admit(me, leader, rules, None, equivalent, opened.count)
    session, layout = opened.session, _layout(method, opened.session, me.name, opened.count, len(ids))
    keys = [
        hashlib.sha256(bind(session, *sorted((me.name, name)), await _seed(me, name))).digest()
        for name in sorted(others)
        if name != me.name
    ]
    await in_thread(ids.deal, layout.buckets, layout.places)
    kept = ids.new_parts(layout.buckets, okvs.VALUE)
    with PointPool(0 if layout.method == "oprf" else len(ids) + opened.count) as shop:
        function = await _connect(me, leader, layout, shop, session)
        for number in range(layout.buckets):
            own, _ = await in_thread(ids.bucket, number)
            check_bucket(len(own), layout.outputs)
            values = await function.evaluate(number, own)
            if reveal == "all":
                await in_thread(kept.extend, number, values)
            table = await asyncio.to_thread(_hint, layout, own, values, keys, me.secret.bytes)
            await me.send(leader, Hints(number, table))
            psi_oprf.log_bucket(me, number, layout.buckets)
    sizes = {leader: opened.count}
    if reveal != "all":
        return {"rows": None, "size": None, "theirs": sizes}
    await _receive_shared(me, leader, ids, layout, kept, session)
    found = ids.shared_places()
    return {"rows": found, "size": len(found), "theirs": sizes}


def _hint(layout: ManyLayout, own: np.ndarray, values: np.ndarray, keys: list[bytes], draw: Any) -> bytes:
    """Return the store of x → F_i(x) ⊕ z_i(x)."""
    wanted = values.copy()
    for key in keys:
        wanted ^= encrypt_blocks(own, key)
    return okvs.encode(own, wanted, layout.key("hint"), draw, layout.outputs).tobytes()


async def _receive_shared(
    me: Party, leader: str, ids: IdBuckets, layout: ManyLayout, kept: Parts, session: bytes
) -> None:
    """Find which ids are shared, a bucket of the leader's at a time: that is the common order."""
    size = tag_bytes(layout.receivers, layout.senders)
    for b in range(layout.outer):
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for number in range(b * layout.inner, (b + 1) * layout.inner):
            message = await me.recv(leader, SharedTags)
            check_position((message.bucket,), (number,), "(bucket)")
            own, places = await in_thread(ids.bucket, number)
            values = await in_thread(kept.read, number)
            rows = await asyncio.to_thread(match_shared, message.tags, values, own, session, size)
            found.append((own[rows], places[rows]))
            if number + psi_oprf.AHEAD < layout.buckets:
                await me.send(leader, SharedRead(number))
        digests, all_places = (np.concatenate(some) for some in zip(*found))
        await in_thread(ids.add_shared, digests, all_places)


@dataclass
class _DhFunction:
    """F_i from Diffie-Hellman, at a member."""

    me: Party
    leader: str
    layout: ManyLayout
    shop: PointPool
    session: bytes
    key: bytes

    async def evaluate(self, number: int, own: np.ndarray) -> np.ndarray:
        """Answer the leader for a bucket; return F_i at each of my ids."""

        async def answer() -> None:
            async for first, points in receive_chunks(
                *(self.me, self.leader, BlindedIds, lambda m: (m.first, m.points)),
                *(group.POINT, self.layout.receivers, "ids"),
            ):
                answers = await asyncio.to_thread(self.shop.multiply, self.key, points)
                await self.me.send(self.leader, Answers(first, answers))

        async def own_values() -> np.ndarray:
            chunks = blind_ids(own, self.key, self.shop, self.session)
            about = self.layout.session
            return concatenate(
                [compute_tags(points, group.POINT, about, okvs.VALUE) async for _, points in chunks],
                okvs.VALUE,
            )

        _, values = await together(answer(), own_values())
        return np.asarray(values)


@dataclass
class _OprfFunction:
    """F_i from the vector OLE, at a member."""

    me: Party
    leader: str
    layout: ManyLayout
    vole: VoleSender

    async def evaluate(self, number: int, own: np.ndarray) -> np.ndarray:
        keys = await psi_oprf.receive_store(self.me, self.leader, self.layout, self.vole, number)
        return await asyncio.to_thread(psi_oprf.evaluate, self.layout, self.vole, keys, own)


async def _connect(
    me: Party, leader: str, layout: ManyLayout, shop: PointPool, session: bytes
) -> _DhFunction | _OprfFunction:
    if layout.method == "dh":
        return _DhFunction(me, leader, layout, shop, session, group.scalar(me.secret.bytes))
    return _OprfFunction(me, leader, layout, await psi_oprf.connect_sender(me, leader, layout.session))


def ideal(sets: Mapping[str, Sequence[bytes]]) -> dict[str, list[int]]:
    """Return each party's rows of the ids that all hold, sorted by value."""
    common = set.intersection(*(set(map(bytes, s)) for s in sets.values()))
    return {
        name: [row for _, row in sorted((bytes(d), row) for row, d in enumerate(s) if bytes(d) in common)]
        for name, s in sets.items()
    }


def check_count(name: str, count: int) -> None:
    """Check a declared set size before memory is allocated for it."""
    if not 0 <= count <= MAX_IDS:
        raise ProtocolError(
            f"party {name!r} declares {count} ids; it must be between 0 and {MAX_IDS}. Nothing was compared."
        )


def _named(method: str) -> str:
    return "many" if method == "auto" else f"many {method}"


def _check(digests: Any, method: str) -> ArrayIds | StoredIds:
    if method not in METHODS:
        raise bad("align", "method", method, "one of " + ", ".join(map(repr, METHODS)))
    ids = as_buckets(digests)
    if method == "dh" and isinstance(ids, StoredIds):
        raise bad("psi", "method", "dh", "'auto' or 'oprf' where ids are in files")
    return ids


async def _seed(me: Party, name: str) -> bytes:
    """Agree on a key for this pair; the party whose name sorts first draws it."""
    if me.name < name:
        seed = me.secret.bytes(32)
        await me.send(name, PairSeed(seed))
        return seed
    seed = (await me.recv(name, PairSeed)).seed
    if len(seed) != 32:
        raise ProtocolError(f"party {name!r} sends a seed of {len(seed)} bytes; it must be 32.")
    return seed
