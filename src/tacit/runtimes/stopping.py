"""What a party tells the other parties of a run when it stops with an error: one of a few fixed reasons.

The error's own text may quote rows, values and file names, so it stays with the party. The receiver prints
its own text for the reason, never a text that it received.
"""

from __future__ import annotations

import asyncio

from .. import errors
from ..errors import BadFrame, PartyStopped
from ..parties.codec import decode, encode
from ..parties.forms import Frame
from ..parties.message import Message

STOPPED = "/stopped"  # the scope of RunStopped; no program can read it, as `Party.scope` allows no "/"
MAX_BYTES = 256  # of a RunStopped message; it is accepted even if the mailbox is full

OTHER = "of an error there"
REASONS = {
    "data": "its data do not fit the job",
    "files": "a file that it needs is missing or cannot be read",
    "job": "its job file or its options were refused there",
    "policy": "its owner's policy, budget or agreement does not allow it",
    "protocol": "of a message, or a missing message, of a party",
    "operator": "its operator ended it",
    "error": OTHER,
}
KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.BadData, "data"),
    (errors.MissingFiles, "files"),
    (errors.QueryRefused, "policy"),
    (errors.BudgetSpent, "policy"),
    (errors.ProtocolError, "protocol"),
    (errors.PartyFailed, "protocol"),
    (errors.TacitError, "job"),
    (OSError, "files"),
    (KeyboardInterrupt, "operator"),
    (asyncio.CancelledError, "operator"),
)


class RunStopped(
    Message, reveals="that the sender stopped with an error, and its kind (such as data or job), not its text"
):
    reason: str


def to_frame(error: BaseException) -> bytes:
    """Return the message that says why a party stopped."""
    return bytes(encode(RunStopped(reason_of(error)), MAX_BYTES))


def to_reason(payload: bytes) -> str:
    """Return the kind of an error that a party told the hub; "error" if it is none of the known ones."""
    text = payload.decode("ascii", "replace")
    return text if text in REASONS else "error"


def reason_of(error: BaseException) -> str:
    """Return the kind of an error."""
    return next((reason for kind, reason in KINDS if isinstance(error, kind)), "error")


def describe_earlier(party: str, reason: str, seconds: float) -> str:
    """Say that a party stopped before this one connected, by the hub's word."""
    return (
        f"party {party!r} stopped with an error {max(0.0, seconds):.0f} s ago, because "
        f"{REASONS.get(reason, OTHER)} (by the hub's word; its own output says more)"
    )


def to_error(party: str, frame: Frame) -> PartyStopped:
    """Return the error of a party that was told; an unreadable message tells no more than that it stopped."""
    try:
        message = decode(frame, (RunStopped,), MAX_BYTES)
        reason = message.reason if isinstance(message, RunStopped) else "error"
    except BadFrame:
        reason = "error"
    return PartyStopped(
        f"party {party!r} stopped, because {REASONS.get(reason, OTHER)}. Only its own output says more. "
        "Start again at all parties when it is solved."
    )
