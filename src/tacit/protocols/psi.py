"""Private set intersection between two: agree on the terms, then run the method they come to.

    receiver                                            sender
      |--- Opening(count, method, reveal, nonce) ---------->|   the sender's policy is checked before it sends anything
      |<-- Opening(count, method, reveal, nonce) -----------|   or RefusedQuery(rule); both must want the same
      |   … `psi_dh`, `psi_oprf` or `psi_sum` …             |   bound to a session made of both nonces, sizes and names
      |--- SharedIds(h'(id) of the shared) ---------------->|   with reveal="both" only

Each learns the other's set size; what else, the method's own page says. method="auto" takes Diffie-Hellman
(`psi_dh`) up to 10,000 ids, where it sends the fewest bytes; above, the OT-based OPRF (`psi_oprf`), which
computes thirty times less (`benchmarks/psi.py`). reveal="size" and "sum" run `psi_sum`: the sender counts
the shared ids, and opens the count, or the sum of its numbers over them, if there are as many as its
policy asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..crypto.agree import bind
from ..crypto.tags import compute_tags, match, sort_by_digest, tag_bytes
from ..errors import ProtocolError, QueryRefused
from ..parameters import bad
from ..parties.message import Message
from ..parties.party import Party
from . import psi_dh, psi_oprf, psi_sum
from .psi_policy import (
    COUNTED,
    MAX_IDS,
    REVEALS,
    PsiPolicy,
    Queries,
    RefusedQuery,
    broken_rule,
    policy_of,
    refusal,
)

METHODS = ("auto", "dh", "oprf")
LIMIT = 2**32 - 1  # the largest number in a sum, unless told otherwise
SMALL = 10_000  # ids on the larger side up to which Diffie-Hellman is taken
NONCE = 16
DIGEST = 16  # bytes of an id: a block of AES, which the OPRF and the stores of `psi_many` put them through
ASSUMES = (
    "SEMI-HONEST: the sets are hidden as the lines below say if both parties follow their programs; one "
    "that deviates can claim ids it does not hold, "
    "or spoil the result unnoticed."
)


class Opening(
    Message,
    reveals="how many ids the other holds (without duplicates), and how it wants to compare: method, and "
    "who learns the result",
):
    count: int
    method: str
    reveal: str
    limit: int  # of the numbers in a sum; 0 where there is none
    nonce: bytes


class SharedIds(Message, reveals="which of your own ids the other holds, too"):
    tags: bytes


async def receiver(
    me: Party,
    digests: Any,
    *,
    other: str = "sender",
    method: str = "auto",
    reveal: str = "receiver",
    limit: int = LIMIT,
    within: float | None = None,
) -> dict[str, Any]:
    """{"rows": those of my digests that are shared, in the order of their values (None with "size" and
    "sum"), "size", "sum", "theirs", "method"}. `within`: seconds to wait for the other to begin. QueryRefused
    if the sender's policy does not allow the query.
    """
    held = ready(digests)
    mine = _begin(me, held, method, reveal, limit)
    await me.send(other, mine)
    theirs: Message = await me.recv(other, Opening, RefusedQuery, within=within)
    if isinstance(theirs, RefusedQuery):
        raise refusal(theirs.rule, other)
    assert isinstance(theirs, Opening)
    _check_same(me.name, mine, other, theirs)
    if theirs.count > MAX_IDS:
        raise ProtocolError(
            f"party {other!r} says that it holds {theirs.count} ids; more than {MAX_IDS} are not compared."
        )
    chosen, session = (
        choose(method, reveal, len(held), theirs.count),
        _session(me, reveal, method, (me.name, mine), (other, theirs)),
    )
    made: dict[str, Any] = {"rows": None, "sum": None, "theirs": theirs.count, "method": chosen}
    if reveal in COUNTED:
        size, total = await psi_sum.receiver(
            me, held, other, theirs.count, session, limit if reveal == "sum" else None
        )
        return {**made, "size": size, "sum": total}
    rows, size = await PROGRAMS[chosen].receiver(me, held, other, theirs.count, session)
    if reveal == "both":
        await me.send(
            other, SharedIds(_named(held[rows], session, tag_bytes(len(held), theirs.count)).tobytes())
        )
    return {**made, "rows": rows, "size": size}


async def sender(
    me: Party,
    digests: Any,
    *,
    other: str = "receiver",
    method: str = "auto",
    reveal: str = "receiver",
    limit: int = LIMIT,
    values: Sequence[int] = (),
    policy: PsiPolicy | Mapping[str, Any] | None = None,
    queries: Queries | None = None,
    within: float | None = None,
) -> dict[str, Any]:
    """The same; "rows" are None unless reveal="both", "size" unless it is "both", "size" or "sum". With
    "both", row k here and row k at the receiver are the same person. `values`: with reveal="sum" a number for
    each digest. `policy` (None: the default one; a mapping: of its fields) is checked here, and `queries`
    counts this query before anything is sent: without it, `queries_per_day` is not enforced.
    """
    held = ready(digests)
    rules = policy_of(policy)
    mine = _begin(me, held, method, reveal, limit)
    theirs = await me.recv(other, Opening, within=within)
    if (theirs.method, theirs.reveal, theirs.limit) == (mine.method, mine.reveal, mine.limit):
        await admit(me, other, rules, queries, reveal, theirs.count)
    await me.send(other, mine)
    _check_same(me.name, mine, other, theirs)
    chosen, session = (
        choose(method, reveal, len(held), theirs.count),
        _session(me, reveal, method, (other, theirs), (me.name, mine)),
    )
    made: dict[str, Any] = {"rows": None, "size": None, "sum": None, "theirs": theirs.count, "method": chosen}
    if reveal in COUNTED:
        made["size"] = await psi_sum.sender(
            me,
            held,
            other,
            theirs.count,
            session,
            limit if reveal == "sum" else None,
            values,
            rules.min_overlap,
        )
        return made
    await PROGRAMS[chosen].sender(me, held, other, theirs.count, session)
    if reveal == "both":
        rows = _found(
            (await me.recv(other, SharedIds)).tags, held, session, tag_bytes(theirs.count, len(held))
        )
        made |= {"rows": rows, "size": len(rows)}
    return made


async def admit(
    me: Party, other: str, policy: PsiPolicy, queries: Queries | None, reveal: str, declared: int
) -> None:
    """Hold a query to the policy and count it, or refuse it on both sides."""
    rule = broken_rule(policy, reveal, declared)
    if not rule and queries is not None:
        try:
            queries.admit(other, policy.queries_per_day)
        except QueryRefused:
            rule = "queries_per_day"
    if rule:
        await me.send(other, RefusedQuery(rule))
        raise refusal(rule, me.name)


def ideal(mine: Sequence[bytes], theirs: Sequence[bytes]) -> list[int]:
    """What the receiver gets: the rows of mine that theirs has, in the order of their values."""
    there = set(map(bytes, theirs))
    return [row for _, row in sorted((bytes(d), row) for row, d in enumerate(mine) if bytes(d) in there)]


def _begin(me: Party, held: np.ndarray, method: str, reveal: str, limit: int) -> Opening:
    allow(method, reveal, limit)
    me.ledger.stamp(ASSUMES)
    return Opening(len(held), method, reveal, limit if reveal == "sum" else 0, me.secret.bytes(NONCE))


def _check_same(name: str, mine: Opening, other: str, theirs: Opening) -> None:
    """Both want the same, and what the other opens with can be."""
    if (theirs.method, theirs.reveal, theirs.limit) != (mine.method, mine.reveal, mine.limit):
        raise ProtocolError(
            f"party {other!r} wants method={theirs.method!r}, reveal={theirs.reveal!r} and "
            f"limit={theirs.limit}, party {name!r} "
            f"method={mine.method!r}, reveal={mine.reveal!r} and limit={mine.limit}. Agree before you "
            "start; nothing was compared."
        )
    if len(theirs.nonce) != NONCE or theirs.count < 0:
        raise ProtocolError(
            f"party {other!r} opens with {theirs.count} ids and a nonce of {len(theirs.nonce)} bytes; it "
            f"must be at least 0 and {NONCE}."
        )


def _session(
    me: Party, reveal: str, method: str, receiver: tuple[str, Opening], sender: tuple[str, Opening]
) -> bytes:
    chosen = choose(method, reveal, receiver[1].count, sender[1].count)
    sides = [x for name, opening in (receiver, sender) for x in (name, opening.count, opening.nonce)]
    return hashlib.sha256(bind("tacit psi 2", me.tag, chosen, reveal, *sides)).digest()


def _named(digests: np.ndarray, session: bytes, size: int) -> np.ndarray:
    """Ids for one who holds them, too. A place in what was compared would do as well, but it can depend on
    ids that are not shared.
    """
    return compute_tags(digests.tobytes(), digests.shape[1], b"shared" + session, size)


def _found(tags: bytes, held: np.ndarray, session: bytes, size: int) -> np.ndarray:
    """My rows of these, in the order of their digests."""
    if len(tags) % size:
        raise ProtocolError(f"{len(tags)} bytes name no list of ids; they must be a multiple of {size}.")
    said = np.frombuffer(tags, np.uint8).reshape(-1, size)
    rows, places = match(_named(held, session, size), said)
    if len(rows) != len(said) or len(np.unique(places)) < len(said):
        raise ProtocolError(
            f"the other says that {len(said)} ids are shared, of which we hold {len(rows)}, or names one "
            "twice: it does not follow the "
            "protocol."
        )
    return sort_by_digest(held, rows)


PROGRAMS: dict[str, Any] = {"dh": psi_dh, "oprf": psi_oprf}


def choose(method: str, reveal: str, n: int, m: int) -> str:
    """Both come to the same from what both know."""
    if reveal == "sum":
        return "sum"
    if method != "auto":
        return method
    return "dh" if reveal == "size" or max(n, m) <= SMALL else "oprf"


def allow(method: str, reveal: str, limit: int = LIMIT) -> None:
    if method not in METHODS:
        raise bad("psi", "method", method, "one of " + ", ".join(map(repr, METHODS)))
    if reveal not in REVEALS:
        raise bad("psi", "reveal", reveal, "one of " + ", ".join(map(repr, REVEALS)))
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit < 1 << 63:
        raise bad("psi", "limit", limit, "a whole number from 1 to 2^63 − 1: the largest number in a sum")
    if method == "oprf" and reveal in ("size", "sum"):
        raise bad(
            "psi",
            "method",
            method,
            f"'dh' or 'auto' with reveal={reveal!r}",
            "Outputs of the OPRF say which ids are shared, not only how many.",
        )


def ready(digests: Any) -> np.ndarray:
    """The digests as a party's program is given them: an array or, from another process, a tensor."""
    held = np.ascontiguousarray(np.asarray(digests))
    if held.dtype != np.uint8 or held.ndim != 2 or held.shape[1] != DIGEST:
        raise bad(
            "psi",
            "digests",
            f"{held.dtype} of shape {held.shape}",
            f"uint8 of shape (ids, {DIGEST})",
            "tacit.data.identifiers.identify makes them.",
        )
    return held
