"""Private set intersection between two: agree on the terms, then run the method they come to.

    receiver                                            sender
      |--- Opening(count, method, reveal, nonce) ---------->|   refused unless both want the same
      |<-- Opening(count, method, reveal, nonce) -----------|
      |   … `psi_dh` …                                      |   bound to a session made of both nonces, sizes and names

Each learns the other's set size; what else, the method's own page says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..crypto.agree import bind
from ..errors import ProtocolError
from ..parameters import bad
from ..parties.message import Message
from ..parties.party import Party
from . import psi_dh, psi_oprf

METHODS = ("auto", "dh", "oprf")
REVEALS = ("receiver", "both", "size")
SMALL = 10_000  # ids on the larger side up to which Diffie-Hellman is taken
NONCE = 16
ASSUMES = ("SEMI-HONEST: the sets are hidden as the lines below say if both parties follow their programs; one that deviates can claim ids it does not hold, "
           "or spoil the result unnoticed.")


class Opening(Message, reveals="how many ids the other holds (without duplicates), and how it wants to compare: method, and who learns the result"):
    count: int
    method: str
    reveal: str
    nonce: bytes


async def receiver(me: Party, digests: Any, *, other: str = "sender", method: str = "auto", reveal: str = "receiver") -> dict[str, Any]:
    """{"rows": those of my digests that are shared, in the order of their values (None with reveal="size"), "size", "theirs", "method"}."""
    return await _party(me, digests, other, method, reveal, receives=True)


async def sender(me: Party, digests: Any, *, other: str = "receiver", method: str = "auto", reveal: str = "receiver") -> dict[str, Any]:
    """The same; "rows" and "size" are None unless reveal="both". Then row k here and row k at the receiver are the same person."""
    return await _party(me, digests, other, method, reveal, receives=False)


def ideal(mine: Sequence[bytes], theirs: Sequence[bytes]) -> list[int]:
    """What the receiver gets: the rows of mine that theirs has, in the order of their values."""
    there = set(map(bytes, theirs))
    return [row for _, row in sorted((bytes(d), row) for row, d in enumerate(mine) if bytes(d) in there)]


async def _party(me: Party, digests: Any, other: str, method: str, reveal: str, receives: bool) -> dict[str, Any]:
    held = ready(digests)
    allow(method, reveal)
    me.ledger.stamp(ASSUMES)
    nonce = me.secret.bytes(NONCE)
    await me.send(other, Opening(len(held), method, reveal, nonce))
    told = await me.recv(other, Opening)
    if (told.method, told.reveal) != (method, reveal):
        raise ProtocolError(f"party {other!r} wants method={told.method!r} and reveal={told.reveal!r}, party {me.name!r} method={method!r} and "
                            f"reveal={reveal!r}. Agree on both before you start; nothing was compared.")
    if len(told.nonce) != NONCE or told.count < 0:
        raise ProtocolError(f"party {other!r} opens with {told.count} ids and a nonce of {len(told.nonce)} bytes; it must be at least 0 and {NONCE}.")
    chosen = choose(method, reveal, len(held), told.count)
    sides = [(me.name, len(held), nonce), (other, told.count, told.nonce)]
    session = hashlib.sha256(bind("tacit psi 1", me.tag, chosen, reveal, *(x for side in (sides if receives else sides[::-1]) for x in side))).digest()
    run = getattr(PROGRAMS[chosen], "receiver" if receives else "sender")
    rows, size = await run(me, held, other, told.count, session, reveal)
    return {"rows": rows, "size": size, "theirs": told.count, "method": chosen}


PROGRAMS: dict[str, Any] = {"dh": psi_dh, "oprf": psi_oprf}


def choose(method: str, reveal: str, n: int, m: int) -> str:
    """Both come to the same from what both know."""
    if method != "auto":
        return method
    return "dh" if reveal == "size" or max(n, m) <= SMALL else "oprf"


def allow(method: str, reveal: str) -> None:
    if method not in METHODS:
        raise bad("psi", "method", method, "one of " + ", ".join(map(repr, METHODS)))
    if reveal not in REVEALS:
        raise bad("psi", "reveal", reveal, "one of " + ", ".join(map(repr, REVEALS)))
    if method == "oprf" and reveal == "size":
        raise bad("psi", "method", method, "'dh' or 'auto' with reveal='size'", "Outputs of the OPRF say which ids are shared, not only how many.")


def ready(digests: Any) -> np.ndarray:
    """The digests as a party's program is given them: an array or, from another process, a tensor."""
    held = np.ascontiguousarray(np.asarray(digests))
    if held.dtype != np.uint8 or held.ndim != 2:
        raise bad("psi", "digests", f"{held.dtype} of shape {held.shape}", "uint8 of shape (ids, bytes)", "tacit.data.identifiers.identify makes them.")
    return held
