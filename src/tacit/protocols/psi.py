"""Private set intersection between two: agree on the terms, then run the method they come to.

    receiver                                            sender
      |--- Opening(count, method, reveal, nonce) ---------->|   refused unless both want the same
      |<-- Opening(count, method, reveal, nonce) -----------|
      |   … `psi_dh`, `psi_oprf` or `psi_sum` …             |   bound to a session made of both nonces, sizes and names
      |--- SharedIds(h'(id) of the shared) ---------------->|   with reveal="both" only

Each learns the other's set size; what else, the method's own page says. method="auto" takes Diffie-Hellman (`psi_dh`) up to 10,000 ids, where it sends
the fewest bytes, and always for reveal="size"; above, the OT-based OPRF (`psi_oprf`), which computes thirty times less (`benchmarks/psi.py`).
reveal="sum" runs `psi_sum`: the sum of the sender's numbers over the shared ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..crypto.agree import bind
from ..crypto.tags import by_value, match, tag_bytes, tagged
from ..errors import ProtocolError
from ..parameters import bad
from ..parties.message import Message
from ..parties.party import Party
from . import psi_dh, psi_oprf, psi_sum

METHODS = ("auto", "dh", "oprf")
REVEALS = ("receiver", "both", "size", "sum")
LIMIT = 2**32 - 1  # the largest number in a sum, unless told otherwise
SMALL = 10_000  # ids on the larger side up to which Diffie-Hellman is taken
NONCE = 16
DIGEST = 16  # bytes of an id: a block of AES, which the OPRF and the stores of `psi_many` put them through
ASSUMES = ("SEMI-HONEST: the sets are hidden as the lines below say if both parties follow their programs; one that deviates can claim ids it does not hold, "
           "or spoil the result unnoticed.")


class Opening(Message, reveals="how many ids the other holds (without duplicates), and how it wants to compare: method, and who learns the result"):
    count: int
    method: str
    reveal: str
    limit: int  # of the numbers in a sum; 0 where there is none
    nonce: bytes


class SharedIds(Message, reveals="which of your own ids the other holds, too"):
    tags: bytes


async def receiver(me: Party, digests: Any, *, other: str = "sender", method: str = "auto", reveal: str = "receiver",
                   limit: int = LIMIT, within: float | None = None) -> dict[str, Any]:
    """{"rows": those of my digests that are shared, in the order of their values (None with "size" and "sum"), "size", "sum", "theirs", "method"}.
    `within`: seconds to wait for the other to begin."""
    held = ready(digests)
    chosen, count, session = await _agree(me, held, other, method, reveal, limit, within, receives=True)
    if chosen == "sum":
        size, total = await psi_sum.receiver(me, held, other, count, session, limit)
        return {"rows": None, "size": size, "sum": total, "theirs": count, "method": chosen}
    rows, size = await PROGRAMS[chosen].receiver(me, held, other, count, session, reveal)
    if reveal == "both":
        await me.send(other, SharedIds(_named(held[rows], session, tag_bytes(len(held), count)).tobytes()))
    return {"rows": rows, "size": size, "sum": None, "theirs": count, "method": chosen}


async def sender(me: Party, digests: Any, *, other: str = "receiver", method: str = "auto", reveal: str = "receiver", limit: int = LIMIT,
                 values: Sequence[int] = (), within: float | None = None) -> dict[str, Any]:
    """The same; "rows" and "size" are None unless reveal="both". Then row k here and row k at the receiver are the same person.
    `values`: with reveal="sum" a number for each digest."""
    held = ready(digests)
    chosen, count, session = await _agree(me, held, other, method, reveal, limit, within, receives=False)
    rows = size = None
    if chosen == "sum":
        await psi_sum.sender(me, held, other, count, session, limit, values)
    else:
        await PROGRAMS[chosen].sender(me, held, other, count, session, reveal)
    if reveal == "both":
        rows = _found((await me.recv(other, SharedIds)).tags, held, session, tag_bytes(count, len(held)))
        size = len(rows)
    return {"rows": rows, "size": size, "sum": None, "theirs": count, "method": chosen}


def ideal(mine: Sequence[bytes], theirs: Sequence[bytes]) -> list[int]:
    """What the receiver gets: the rows of mine that theirs has, in the order of their values."""
    there = set(map(bytes, theirs))
    return [row for _, row in sorted((bytes(d), row) for row, d in enumerate(mine) if bytes(d) in there)]


async def _agree(me: Party, held: np.ndarray, other: str, method: str, reveal: str, limit: int, within: float | None,
                 receives: bool) -> tuple[str, int, bytes]:
    """(the method both come to, how many ids the other holds, the session)."""
    allow(method, reveal, limit)
    me.ledger.stamp(ASSUMES)
    nonce, top = me.secret.bytes(NONCE), limit if reveal == "sum" else 0
    await me.send(other, Opening(len(held), method, reveal, top, nonce))
    told = await me.recv(other, Opening, within=within)
    if (told.method, told.reveal, told.limit) != (method, reveal, top):
        raise ProtocolError(f"party {other!r} wants method={told.method!r}, reveal={told.reveal!r} and limit={told.limit}, party {me.name!r} "
                            f"method={method!r}, reveal={reveal!r} and limit={top}. Agree before you start; nothing was compared.")
    if len(told.nonce) != NONCE or told.count < 0:
        raise ProtocolError(f"party {other!r} opens with {told.count} ids and a nonce of {len(told.nonce)} bytes; it must be at least 0 and {NONCE}.")
    chosen = choose(method, reveal, len(held), told.count)
    sides = [(me.name, len(held), nonce), (other, told.count, told.nonce)]
    session = hashlib.sha256(bind("tacit psi 1", me.tag, chosen, reveal, *(x for side in (sides if receives else sides[::-1]) for x in side))).digest()
    return chosen, told.count, session


def _named(digests: np.ndarray, session: bytes, size: int) -> np.ndarray:
    """Ids for one who holds them, too. A place in what was compared would do as well, but it can depend on ids that are not shared."""
    return tagged(digests.tobytes(), digests.shape[1], b"shared" + session, size)


def _found(tags: bytes, held: np.ndarray, session: bytes, size: int) -> np.ndarray:
    """My rows of these, in the order of their digests."""
    if len(tags) % size:
        raise ProtocolError(f"{len(tags)} bytes name no list of ids; they must be a multiple of {size}.")
    said = np.frombuffer(tags, np.uint8).reshape(-1, size)
    rows, places = match(_named(held, session, size), said)
    if len(rows) != len(said) or len(np.unique(places)) < len(said):
        raise ProtocolError(f"the other says that {len(said)} ids are shared, of which we hold {len(rows)}, or names one twice: it does not follow the "
                            "protocol.")
    return by_value(held, rows)


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
        raise bad("psi", "method", method, f"'dh' or 'auto' with reveal={reveal!r}", "Outputs of the OPRF say which ids are shared, not only how many.")


def ready(digests: Any) -> np.ndarray:
    """The digests as a party's program is given them: an array or, from another process, a tensor."""
    held = np.ascontiguousarray(np.asarray(digests))
    if held.dtype != np.uint8 or held.ndim != 2 or held.shape[1] != DIGEST:
        raise bad("psi", "digests", f"{held.dtype} of shape {held.shape}", f"uint8 of shape (ids, {DIGEST})", "tacit.data.identifiers.identify makes them.")
    return held
