"""A party's received messages: one FIFO queue for each scope and sender.

The transport calls `put` with the sender it knows from the connection, on the event loop's thread. Every
arrival is recorded in the ledger, read or not.

Unread messages are bounded (quota.py). A transport calls `fits` or `reserve` before it accepts a message, and
makes the sender wait if there is no room, so nothing is lost. A message that is put without asking and
exceeds the limits is dropped and recorded in the ledger; no more is accepted from that sender, and a reader
of its next message gets an error.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..errors import BadFrame
from .clock import Clock, Timer
from .codec import MAX_BYTES, kind_of
from .forms import Frame
from .ledger import Ledger
from .message import KINDS
from .quota import MailLimits, Quota

REMEMBER_CLOSED = 1024  # closed scopes to remember; late messages for older ones stay unread


class QueuedMessage(NamedTuple):
    order: int
    sender: str
    kind: str | None  # None: not a message
    frame: Frame
    is_lost: bool = False  # marks a dropped message and all later ones of its sender


class Mailbox:
    def __init__(
        self, owner: str, ledger: Ledger, max_bytes: int = MAX_BYTES, limits: MailLimits | None = None
    ):
        self.owner, self.ledger, self.max_bytes = owner, ledger, max_bytes
        self.limits = limits or MailLimits.of(max_bytes)
        self.quota = Quota(self.limits, self._blocked_on)
        self.on_room: list[Callable[[], None]] = []  # called when a held sender may have room
        self._queues: dict[str, dict[str, deque[QueuedMessage]]] = {}
        self._watches: dict[str, list[MailboxWatch]] = {}
        self._closed: dict[str, None] = {}
        self.ended = False
        self._dropped: set[str] = set()
        self._blocked_sends: list[str] = []
        self._order = itertools.count()

    def put(self, sender: str, scope: str, frame: Frame) -> None:
        """Store a frame. Never raises: errors are raised when it is read."""
        is_new = self._is_new(scope, sender)
        if sender != self.owner and not self._accepts(sender, scope, len(frame), is_new):
            self._drop(sender, len(frame))
            return
        self._store(sender, scope, frame, is_new, self.ended or self.closed(scope))

    def offer(self, sender: str, scope: str, frame: Frame) -> bool:
        """Store a frame, as `put`; return False, and leave it, if there is no room (`on_room`)."""
        is_new = self._is_new(scope, sender)
        is_over = self.ended or self.closed(scope)  # then it is recorded and dropped
        is_asked = not is_over and sender != self.owner
        if is_asked and not self.quota.fits(sender, len(scope) + len(frame), is_new):
            return False
        self._store(sender, scope, frame, is_new, is_over)
        return True

    def _store(self, sender: str, scope: str, frame: Frame, is_new: bool, is_over: bool) -> None:
        kind: str | None = None
        try:  # noqa: SIM105  # suppress takes longer than kind_of
            kind = kind_of(frame, self.max_bytes)
        except BadFrame:
            pass  # it is raised when the frame is read
        known = KINDS.get(kind) if kind is not None else None
        if known is not None:
            self.ledger.see(self.owner, sender, known, len(frame))
        else:
            self.ledger.record(
                self.owner, sender, "(unreadable)", "bytes that are no message known here", bytes=len(frame)
            )
        if is_over:
            self.cancel(sender)
            return
        used = self.quota.add(sender, len(scope) + len(frame), 1, is_new)
        if used.reserved is not None:
            self.cancel(sender)
        letter = QueuedMessage(next(self._order), sender, kind, frame)
        if is_new:
            self._queues.setdefault(scope, {})[sender] = deque((letter,))
        else:
            self._queues[scope][sender].append(letter)
        watches = self._watches.get(scope)
        if watches is not None:
            for watch in watches:
                watch.notify(sender)

    def pop(self, scope: str, sender: str) -> QueuedMessage | None:
        """Return the oldest message of this sender, if there is one."""
        queues = self._queues.get(scope)
        if queues is None or sender not in queues:
            return (
                QueuedMessage(next(self._order), sender, None, b"", is_lost=True)
                if sender in self._dropped
                else None
            )
        letter = queues[sender].popleft()
        is_last = not queues[sender]
        if is_last:  # empty queues are removed: there is one for each round
            del queues[sender]
            if not queues:
                del self._queues[scope]
        self.quota.add(sender, -len(scope) - len(letter.frame), -1, -is_last)
        if self.quota.held:
            self.ease()
        return letter

    def count(self, scope: str, sender: str) -> int:
        """Return how many unread messages there are."""
        return len(self._queues.get(scope, {}).get(sender, ()))

    # --- limits ---------------------------------------------------------------------------------------------

    def fits(self, sender: str, scope: str, size: int) -> bool:
        """Return whether a message of `size` bytes is accepted now; if not, `on_room` is called later."""
        if self.ended or (self._closed and self.closed(scope)):
            return True  # it will be dropped
        return self.has_room(sender, scope, size)

    def has_room(self, sender: str, scope: str, size: int) -> bool:
        """Return whether `reserve` would accept it; a message in pieces takes memory until complete."""
        return self.quota.fits(sender, _size(scope, size), self._is_new(scope, sender))

    def reserve(self, sender: str, scope: str, size: int) -> bool:
        """Reserve room for a message in pieces, until the sender's next `put` or `cancel`.

        Returns False if there is no room.
        """
        self.cancel(sender)
        if not self.has_room(sender, scope, size):
            return False
        self.quota.add(sender, _size(scope, size), 1, 0)
        self.quota.senders[sender].reserved = (scope, size)
        return True

    def cancel(self, sender: str) -> None:
        """Release what `reserve` kept for this sender."""
        used = self.quota.senders.get(sender)
        if used is not None and used.reserved is not None:
            (scope, size), used.reserved = used.reserved, None
            self.quota.add(sender, -_size(scope, size), -1, 0)
            self.ease()

    def ease(self) -> None:
        """Notify refused senders that there may be room."""
        if self.quota.held:
            for each in list(self.on_room):
                each()

    @contextmanager
    def blocked_send(self, wants: str) -> Iterator[None]:
        """Mark that the owner waits for room at another party; `waiting` shows the text."""
        self._blocked_sends.append(wants)
        try:
            yield
        finally:
            self._blocked_sends.remove(wants)

    def why_dropped(self, sender: str) -> str:
        limits = self.limits
        return (
            f"{sender!r} sent more than the mailbox of {self.owner!r} holds unread ({limits.sender_letters} "
            f"messages, {limits.sender_scopes} scopes, "
            f"{limits.sender_bytes} bytes per sender), and a message was dropped. The transport must call "
            "`fits` before it delivers."
        )

    def _drop(self, sender: str, size: int) -> None:
        self.ledger.record(
            self.owner, sender, "(dropped)", "bytes beyond the mailbox's limits, dropped unread", bytes=size
        )
        self.cancel(sender)
        if sender not in self._dropped:
            self._dropped.add(sender)
            self.quota.held.discard(sender)
            for watches in self._watches.values():
                for watch in watches:
                    watch.notify(sender)

    def _accepts(self, sender: str, scope: str, size: int, is_new: bool) -> bool:
        if self._dropped and sender in self._dropped:
            return False
        used = self.quota.senders.get(sender)
        if used is not None and used.reserved == (scope, size):
            return True
        return self.quota.fits(sender, _size(scope, size), is_new) or self.fits(sender, scope, size)

    def _is_new(self, scope: str, sender: str) -> bool:
        return sender not in self._queues.get(scope, ())

    def _blocked_on(self, sender: str) -> bool:
        return any(
            watch.blocked and (watch.senders is None or sender in watch.senders)
            for watches in self._watches.values()
            for watch in watches
        )

    # --- waiting --------------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """Describe what the owner's program is blocked on, for example 'Pong from b'."""
        return [
            watch.wants() for watches in self._watches.values() for watch in watches if watch.blocked
        ] + self._blocked_sends

    def awaited(self, endless: bool = True, background: bool = True) -> dict[str, str]:
        """Return {sender: description} of messages the owner waits for.

        `endless`: only those without a deadline. `background`: also those that need not come.
        """
        return {
            sender: wants
            for watches in self._watches.values()
            for watch in watches
            if watch.senders and watch.blocked and (watch.endless or not endless)
            if background or not watch.is_background
            for wants in (watch.wants(),)  # once for all senders, of which there may be thousands
            for sender in watch.senders
        }

    def close(self, scope: str) -> None:
        """Remove the scope and its inner scopes; later messages are recorded in the ledger and dropped."""
        for tag in [t for t in self._queues if t == scope or t.startswith(scope + "/")]:
            for sender, letters in self._queues.pop(tag).items():
                size = sum(_size(tag, len(letter.frame)) for letter in letters)
                self.quota.add(sender, -size, -len(letters), -1)
        self._closed[scope] = None
        while len(self._closed) > REMEMBER_CLOSED:
            del self._closed[next(iter(self._closed))]
        self.ease()

    def end(self) -> None:
        """Mark that the owner's program ended; later messages are recorded in the ledger and dropped."""
        self.ended = True
        self._queues.clear()
        self.quota.forget()
        self.ease()
        self.quota.held.clear()

    def closed(self, scope: str) -> bool:
        if "/" not in scope:
            return scope in self._closed
        parts = scope.split("/")
        return any("/".join(parts[:n]) in self._closed for n in range(1, len(parts) + 1))


class MailboxWatch:
    """Waits for messages of some senders (None: all) in a scope, until a deadline.

    `senders` may shrink meanwhile.
    """

    def __init__(self, box: Mailbox, scope: str, senders: Collection[str] | None, wants: Callable[[], str]):
        self.box, self.scope, self.senders, self.wants = box, scope, senders, wants
        queues = box._queues.get(scope)
        self.news: deque[str] = deque()
        if queues:
            there = [s for s in queues if senders is None or s in senders]
            self.news.extend(sorted(there, key=lambda s: queues[s][0].order))
        if box._dropped and senders is not None:
            self.news.extend(s for s in senders if s in box._dropped)
        self.expired = False
        self.is_background = False  # the program goes on, whether such a message comes or not
        self._wakeup: asyncio.Future[None] | None = None
        self._timer: Timer | None = None

    @property
    def blocked(self) -> bool:
        return self._wakeup is not None and not self._wakeup.done()

    @property
    def endless(self) -> bool:
        return self._timer is None

    def deadline(self, clock: Clock, within: float | None) -> MailboxWatch:
        return self.until(clock, None if within is None else clock.now() + within)

    def until(self, clock: Clock, when: float | None) -> MailboxWatch:
        if when is not None:
            self._timer = clock.at(when, self._expire)
        return self

    def __enter__(self) -> MailboxWatch:
        self.box._watches.setdefault(self.scope, []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        watches = self.box._watches[self.scope]
        watches.remove(self)
        if not watches:
            del self.box._watches[self.scope]
        if self._timer is not None:
            self._timer.cancel()

    def notify(self, sender: str) -> None:
        if self.senders is None or sender in self.senders:
            self.news.append(sender)
            self._wake()

    def _expire(self) -> None:
        self.expired = True
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def next(self) -> QueuedMessage | None:
        """Return the next message, or None after the deadline.

        Another task of this party may take a message first; then this one continues to wait.
        """
        while True:
            while self.news:
                sender = self.news.popleft()
                if self.senders is not None and sender not in self.senders:
                    continue  # a gather already has a message of this sender
                letter = self.box.pop(self.scope, sender)
                if letter is not None:
                    return letter
            if self.expired:
                return None
            self._wakeup = asyncio.get_running_loop().create_future()
            self.box.ease()  # a held sender may have room now that the program waits for it
            try:
                await self._wakeup
            finally:
                self._wakeup = None


def _size(scope: str, size: int) -> int:
    """Return the size a message counts for, which includes the name of its scope."""
    return size + len(scope)
