"""Whom do all of N parties share? Kolesnikov, Matania, Pinkas, Rosulek, Trieu: Practical Multi-party
Private Set Intersection from Symmetric-Key Techniques, CCS 2017, the protocol for augmented semi-honest
parties (figure 6), with a Diffie-Hellman OPRF and the key-value store of `crypto.okvs`.

    party i ≠ leader                                              leader (Y, key b)
      |--- Opening(count, …) --------------------------------------->|
      |<-- Session(id, counts) --------------------------------------|
      |--- PairSeed --> party j > i                                  |   each pair of those who do not lead: a common key k_ij
      |<-- BlindedIds(b·H(y)) ---------------------------------------|
      |--- Answers(a_i·b·H(y)) ------------------------------------->|   the leader takes b off: F_i(y) = h(a_i·H(y))
      |--- Hints(store of x → F_i(x) ⊕ z_i(x)) --------------------->|   z_i(x) = ⊕_j AES under k_ij: over all i these add up to 0
      |<-- SharedTags(h'(F_i(y)) of the shared y) -------------------|   with reveal="all" only

The leader looks its ids up in every store and adds up: 0 exactly if all the others hold the id. An id that
one of them lacks gives random bytes, whoever of the others holds it, so the leader learns which of its ids
all share, and of the others nothing: not who holds which, not who overlaps with whom. It learns every set
size; the others learn the leader's, and with "all" which of their own ids everybody shares. It rests on
Diffie-Hellman, AES, and on all following the program. A leader that works together with some of the others
learns which of its ids all the rest share.
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
from ..crypto.tags import compute_tags, match, sort_by_digest, tag_bytes
from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .psi import ASSUMES, NONCE, Opening, admit, ready
from .psi_dh import BlindedIds, arriving, lifted, offer, stacked
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
    """{"rows": my rows that all share, in the order of their digests; "size"; "theirs": set sizes}. `within`:
    seconds to wait for the others to begin.
    """
    held = ready(digests)
    me.ledger.stamp(ASSUMES)
    told: dict[str, Opening] = {}
    for name, first in (await me.gather(others, Opening, RefusedQuery, within=within)).items():
        if isinstance(first, RefusedQuery):
            raise refusal(first.rule, name)
        assert isinstance(first, Opening)
        told[name] = first
    wrong = {
        name: m.reveal
        for name, m in told.items()
        if (m.method, m.reveal) != ("many", reveal) or len(m.nonce) != NONCE or m.count < 0
    }
    if wrong:
        raise ProtocolError(
            f"party {me.name!r} wants reveal={reveal!r}, but {wrong}. Agree before you start; nothing was "
            "compared."
        )
    for name, m in told.items():
        check_count(name, m.count)
    mine = [x for name in sorted(others) for x in (name, told[name].count, told[name].nonce)]
    session = hashlib.sha256(
        bind("tacit psi many 1", me.tag, me.name, len(held), me.secret.bytes(NONCE), *mine)
    ).digest()
    await me.send(others, Session(session, len(held)))
    key = group.scalar(me.secret.bytes)
    with PointPool(len(held) * (1 + len(others))) as shop:

        async def hear(name: str) -> tuple[np.ndarray, np.ndarray]:
            """(F_i, F_i ⊕ the store) at each of my ids."""
            parts = []
            async for _, answers in arriving(
                me, name, Answers, lambda m: (m.first, m.points), group.POINT, len(held), "answers"
            ):
                points = await asyncio.to_thread(shop.multiply, group.inverse(key), answers)
                parts.append(compute_tags(points, group.POINT, session, okvs.VALUE))
            values = stacked(parts, okvs.VALUE)
            table = np.frombuffer((await me.recv(name, Hints)).table, np.uint8)
            if len(table) != okvs.entries(told[name].count) * okvs.VALUE:
                raise ProtocolError(
                    f"party {name!r} sends {len(table)} bytes for {told[name].count} ids; they must be "
                    f"{okvs.entries(told[name].count) * okvs.VALUE}."
                )
            return values, values ^ await asyncio.to_thread(
                okvs.decode, table.reshape(-1, okvs.VALUE), held, session
            )

        _, *found = await together(
            offer(me, others, held, key, shop, session), *(hear(name) for name in others)
        )
    total = np.zeros((len(held), okvs.VALUE), np.uint8)
    for _, shares in found:
        total ^= shares
    rows = sort_by_digest(held, np.flatnonzero(~total.any(1)))
    if reveal == "all":
        for name, (values, _) in zip(others, found):
            await me.send(
                name,
                SharedTags(_told(values[rows], session, tag_bytes(len(held), told[name].count)).tobytes()),
            )
    return {"rows": rows, "size": len(rows), "theirs": {name: told[name].count for name in others}}


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
    """The same for those who do not lead; "rows" and "size" are None unless reveal="all". `others`: all who
    do not lead, in any order, me among them. `policy` and `queries` as for `psi.sender`: "all" counts as
    "both" there, "leader" as "receiver".
    """
    held, rules, what = ready(digests), policy_of(policy), "both" if reveal == "all" else "receiver"
    me.ledger.stamp(ASSUMES)
    await admit(me, leader, rules, queries, what, 0)
    await me.send(leader, Opening(len(held), "many", reveal, 0, me.secret.bytes(NONCE)))
    told = await me.recv(leader, Session, within=within)
    check_count(leader, told.count)
    await admit(me, leader, rules, None, what, told.count)
    key, shares = group.scalar(me.secret.bytes), np.zeros((len(held), okvs.VALUE), np.uint8)
    for name in sorted(others):
        if name != me.name:
            shares ^= encrypt_blocks(
                held,
                hashlib.sha256(bind(told.session, *sorted((me.name, name)), await _seed(me, name))).digest(),
            )
    with PointPool(len(held) + told.count) as shop:

        async def answer() -> None:
            async for first, points in arriving(
                me, leader, BlindedIds, lambda m: (m.first, m.points), group.POINT, told.count, "ids"
            ):
                await me.send(leader, Answers(first, await asyncio.to_thread(shop.multiply, key, points)))

        async def own() -> np.ndarray:
            mine = lifted(held, key, shop, told.session)
            return stacked(
                [compute_tags(points, group.POINT, told.session, okvs.VALUE) async for _, points in mine],
                okvs.VALUE,
            )

        _, values = await together(answer(), own())
    table = await asyncio.to_thread(okvs.encode, held, values ^ shares, told.session, me.secret.bytes)
    await me.send(leader, Hints(table.tobytes()))
    if reveal != "all":
        return {"rows": None, "size": None, "theirs": {leader: told.count}}
    size = tag_bytes(told.count, len(held))
    tags = (await me.recv(leader, SharedTags)).tags
    if len(tags) % size:
        raise ProtocolError(f"{len(tags)} bytes of tags came; they must be a multiple of {size}.")
    shared, _ = match(_told(values, told.session, size), np.frombuffer(tags, np.uint8).reshape(-1, size))
    return {"rows": sort_by_digest(held, shared), "size": len(shared), "theirs": {leader: told.count}}


def ideal(sets: Mapping[str, Sequence[bytes]]) -> dict[str, list[int]]:
    """Everyone's rows of the ids that all hold, in the order of their values."""
    common = set.intersection(*(set(map(bytes, s)) for s in sets.values()))
    return {
        name: [row for _, row in sorted((bytes(d), row) for row, d in enumerate(s) if bytes(d) in common)]
        for name, s in sets.items()
    }


def check_count(name: str, count: int) -> None:
    """Before anything is sized by it."""
    if not 0 <= count <= MAX_IDS:
        raise ProtocolError(
            f"party {name!r} says that it holds {count} ids; it must be between 0 and {MAX_IDS}. Nothing "
            "was compared."
        )


async def _seed(me: Party, name: str) -> bytes:
    """A key that this pair alone has: the one whose name comes first draws it."""
    if me.name < name:
        seed = me.secret.bytes(32)
        await me.send(name, PairSeed(seed))
        return seed
    seed = (await me.recv(name, PairSeed)).seed
    if len(seed) != 32:
        raise ProtocolError(f"party {name!r} sends a seed of {len(seed)} bytes; it must be 32.")
    return seed


def _told(values: np.ndarray, session: bytes, size: int) -> np.ndarray:
    return compute_tags(values.tobytes(), okvs.VALUE, b"shared" + session, size)
