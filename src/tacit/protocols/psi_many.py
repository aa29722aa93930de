"""Private set intersection of N parties. Kolesnikov, Matania, Pinkas, Rosulek, Trieu: Practical Multi-party
Private Set Intersection from Symmetric-Key Techniques, CCS 2017, the protocol for augmented semi-honest
parties (figure 6), with a Diffie-Hellman OPRF and the key-value store of `crypto.okvs`.

    party i ≠ leader                                              leader (Y, key b)
      |--- Opening(count, …) --------------------------------------->|
      |<-- Session(id, counts) --------------------------------------|
      |--- PairSeed --> party j > i                                  |   each pair of members has a key k_ij
      |<-- BlindedIds(b·H(y)) ---------------------------------------|
      |--- Answers(a_i·b·H(y)) ------------------------------------->|   without b: F_i(y) = h(a_i·H(y))
      |--- Hints(store of x → F_i(x) ⊕ z_i(x)) --------------------->|   z_i(x) = ⊕_j AES_kij(x); ⊕_i z_i = 0
      |<-- SharedTags(h'(F_i(y)) of the shared y) -------------------|   with reveal="all" only

The leader looks up its ids in every store and adds the results: the sum is 0 exactly if all members hold the
id. If one of them lacks it, the sum is random. So the leader learns which of its ids all parties share, and
nothing else: not who holds which id, nor which members overlap. It learns every set size; the members learn
the leader's and, with "all", which of their own ids all parties share. Security rests on Diffie-Hellman, AES,
and on all parties following the protocol. A leader that colludes with some members learns which of its ids
all the other members share.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..crypto import group, okvs
from ..crypto.agree import bind
from ..crypto.manycore import PointPool
from ..crypto.ot import encrypt_blocks
from ..crypto.tags import compute_tags, sort_by_digest, tag_bytes
from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .psi import ASSUMES, NONCE, Opening, admit, check_digests, match_shared, shared_tags
from .psi_dh import BlindedIds, blind_ids, concatenate, receive_chunks, send_blinded
from .psi_policy import MAX_IDS, PsiPolicy, Queries, RefusedQuery, policy_of, refusal
from .together import together

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
    table: bytes


class SharedTags(Message, reveals="which of your own ids all parties hold"):
    tags: bytes


async def leader(
    me: Party, digests: Any, *, others: Sequence[str], reveal: str = "all", within: float | None = None
) -> dict[str, Any]:
    """Run the leader; return {"rows", "size", "theirs": set sizes}.

    "rows" are my rows that all parties share, sorted by digest. `within`: seconds to wait for the members.
    """
    ids = check_digests(digests)
    me.ledger.stamp(ASSUMES)
    replies = await me.gather(others, Opening, RefusedQuery, within=within)
    for name, reply in replies.items():
        if isinstance(reply, RefusedQuery):
            raise refusal(reply.rule, name)
    openings = {name: reply for name, reply in replies.items() if isinstance(reply, Opening)}
    mismatches = {
        name: m.reveal
        for name, m in openings.items()
        if (m.method, m.reveal) != ("many", reveal) or len(m.nonce) != NONCE or m.count < 0
    }
    if mismatches:
        raise ProtocolError(
            f"party {me.name!r} has reveal={reveal!r}, but {mismatches}. Use the same options at all "
            "parties; nothing was compared."
        )
    for name, m in openings.items():
        check_count(name, m.count)
    sides = [x for name in sorted(others) for x in (name, openings[name].count, openings[name].nonce)]
    session = hashlib.sha256(
        bind("tacit psi many 1", me.tag, me.name, len(ids), me.secret.bytes(NONCE), *sides)
    ).digest()
    await me.send(others, Session(session, len(ids)))
    key = group.scalar(me.secret.bytes)
    with PointPool(len(ids) * (1 + len(others))) as shop:

        async def receive_store(name: str) -> tuple[np.ndarray, np.ndarray]:
            """Return (F_i, F_i ⊕ the store) at each of my ids."""
            parts = []
            async for _, answers in receive_chunks(
                me, name, Answers, lambda m: (m.first, m.points), group.POINT, len(ids), "answers"
            ):
                points = await asyncio.to_thread(shop.multiply, group.inverse(key), answers)
                parts.append(compute_tags(points, group.POINT, session, okvs.VALUE))
            values = concatenate(parts, okvs.VALUE)
            table = np.frombuffer((await me.recv(name, Hints)).table, np.uint8)
            if len(table) != okvs.entries(openings[name].count) * okvs.VALUE:
                raise ProtocolError(
                    f"party {name!r} sends {len(table)} bytes for {openings[name].count} ids; expected "
                    f"{okvs.entries(openings[name].count) * okvs.VALUE}."
                )
            return values, values ^ await asyncio.to_thread(
                okvs.decode, table.reshape(-1, okvs.VALUE), ids, session
            )

        _, *answers = await together(
            send_blinded(me, others, ids, key, shop, session), *(receive_store(name) for name in others)
        )
    total = np.zeros((len(ids), okvs.VALUE), np.uint8)
    for _, shares in answers:
        total ^= shares
    rows = sort_by_digest(ids, np.flatnonzero(~total.any(1)))
    if reveal == "all":
        for name, (values, _) in zip(others, answers):
            await me.send(
                name,
                SharedTags(
                    shared_tags(values[rows], session, tag_bytes(len(ids), openings[name].count)).tobytes()
                ),
            )
    return {"rows": rows, "size": len(rows), "theirs": {name: openings[name].count for name in others}}


async def member(
    me: Party,
    digests: Any,
    *,
    leader: str,
    others: Sequence[str],
    reveal: str = "all",
    policy: PsiPolicy | Mapping[str, Any] | None = None,
    queries: Queries | None = None,
    within: float | None = None,
) -> dict[str, Any]:
    """Run a member; return the same keys as `leader`. "rows" and "size" are None unless reveal="all".

    `others`: all members in any order, including this one. `policy` and `queries` as for `psi.sender`, where
    "all" counts as "both" and "leader" as "receiver".
    """
    ids, rules, equivalent = (
        check_digests(digests),
        policy_of(policy),
        "both" if reveal == "all" else "receiver",
    )
    me.ledger.stamp(ASSUMES)
    await admit(me, leader, rules, queries, equivalent, 0)
    await me.send(leader, Opening(len(ids), "many", reveal, 0, me.secret.bytes(NONCE)))
    session = await me.recv(leader, Session, within=within)
    check_count(leader, session.count)
    await admit(me, leader, rules, None, equivalent, session.count)
    key, shares = group.scalar(me.secret.bytes), np.zeros((len(ids), okvs.VALUE), np.uint8)
    for name in sorted(others):
        if name != me.name:
            shares ^= encrypt_blocks(
                ids,
                hashlib.sha256(
                    bind(session.session, *sorted((me.name, name)), await _seed(me, name))
                ).digest(),
            )
    with PointPool(len(ids) + session.count) as shop:

        async def answer() -> None:
            async for first, points in receive_chunks(
                me, leader, BlindedIds, lambda m: (m.first, m.points), group.POINT, session.count, "ids"
            ):
                await me.send(leader, Answers(first, await asyncio.to_thread(shop.multiply, key, points)))

        async def own_values() -> np.ndarray:
            chunks = blind_ids(ids, key, shop, session.session)
            return concatenate(
                [
                    compute_tags(points, group.POINT, session.session, okvs.VALUE)
                    async for _, points in chunks
                ],
                okvs.VALUE,
            )

        _, values = await together(answer(), own_values())
    table = await asyncio.to_thread(okvs.encode, ids, values ^ shares, session.session, me.secret.bytes)
    await me.send(leader, Hints(table.tobytes()))
    if reveal != "all":
        return {"rows": None, "size": None, "theirs": {leader: session.count}}
    tags = (await me.recv(leader, SharedTags)).tags
    rows = match_shared(tags, values, ids, session.session, tag_bytes(session.count, len(ids)))
    return {"rows": rows, "size": len(rows), "theirs": {leader: session.count}}


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
