"""Private set intersection of a small set with a large one that its owner prepared. Kiss, Liu, Schneider,
Asokan, Pinkas: Private Set Intersection for Unequal Set Sizes with Mobile Applications, PoPETs 2017, section
4.1.

    receiver (Y, key b)                                  sender (key k; table of h(x, k·H(x)))
      |    …the table, once, by any way (`prepared_set`)…  |
      |--- PreparedQuery(mark, count) -------------------->|    checked against the sender's policy
      |<-- PreparedReply(count) ---------------------------|    or RefusedQuery(rule)
      |--- BlindedIds(b·H(y)) ---------------------------->|    in chunks
      |<-- PreparedAnswers(k·b·H(y)) ----------------------|
      |  h(y, b⁻¹·k·b·H(y)) is in the table exactly when y ∈ X

What is sent and computed in a query depends on the receiver's set only. The table tells how many ids there
are; its tags look random to whoever cannot evaluate the function: 2HashDH (Jarecki, Kiayias, Krawczyk,
ASIACRYPT 2014) is a pseudorandom function whose key is used for many queries, and a receiver that sends any
elements it likes evaluates it at no more ids than it sent elements (one-more Diffie-Hellman, H and h as
random oracles). So a receiver that deviates learns about as many ids as it declares, which the policy bounds.
The sender learns how many ids the receiver asks about, and nothing else: b·H(y) is uniform, whatever y. A
sender that deviates can answer with another key, which hides matches. Receivers that share the table and
their answers know together what each of them knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..crypto import group
from ..crypto.manycore import PointPool
from ..crypto.tags import sort_by_digest
from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .prepared_set import MARK, PreparedKey, PreparedTable, about, tag_ids
from .psi import admit, check_digests
from .psi_dh import BlindedIds, blind_ids, receive_chunks
from .psi_policy import MAX_IDS, PsiPolicy, Queries, RefusedQuery, policy_of, refusal
from .together import together

ASSUMES = (
    "PREPARED SET: the receiver keeps a table of the sender's tags. It learns about as many ids as it sends, "
    "in every query; its answers stay valid as long as the sender keeps its key."
)


class PreparedQuery(Message, reveals="how many ids the other asks about, and in which prepared set"):
    mark: bytes
    count: int


class PreparedReply(Message, reveals="how many ids the prepared set holds"):
    count: int


class PreparedAnswers(
    Message,
    reveals="a value for each of your own ids under the other's key: with the table, which of them it holds",
):
    first: int
    points: bytes


async def receiver(
    me: Party, digests: Any, *, table: str | Path, other: str = "sender", within: float | None = None
) -> dict[str, Any]:
    """Run the receiver with the sender's table; return the same keys as `psi.receiver`."""
    ids, known = check_digests(digests), PreparedTable.open(table)
    me.ledger.stamp(ASSUMES)
    await me.send(other, PreparedQuery(known.mark, len(ids)))
    reply: Message = await me.recv(other, PreparedReply, RefusedQuery, within=within)
    if isinstance(reply, RefusedQuery):
        raise refusal(reply.rule, other)
    assert isinstance(reply, PreparedReply)
    if reply.count != known.count:
        raise ProtocolError(
            f"{known.path} has {known.count} ids, and {other!r} says {reply.count}. Get the table again."
        )
    key = group.scalar(me.secret.bytes)
    inverse = group.inverse(key)
    with PointPool(2 * len(ids)) as pool:

        async def ask() -> None:
            async for first, points in blind_ids(ids, key, pool, about(known.mark)):
                await me.send(other, BlindedIds(first, points))

        async def unblind() -> bytes:
            chunks = receive_chunks(
                me, other, PreparedAnswers, lambda m: (m.first, m.points), group.POINT, len(ids), "answers"
            )
            return b"".join(
                [await asyncio.to_thread(pool.multiply, inverse, points) async for _, points in chunks]
            )

        _, points = await together(ask(), unblind())
    found = await asyncio.to_thread(known.find, tag_ids(ids, points, known.mark))
    rows = sort_by_digest(ids, np.flatnonzero(found))
    return {"rows": rows, "size": len(rows), "sum": None, "theirs": known.count, "method": "prepared"}


async def sender(
    me: Party,
    folder: str | Path,
    *,
    other: str = "receiver",
    policy: PsiPolicy | Mapping[str, Any] | None = None,
    queries: Queries | None = None,
    within: float | None = None,
) -> dict[str, Any]:
    """Answer one query with a prepared set; the policy counts it as reveal="receiver"."""
    mine, rules = PreparedKey.read(folder), policy_of(policy)
    me.ledger.stamp(ASSUMES)
    query = await me.recv(other, PreparedQuery, within=within)
    if len(query.mark) != MARK or query.mark != mine.mark:
        raise ProtocolError(
            f"party {other!r} asks with the table of another prepared set than {str(folder)!r}. Give it "
            "the table of this one."
        )
    if not 0 <= query.count <= MAX_IDS:
        raise ProtocolError(
            f"party {other!r} declares {query.count} ids; it must be between 0 and {MAX_IDS}. Nothing was "
            "answered."
        )
    await admit(me, other, rules, queries, "receiver", query.count)
    await me.send(other, PreparedReply(mine.count))
    with PointPool(query.count) as pool:
        async for first, points in receive_chunks(
            me, other, BlindedIds, lambda m: (m.first, m.points), group.POINT, query.count, "ids"
        ):
            await me.send(
                other, PreparedAnswers(first, await asyncio.to_thread(pool.multiply, mine.key, points))
            )
    return {"rows": None, "size": None, "sum": None, "theirs": query.count, "method": "prepared"}
