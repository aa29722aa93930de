"""Private set intersection of two parties: agree on the options, then run the method.

    receiver                                            sender
      |--- Opening(count, method, reveal, nonce) ---------->|   checked against the sender's policy
      |<-- Opening(count, method, reveal, nonce) -----------|   or RefusedQuery(rule); options must match
      |   … `psi_dh`, `psi_oprf` or `psi_sum` …             |   bound to both nonces, sizes and names
      |--- SharedIds(bucket, h'(id) of the shared) -------->|   with reveal="both" only, for each bucket;
      |<-- SharedRead(bucket) ------------------------------|   the receiver is two buckets ahead at most

Each party learns the other's set size; the method's module says what else. method="auto" uses Diffie-Hellman
(`psi_dh`) up to 10,000 ids, where it sends the fewest bytes, and the OPRF from a vector OLE (`psi_oprf`)
above, which needs thirty times less computation and a third of the bytes (`benchmarks/psi.py`).
reveal="size" and "sum" run `psi_sum`: the sender counts the shared ids, and opens the count, or the sum of
its values over them, if its policy allows it. reveal="shares" (`receive_words`, `send_words`) runs
`psi_circuit`, after which neither party knows anything, and membership is computed on shares (`tacit.join`).
"""

from __future__ import annotations

import asyncio
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
from . import psi_circuit, psi_dh, psi_oprf, psi_sum
from .id_buckets import DIGEST, ArrayIds, IdBuckets, StoredIds
from .psi_oprf import check_position
from .psi_policy import (
    COUNTED,
    MAX_IDS,
    REVEALS,
    SHARES,
    PsiPolicy,
    Queries,
    RefusedQuery,
    broken_rule,
    policy_of,
    refusal,
)
from .psi_resume import Checkpoint, Resumed, agree_to_resume
from .together import in_thread

METHODS = ("auto", "dh", "oprf")
LIMIT = 2**32 - 1  # the default of the largest value in a sum
MOST = 2**63 - 1  # the largest limit
SMALL = 10_000  # ids on the larger side up to which method="auto" uses Diffie-Hellman
NONCE = 16
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
    limit: int  # of the numbers in a sum; with shares the words of a bin; 0 where there is none
    nonce: bytes


class SharedIds(Message, reveals="which of your own ids the other holds, too"):
    bucket: int
    tags: bytes


class SharedRead(Message, reveals="that the other has read what is shared in a bucket: nothing"):
    bucket: int


async def receiver(
    me: Party,
    digests: Any,
    *,
    other: str = "sender",
    method: str = "auto",
    reveal: str = "receiver",
    limit: int = LIMIT,
    within: float | None = None,
    max_ids: int = MAX_IDS,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    """Run the receiver; return {"rows", "size", "sum", "theirs", "method"}.

    `digests`: an array, or a `StoredIds`. "rows" are the shared ones of my digests, bucket after bucket
    (there is one up to a million ids), in each sorted by digest; None with "size" and "sum". "theirs" is the
    sender's set size. `within`: seconds to wait for the sender to start. `max_ids`: ids the sender may
    declare. `checkpoint`: resume a stopped matching, if the sender has a record of it, too. Raises
    QueryRefused if the sender's policy does not allow the query.
    """
    ids = as_buckets(digests)
    check_options(method, reveal, limit)
    if checkpoint is not None and (
        resumed := await agree_to_resume(me, ids, other, checkpoint, True, _places_of_receiver, True)
    ):
        me.ledger.stamp(ASSUMES)
        return await _finish_as_receiver(
            me, ids, other, reveal, resumed.theirs, resumed.session, checkpoint, resumed
        )
    their_opening, session = await _open_as_receiver(me, ids, other, method, reveal, limit, within, max_ids)
    method_used = choose_method(method, reveal, len(ids), their_opening.count)
    result: dict[str, Any] = {"rows": None, "sum": None, "theirs": their_opening.count, "method": method_used}
    if reveal in COUNTED:
        size, total = await psi_sum.receiver(
            me, ids, other, their_opening.count, session, limit if reveal == "sum" else None
        )
        return {**result, "size": size, "sum": total}
    if method_used == "oprf":
        return await _finish_as_receiver(
            me, ids, other, reveal, their_opening.count, session, checkpoint, None
        )
    array, own_places = _in_memory(ids)
    rows, _ = await psi_dh.receiver(me, array, other, their_opening.count, session)
    ids.deal(1, b"")
    ids.add_shared(array[rows], own_places[rows])
    if reveal == "both":
        await _send_shared(me, ids, other, their_opening.count, session)
    places = ids.shared_places()
    return {**result, "rows": places, "size": len(places)}


async def _finish_as_receiver(
    me: Party,
    ids: IdBuckets,
    other: str,
    reveal: str,
    theirs: int,
    session: bytes,
    checkpoint: Checkpoint | None,
    resumed: Resumed | None,
) -> dict[str, Any]:
    """The OPRF and what follows, from the start or from a bucket on."""
    await psi_oprf.receiver(me, ids, other, theirs, session, checkpoint, resumed)
    if reveal == "both":
        if checkpoint is not None:
            await in_thread(checkpoint.keep_shown)
        await _send_shared(me, ids, other, theirs, session)
    places = ids.shared_places()
    return {"rows": places, "sum": None, "theirs": theirs, "method": "oprf", "size": len(places)}


def _places_of_receiver(mine: int, theirs: int, session: bytes) -> tuple[bytes, int]:
    layout = psi_oprf.OprfLayout(mine, theirs, session)
    return layout.key("places"), layout.buckets


def _places_of_sender(mine: int, theirs: int, session: bytes) -> tuple[bytes, int]:
    return _places_of_receiver(theirs, mine, session)


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
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    """Run the sender; return the same keys as `receiver`.

    "rows" are None unless reveal="both"; then row k here and row k at the receiver belong to the same id.
    "size" is None with reveal="receiver". `values`: with reveal="sum", a number for each digest. `policy`
    (None: the default; a mapping: its fields) is checked here. `queries` counts this query before anything is
    sent; without it, `queries_per_day` is not enforced. `checkpoint`: resume a stopped matching, if the
    receiver has a record of it, too: that is the same query.
    """
    ids = as_buckets(digests)
    check_options(method, reveal, limit)
    rules = policy_of(policy)
    if checkpoint is not None:
        checkpoint.read()
        may = rules.queries_per_day > 0 and not broken_rule(rules, reveal, checkpoint.state.get("theirs", 0))
        resumed = await agree_to_resume(me, ids, other, checkpoint, False, _places_of_sender, may)
        if resumed is not None:
            me.ledger.stamp(ASSUMES)
            return await _finish_as_sender(
                me, ids, other, reveal, resumed.theirs, resumed.session, checkpoint, resumed
            )
    their_opening, session = await _open_as_sender(
        me, ids, other, method, reveal, limit, rules, queries, within
    )
    method_used = choose_method(method, reveal, len(ids), their_opening.count)
    result: dict[str, Any] = {
        "rows": None,
        "size": None,
        "sum": None,
        "theirs": their_opening.count,
        "method": method_used,
    }
    if reveal in COUNTED:
        result["size"] = await psi_sum.sender(
            me,
            ids,
            other,
            their_opening.count,
            session,
            limit if reveal == "sum" else None,
            values,
            rules.min_overlap,
        )
        return result
    if method_used == "oprf":
        return await _finish_as_sender(me, ids, other, reveal, their_opening.count, session, checkpoint, None)
    await psi_dh.sender(me, _in_memory(ids)[0], other, their_opening.count, session)
    ids.deal(1, b"")
    if reveal == "both":
        await _receive_shared(me, ids, other, their_opening.count, session)
        places = ids.shared_places()
        result |= {"rows": places, "size": len(places)}
    return result


async def _finish_as_sender(
    me: Party,
    ids: IdBuckets,
    other: str,
    reveal: str,
    theirs: int,
    session: bytes,
    checkpoint: Checkpoint | None,
    resumed: Resumed | None,
) -> dict[str, Any]:
    await psi_oprf.sender(me, ids, other, theirs, session, checkpoint, resumed)
    result: dict[str, Any] = {"rows": None, "size": None, "sum": None, "theirs": theirs, "method": "oprf"}
    if reveal == "both":
        await _receive_shared(me, ids, other, theirs, session)
        places = ids.shared_places()
        result |= {"rows": places, "size": len(places)}
    return result


async def _send_shared(me: Party, ids: IdBuckets, other: str, theirs: int, session: bytes) -> None:
    """Send what both share, bucket by bucket, so that neither needs all of it in memory."""
    size = tag_bytes(len(ids), theirs)
    for b in range(ids.buckets):
        digests = await in_thread(ids.shared, b)
        tags = await asyncio.to_thread(shared_tags, digests, session, size)
        if b >= psi_oprf.AHEAD:
            check_position(((await me.recv(other, SharedRead)).bucket,), (b - psi_oprf.AHEAD,), "(bucket)")
        await me.send(other, SharedIds(b, tags.tobytes()))


async def _receive_shared(me: Party, ids: IdBuckets, other: str, theirs: int, session: bytes) -> None:
    size = tag_bytes(theirs, len(ids))
    for b in range(ids.buckets):
        message = await me.recv(other, SharedIds)
        check_position((message.bucket,), (b,), "(bucket)")
        digests, places = await in_thread(ids.bucket, b)
        rows = await asyncio.to_thread(match_shared, message.tags, digests, digests, session, size)
        await in_thread(ids.add_shared, digests[rows], places[rows])
        if b + psi_oprf.AHEAD < ids.buckets:
            await me.send(other, SharedRead(b))


async def receive_words(
    me: Party, digests: Any, *, other: str, width: int, within: float | None = None
) -> tuple[psi_circuit.BinWords, int]:
    """(my words by bin, the sender's set size): a match that stays shared, with `width` words of payload."""
    ids = check_digests(digests)
    opening, session = await _open_as_receiver(me, ArrayIds(ids), other, "auto", SHARES, 1 + width, within)
    return await psi_circuit.receiver(me, ids, other, opening.count, session, width), opening.count


async def send_words(
    me: Party,
    digests: Any,
    payload: Any,
    *,
    other: str,
    policy: PsiPolicy | Mapping[str, Any] | None = None,
    queries: Queries | None = None,
    within: float | None = None,
) -> tuple[psi_circuit.BinWords, int]:
    """(my words by bin, the receiver's set size); `payload`: ids × words, which enter as shares."""
    ids, words = check_digests(digests), np.ascontiguousarray(np.asarray(payload)).view(np.uint64)
    if words.ndim != 2 or len(words) != len(ids):
        raise bad("psi", "payload", words.shape, f"a row of words for each of {len(ids)} ids")
    opening, session = await _open_as_sender(
        me, ArrayIds(ids), other, "auto", SHARES, 1 + words.shape[1], policy_of(policy), queries, within
    )
    return await psi_circuit.sender(me, ids, words, other, opening.count, session), opening.count


async def _open_as_receiver(
    me: Party,
    ids: IdBuckets,
    other: str,
    method: str,
    reveal: str,
    limit: int,
    within: float | None,
    max_ids: int = MAX_IDS,
) -> tuple[Opening, bytes]:
    """Exchange the openings; return (the sender's, the session)."""
    mine = _begin(me, ids, method, reveal, limit)
    await me.send(other, mine)
    theirs: Message = await me.recv(other, Opening, RefusedQuery, within=within)
    if isinstance(theirs, RefusedQuery):
        raise refusal(theirs.rule, other)
    assert isinstance(theirs, Opening)
    _check_same(me.name, mine, other, theirs)
    if theirs.count > max_ids:
        raise ProtocolError(f"party {other!r} declares {theirs.count} ids; at most {max_ids} are allowed.")
    return theirs, _session(me, reveal, method, (me.name, mine), (other, theirs))


async def _open_as_sender(
    me: Party,
    ids: IdBuckets,
    other: str,
    method: str,
    reveal: str,
    limit: int,
    rules: PsiPolicy,
    queries: Queries | None,
    within: float | None,
) -> tuple[Opening, bytes]:
    """Exchange the openings, if the policy allows the query; return (the receiver's, the session)."""
    mine = _begin(me, ids, method, reveal, limit)
    theirs = await me.recv(other, Opening, within=within)
    if (theirs.method, theirs.reveal, theirs.limit) == (mine.method, mine.reveal, mine.limit):
        await admit(me, other, rules, queries, reveal, theirs.count)
    await me.send(other, mine)
    _check_same(me.name, mine, other, theirs)
    return theirs, _session(me, reveal, method, (other, theirs), (me.name, mine))


async def admit(
    me: Party, other: str, policy: PsiPolicy, queries: Queries | None, reveal: str, declared: int
) -> None:
    """Check a query against the policy and count it, or refuse it on both sides."""
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
    """Return what the receiver learns: the rows of `mine` that are in `theirs`, sorted by value."""
    their_ids = set(map(bytes, theirs))
    return [row for _, row in sorted((bytes(d), row) for row, d in enumerate(mine) if bytes(d) in their_ids)]


def _begin(me: Party, ids: IdBuckets, method: str, reveal: str, limit: int) -> Opening:
    me.ledger.stamp(ASSUMES)
    limit = limit if reveal in ("sum", SHARES) else 0
    return Opening(len(ids), method, reveal, limit, me.secret.bytes(NONCE))


def _check_same(name: str, mine: Opening, other: str, theirs: Opening) -> None:
    """Check that both chose the same options, and that the other's opening is valid."""
    if (theirs.method, theirs.reveal, theirs.limit) != (mine.method, mine.reveal, mine.limit):
        raise ProtocolError(
            f"party {other!r} has method={theirs.method!r}, reveal={theirs.reveal!r} and "
            f"limit={theirs.limit}; party {name!r} has method={mine.method!r}, reveal={mine.reveal!r} and "
            f"limit={mine.limit}. Use the same options at both parties; nothing was compared."
        )
    if len(theirs.nonce) != NONCE or theirs.count < 0:
        raise ProtocolError(
            f"party {other!r} declares {theirs.count} ids and a nonce of {len(theirs.nonce)} bytes; expected "
            f"at least 0 ids and {NONCE} bytes."
        )


def _session(
    me: Party, reveal: str, method: str, receiver: tuple[str, Opening], sender: tuple[str, Opening]
) -> bytes:
    chosen = choose_method(method, reveal, receiver[1].count, sender[1].count)
    sides = [x for name, opening in (receiver, sender) for x in (name, opening.count, opening.nonce)]
    return hashlib.sha256(bind("tacit psi 5", me.tag, chosen, reveal, *sides)).digest()


def shared_tags(values: np.ndarray, session: bytes, size: int) -> np.ndarray:
    """Return tags that identify ids, by values that both know, to a party that also holds them.

    Positions would do as well, but they can depend on ids that are not shared.
    """
    return compute_tags(values.tobytes(), values.shape[1], b"shared" + session, size)


def match_shared(tags: bytes, values: np.ndarray, ids: np.ndarray, session: bytes, size: int) -> np.ndarray:
    """Return my rows whose values have these tags, sorted by digest; every tag must be of one of mine."""
    if len(tags) % size:
        raise ProtocolError(f"{len(tags)} bytes are not a list of id tags; expected a multiple of {size}.")
    names = np.frombuffer(tags, np.uint8).reshape(-1, size)
    rows, places = match(shared_tags(values, session, size), names)
    if len(rows) != len(names) or len(np.unique(places)) < len(names):
        raise ProtocolError(
            f"the other party sent {len(names)} shared ids, of which we hold {len(rows)}, or one twice: it "
            "does not follow the protocol."
        )
    return sort_by_digest(ids, rows)


def choose_method(method: str, reveal: str, n: int, m: int) -> str:
    """Return the method; both parties derive it from the same values."""
    if reveal in ("sum", SHARES):
        return reveal
    if method != "auto":
        return method
    return "dh" if reveal == "size" or max(n, m) <= SMALL else "oprf"


def check_options(method: str, reveal: str, limit: int = LIMIT) -> None:
    if method not in METHODS:
        raise bad("psi", "method", method, "one of " + ", ".join(map(repr, METHODS)))
    if reveal not in REVEALS:
        raise bad("psi", "reveal", reveal, "one of " + ", ".join(map(repr, REVEALS)))
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST:
        raise bad("psi", "limit", limit, "a whole number from 1 to 2^63 − 1: the largest number in a sum")
    if method == "oprf" and reveal in ("size", "sum"):
        raise bad(
            "psi",
            "method",
            method,
            f"'dh' or 'auto' with reveal={reveal!r}",
            "The outputs of the OPRF reveal which ids are shared, not only how many.",
        )


def as_buckets(digests: Any) -> ArrayIds | StoredIds:
    return digests if isinstance(digests, StoredIds) else ArrayIds(check_digests(digests))


def _in_memory(ids: ArrayIds | StoredIds) -> tuple[np.ndarray, np.ndarray]:
    """Return (digests, places), for a method that needs all of them at once."""
    if isinstance(ids, StoredIds) and len(ids) > SMALL:
        raise bad("psi", "method", "dh", "'oprf' where more than 10,000 ids are in files")
    digests, places = zip(*ids.chunks())
    return np.concatenate(digests), np.concatenate(places)


def check_digests(digests: Any) -> np.ndarray:
    """Return the digests as an array; from another process they come as a tensor."""
    array = np.ascontiguousarray(np.asarray(digests))
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != DIGEST:
        raise bad(
            "psi",
            "digests",
            f"{array.dtype} of shape {array.shape}",
            f"uint8 of shape (ids, {DIGEST})",
            "Make them with tacit.data.identifiers.identify.",
        )
    return array
