"""A clock for tests of deadlines: it stops until an event has happened.

So a deadline cannot pass because processes start slowly on a loaded machine. It passes after the event that the
test is about: a party was killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tacit.parties.clock import Clock, Timer

POLL = 0.02  # seconds between looks at the event


class ClockAfterEvent(Clock):
    """Shows 0 until `has_happened()`, then the seconds since."""

    def __init__(self, has_happened: Callable[[], bool]) -> None:
        self.has_happened = has_happened
        self.start: float | None = None

    def now(self) -> float:
        if self.start is None and self.has_happened():
            self.start = time.monotonic()
        return 0.0 if self.start is None else time.monotonic() - self.start

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        return _Poll(self, when, call)


class _Poll:
    def __init__(self, clock: ClockAfterEvent, when: float, call: Callable[[], None]) -> None:
        self.clock, self.when, self.call = clock, when, call
        self.look()

    def look(self) -> None:
        left = self.when - self.clock.now()
        loop = asyncio.get_running_loop()
        self.handle = loop.call_soon(self.call) if left <= 0 else loop.call_later(min(left, POLL), self.look)

    def cancel(self) -> None:
        self.handle.cancel()
