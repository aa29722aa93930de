"""Where a party's mail waits until its program asks for it: one first-in-first-out queue for each scope and sender.

The transport calls `put` with the sender it knows from the connection, on the event loop's thread. What has arrived is in the ledger,
read or not.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from ..errors import BadFrame
from .clock import Clock, Timer
from .codec import MAX_BYTES, kind_of
from .forms import Frame
from .ledger import Ledger
from .message import KINDS

REMEMBER_CLOSED = 1024  # scopes; late mail for one closed longer ago than this waits unread


class Letter(NamedTuple):
    order: int
    sender: str
    kind: str | None  # None: the bytes are no message
    frame: Frame


class Mailbox:
    def __init__(self, owner: str, ledger: Ledger, max_bytes: int = MAX_BYTES):
        self.owner, self.ledger, self.max_bytes = owner, ledger, max_bytes
        self._queues: dict[str, dict[str, deque[Letter]]] = {}
        self._watches: dict[str, list[Watch]] = {}
        self._closed: dict[str, None] = {}
        self._order = itertools.count()

    def put(self, sender: str, scope: str, frame: Frame) -> None:
        """A frame has arrived. Never raises: what is wrong with it, its reader says."""
        try:
            kind: str | None = kind_of(frame, self.max_bytes)
        except BadFrame:
            kind = None
        known = KINDS.get(kind) if kind is not None else None
        if known is not None:
            self.ledger.record(self.owner, sender, known, bytes=len(frame))
        else:
            self.ledger.record(self.owner, sender, "(unreadable)", "bytes that are no message known here", bytes=len(frame))
        if self._closed and self.closed(scope):
            return
        self._queues.setdefault(scope, {}).setdefault(sender, deque()).append(Letter(next(self._order), sender, kind, frame))
        for watch in self._watches.get(scope, ()):
            watch.tell(sender)

    def pop(self, scope: str, sender: str) -> Letter | None:
        """The oldest letter of this sender, if there is one."""
        queues = self._queues.get(scope)
        if queues is None or sender not in queues:
            return None
        letter = queues[sender].popleft()
        if not queues[sender]:  # nothing is kept for queues that are empty: rounds come and go
            del queues[sender]
            if not queues:
                del self._queues[scope]
        return letter

    def waiting(self) -> list[str]:
        """What the owner's program is blocked on, in words: 'Pong from b'."""
        return [watch.wants() for watches in self._watches.values() for watch in watches if watch.blocked]

    def awaited(self) -> dict[str, str]:
        """Whose mail the owner's program is blocked on without a deadline of its own, and what it wants, in words."""
        return {sender: watch.wants() for watches in self._watches.values() for watch in watches if watch.blocked and watch.endless
                for sender in watch.senders or ()}

    def close(self, scope: str) -> None:
        """Forget the scope and those inside it; mail that still comes for them is noted in the ledger and dropped."""
        for tag in [t for t in self._queues if t == scope or t.startswith(scope + "/")]:
            del self._queues[tag]
        self._closed[scope] = None
        while len(self._closed) > REMEMBER_CLOSED:
            del self._closed[next(iter(self._closed))]

    def closed(self, scope: str) -> bool:
        parts = scope.split("/")
        return any("/".join(parts[:n]) in self._closed for n in range(1, len(parts) + 1))


class Watch:
    """An eye on some senders' queues (on all of a scope's when `senders` is None), until a deadline. `senders` may shrink meanwhile."""

    def __init__(self, box: Mailbox, scope: str, senders: Collection[str] | None, wants: Callable[[], str]):
        self.box, self.scope, self.senders, self.wants = box, scope, senders, wants
        queues = box._queues.get(scope, {})
        there = [s for s in queues if senders is None or s in senders]
        self.news = deque(sorted(there, key=lambda s: queues[s][0].order))
        self.late = False
        self._woken: asyncio.Future[None] | None = None
        self._timer: Timer | None = None

    @property
    def blocked(self) -> bool:
        return self._woken is not None and not self._woken.done()

    @property
    def endless(self) -> bool:
        return self._timer is None

    def deadline(self, clock: Clock, within: float | None) -> Watch:
        return self.until(clock, None if within is None else clock.now() + within)

    def until(self, clock: Clock, when: float | None) -> Watch:
        if when is not None:
            self._timer = clock.at(when, self._ring)
        return self

    def __enter__(self) -> Watch:
        self.box._watches.setdefault(self.scope, []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        watches = self.box._watches[self.scope]
        watches.remove(self)
        if not watches:
            del self.box._watches[self.scope]
        if self._timer is not None:
            self._timer.cancel()

    def tell(self, sender: str) -> None:
        if self.senders is None or sender in self.senders:
            self.news.append(sender)
            self._wake()

    def _ring(self) -> None:
        self.late = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def next(self) -> Letter | None:
        """The next letter, or None after the deadline. Another task of this party may have been quicker: then go on waiting."""
        while True:
            while self.news:
                sender = self.news.popleft()
                if self.senders is not None and sender not in self.senders:
                    continue  # a gather has what it wants of this one; the rest is for whoever asks next
                letter = self.box.pop(self.scope, sender)
                if letter is not None:
                    return letter
            if self.late:
                return None
            self._woken = asyncio.get_running_loop().create_future()
            try:
                await self._woken
            finally:
                self._woken = None
