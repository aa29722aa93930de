"""Envelopes: the part of the traffic that the hub reads (sender, receiver, size).

    envelope = kind, 1 byte | length of sender's name, 1 byte | length of receiver's | both names | payload

The sender writes its own name, and the hub checks it against the certificate of the connection, so it can
forward the bytes unchanged.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import BadFrame

# ABSENT and PRESENT: whether the party named as sender is connected. FAILED: a party tells the hub that it
# stops with an error, and the hub confirms it
MAIL, ABSENT, PRESENT, WELCOME, FAILED = range(5)
CHUNK = 1 << 19  # the most plaintext bytes in a record: each record has a fixed cost in all three processes
SMALL_CHUNK = 1 << 18  # for messages of few records, so that parties and hub process them concurrently
FEW = 8  # up to this many records of CHUNK, a message is sent in small ones
MAX_ENVELOPE = CHUNK + 4096  # including names, record header, certificate and tag
METHOD = "/tacit.Hub/Relay"
CHECK = "/tacit.Hub/Check"
VERSION = "tacit-version"  # in a connection's metadata: the party's version of tacit
LONGEST_SCOPE = 1024  # bytes: equal to parties.quota.MAX_SCOPE, which this module does not import


class Envelope(NamedTuple):
    kind: int
    sender: str
    to: str
    payload: memoryview


def pack(kind: int, sender: str, to: str, payload: bytes = b"") -> bytes:
    a, b = sender.encode(), to.encode()
    return b"".join((bytes((kind, len(a), len(b))), a, b, payload))


def unpack(data: bytes) -> Envelope:
    if len(data) > MAX_ENVELOPE:
        raise BadFrame(f"an envelope of {len(data)} bytes, more than the {MAX_ENVELOPE} allowed.")
    if len(data) < 3 or data[0] > FAILED:
        raise BadFrame("not an envelope.")
    a, b = 3 + data[1], 3 + data[1] + data[2]
    if b > len(data):
        raise BadFrame("an envelope's names are longer than the envelope.")
    try:
        return Envelope(data[0], data[3:a].decode(), data[a:b].decode(), memoryview(data)[b:])
    except UnicodeDecodeError:
        raise BadFrame("an envelope's names are not UTF-8.") from None
