"""What the hub reads: from whom, to whom, and how much. The rest it carries.

    envelope = kind, 1 byte | length of sender's name, 1 byte | length of receiver's | both names | payload

The sender writes its own name, and the hub holds it to the certificate of the connection: so it can pass the
bytes on as they are.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import BadFrame

MAIL, ABSENT, PRESENT, WELCOME = range(
    4
)  # ABSENT and PRESENT: the hub says whether the party named as sender is connected
CHUNK = (
    1 << 19
)  # plaintext bytes a record carries at most: each costs all three processes some Python, whatever its size
SMALL_CHUNK = 1 << 18  # of a message of few records: so that parties and hub work on it at once
FEW = 8  # records of CHUNK; up to this a message is cut into small ones
MAX_ENVELOPE = CHUNK + 4096  # names, record header, certificate and tag included
METHOD = "/tacit.Hub/Relay"
CHECK = "/tacit.Hub/Check"
VERSION = "tacit-version"  # in a connection's metadata: what its party runs
LONGEST_NAME = 255
LONGEST_SCOPE = 1024  # bytes: as parties.quota.MAX_SCOPE, of which a channel knows nothing


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
    if len(data) < 3 or data[0] > WELCOME:
        raise BadFrame("these bytes are no envelope.")
    a, b = 3 + data[1], 3 + data[1] + data[2]
    if b > len(data):
        raise BadFrame("an envelope's names are longer than the envelope.")
    try:
        return Envelope(data[0], data[3:a].decode(), data[a:b].decode(), memoryview(data)[b:])
    except UnicodeDecodeError:
        raise BadFrame("an envelope's names are no UTF-8.") from None
