"""Agrawal's set intersection, for teaching only. Agrawal, Evfimievski, Srikant: Information Sharing Across
Private Databases, SIGMOD 2003, section 3.3 (the intersection protocol).

    receiver (V_R, e_R)                                       sender (V_S, e_S)
      |--- Encrypted(Y_R = h(v)^e_R), sorted ------------------->|   3
      |<-- Encrypted(Y_S = h(v)^e_S), sorted --------------------|   4a
      |<-- Reencrypted(pairs y, y^e_S) --------------------------|   4b
      |  Z_S = Y_S^e_R; v is shared if its (h(v)^e_R)^e_S is in it   5, 6

It works because modular powers commute: (x^e_R)^e_S = (x^e_S)^e_R. The numbers are those of a published
example: p has 63 bits, and a hash is the last 64 bits of SHA-1. THE GROUP PROTECTS NOTHING: discrete
logarithms modulo such a p take seconds (tests/security/test_agrawal.py finds the keys of the example), and
with a key every guess of an id can be checked. With an odd exponent, a power also reveals whether a hash is a
square, without any key. So it runs only with `teaching=True`. `psi_dh` is the same idea in a secure group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ..errors import BadParameter, ProtocolError
from ..parties.message import Message
from ..parties.party import Party

P = 9223372036854771239  # the example's prime; (P − 1)/2 is prime, too
REFUSAL = (
    "method='agrawal' is for teaching: its group has 63 bits, so anyone who reads the messages finds the "
    "keys "
    "in seconds, and then every id. Use method='auto' for real data, or pass teaching=True for made-up ids."
)
STAMP = (
    "NOT PRIVATE: Agrawal's protocol ran in a group of 63 bits, for teaching; its messages hide nothing "
    "from anyone who tries."
)


class Encrypted(Message, reveals="the other's ids: its group is too small to hide them"):
    numbers: list[int]


class Reencrypted(Message, reveals="your own ids under both keys: which of them are shared"):
    pairs: list[tuple[int, int]]


def hash_id(value: str) -> int:
    """h: the last 64 bits of SHA-1."""
    return int.from_bytes(hashlib.sha1(value.encode()).digest()[-8:], "big")


def encrypt(numbers: Sequence[int], e: int) -> list[int]:
    """f_e(x) = x^e mod p."""
    return [pow(x, e, P) for x in numbers]


def exponent(me: Party) -> int:
    """Draw an odd exponent, which can be inverted."""
    return int.from_bytes(me.secret.bytes(8), "big") % ((P - 1) // 2) | 1


async def receiver(
    me: Party, values: Sequence[str], *, other: str = "sender", teaching: bool = False, e: int | None = None
) -> list[str]:
    """Return the shared values, in the order of `values`."""
    e = _begin(me, teaching, e)
    y = encrypt([hash_id(v) for v in values], e)  # lines 1 and 2
    await me.send(other, Encrypted(sorted(y)))  # line 3
    z = set(encrypt((await me.recv(other, Encrypted)).numbers, e))  # line 5
    both = dict((await me.recv(other, Reencrypted)).pairs)  # y → y^e_S
    missing = [v for v, one in zip(values, y) if one not in both]
    if missing:
        raise ProtocolError(f"party {other!r} did not answer for {len(missing)} of our {len(values)} values.")
    return [v for v, one in zip(values, y) if both[one] in z]  # line 6


async def sender(
    me: Party, values: Sequence[str], *, other: str = "receiver", teaching: bool = False, e: int | None = None
) -> None:
    e = _begin(me, teaching, e)
    theirs = (await me.recv(other, Encrypted)).numbers
    await me.send(other, Encrypted(sorted(encrypt([hash_id(v) for v in values], e))))  # line 4a
    await me.send(other, Reencrypted(list(zip(theirs, encrypt(theirs, e)))))  # line 4b


def ideal(mine: Sequence[str], theirs: Sequence[str]) -> list[str]:
    return [v for v in mine if v in set(theirs)]


def _begin(me: Party, teaching: bool, e: int | None) -> int:
    if teaching is not True:
        raise BadParameter(REFUSAL)
    me.ledger.stamp(STAMP)
    return exponent(me) if e is None else e
