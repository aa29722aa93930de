"""Limits on unread messages of a party, per sender and in total.

A sender that reaches a limit is held back: its next message is accepted when the program has read enough.
`held` lists these senders. The rules for a message of `size` bytes:

1. The sender's unread messages stay within the `sender_*` limits. Each limit allows at least one message of
   maximal size, so an empty queue always has room for one.
2. The unread messages of all senders stay within the `total_*` limits. A sender below its floor is exempt, so
   that
   no sender can use up another's room. So is a sender the program waits for, as long as its own messages are
   at most one of maximal size: the program would otherwise wait forever.
3. A sender that is held back gets room again at half of its limits (at once if the program waits for it), not
   one
   message at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..parameters import bad

SMALL = 16 << 20  # unread bytes every sender may have, however small max_bytes is
FLOOR_LETTERS = 64  # unread messages every sender may have, however many the others have
MAX_SCOPE = 1024  # bytes of a scope's name: a few nested tags that contain party names


@dataclass(frozen=True)
class MailLimits:
    """Limits of one mailbox. Bytes include the names of scopes."""

    max_bytes: int  # the largest message
    sender_bytes: int
    total_bytes: int
    sender_letters: int = 16_384  # about 1 kB of Python objects each
    total_letters: int = 262_144  # 1,000 parties with 262 messages each
    sender_scopes: int = 4_096  # about 2 kB of Python objects each
    floor_bytes: int = SMALL
    floor_letters: int = FLOOR_LETTERS

    def __post_init__(self) -> None:
        if self.sender_bytes < self.max_bytes + MAX_SCOPE:
            raise bad(
                "MailLimits",
                "sender_bytes",
                self.sender_bytes,
                f"at least max_bytes + {MAX_SCOPE}, so that the largest message fits",
            )
        if min(self.sender_letters, self.sender_scopes) < 1:
            raise bad(
                "MailLimits",
                "sender_letters and sender_scopes",
                (self.sender_letters, self.sender_scopes),
                "at least 1",
            )

    @classmethod
    def of(cls, max_bytes: int) -> MailLimits:
        """Return default limits: two messages of maximal size per sender, sixteen in total."""
        sender = max(2 * max_bytes, SMALL) + MAX_SCOPE
        return cls(max_bytes, sender, 8 * sender)


class Usage:
    """The unread messages of one sender."""

    __slots__ = ("bytes", "letters", "reserved", "scopes")

    def __init__(self) -> None:
        self.bytes = self.letters = self.scopes = 0
        self.reserved: tuple[str, int] | None = None  # (scope, size) of the message that is arriving


class Quota:
    """Counts unread messages; `awaited(sender)` returns whether the program waits for this sender."""

    def __init__(self, limits: MailLimits, awaited: Callable[[str], bool]):
        self.limits, self.awaited = limits, awaited
        self.senders: dict[str, Usage] = {}
        self.held: set[str] = set()
        self.bytes = self.letters = 0

    def fits(self, sender: str, size: int, new_scope: bool) -> bool:
        """Return whether one more message of `size` bytes is accepted; if not, the sender is held."""
        limits, used = self.limits, self.senders.get(sender) or self._of(sender)
        bytes, letters, scopes = used.bytes + size, used.letters + 1, used.scopes + new_scope
        good = (
            bytes <= limits.sender_bytes
            and letters <= limits.sender_letters
            and scopes <= limits.sender_scopes
        )
        if good and (self.bytes + size > limits.total_bytes or self.letters >= limits.total_letters):
            is_small = bytes <= limits.floor_bytes and letters <= limits.floor_letters
            good = is_small or (bytes <= limits.max_bytes + MAX_SCOPE and self.awaited(sender))
        if good and sender in self.held:
            is_low = (
                2 * used.bytes <= limits.sender_bytes
                and 2 * used.letters <= limits.sender_letters
                and 2 * used.scopes <= limits.sender_scopes
            )
            good = is_low or self.awaited(sender)
        if not good:
            self.held.add(sender)
        elif self.held:
            self.held.discard(sender)
        return good

    def _of(self, sender: str) -> Usage:
        """Return a sender's usage; there are at most as many senders as certificates."""
        used = self.senders.get(sender)
        if used is None:
            used = self.senders[sender] = Usage()
        return used

    def forget(self) -> None:
        """Reset all counts."""
        self.senders.clear()
        self.bytes = self.letters = 0

    def add(self, sender: str, size: int, letters: int, scopes: int) -> Usage:
        """Count further unread messages; negative numbers: messages that were read or dropped."""
        used = self.senders.get(sender) or self._of(sender)
        used.bytes += size
        used.letters += letters
        used.scopes += scopes
        self.bytes += size
        self.letters += letters
        return used
