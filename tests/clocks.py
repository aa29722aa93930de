"""Clocks for tests of deadlines: a deadline passes after the event that the test is about, a party was killed.

So it cannot pass because processes start slowly on a loaded machine. `ClockAfterEvent` counts real seconds after
the event; `ClockOfTheKilled` lets a deadline pass at once when only killed parties are awaited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from tacit.parties.clock import Clock, Timer
from tacit.parties.mailbox import MailboxWatch
from tacit.protocols import joining
from tacit.runtimes import link as links

POLL = 0.02  # seconds between looks at the event
LONG = 3600.0  # seconds by which a deadline of the killed is past: more than any deadline of a test


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


class ClockOfTheKilled(Clock):
    """A clock that stops. A deadline passes when every party that is awaited was killed.

    `lost(scope)` returns the parties that will send nothing more in a scope; in the scope "", those that do not
    come back to be asked. `on_deadline` is called when a deadline passes.
    """

    def __init__(
        self, lost: Callable[[str], Collection[str]], on_deadline: Callable[[], None] = lambda: None
    ) -> None:
        self.lost, self.on_deadline, self.time = lost, on_deadline, 0.0
        self.missing: Callable[[], Collection[str]] = tuple  # whom an admission waits for

    def now(self) -> float:
        return self.time

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        watch = getattr(call, "__self__", None)
        if isinstance(watch, MailboxWatch):
            return _Death(self, call, lambda: watch.senders or (), watch.scope)
        return _Death(self, call, self.missing, "")

    @staticmethod
    def use(monkeypatch: pytest.MonkeyPatch, *args: Any) -> None:
        """Give such a clock to the parties of this process, and tell it whom an admission waits for."""
        monkeypatch.setattr(links, "RealClock", lambda: ClockOfTheKilled(*args))
        original = joining.Admission.wait_for_free

        async def wait_for_free(
            self: joining.Admission, names: Sequence[str], need: int, within: float | None
        ) -> list[str]:
            clock = self.me.clock
            assert isinstance(clock, ClockOfTheKilled)
            clock.missing = lambda: [n for n in names if n not in self.ready or n in self.busy]
            return await original(self, names, need, within)

        monkeypatch.setattr(joining.Admission, "wait_for_free", wait_for_free)


class _Death:
    def __init__(
        self,
        clock: ClockOfTheKilled,
        call: Callable[[], None],
        awaited: Callable[[], Collection[str]],
        scope: str,
    ) -> None:
        self.clock, self.call, self.awaited, self.scope = clock, call, awaited, scope
        self.look()

    def look(self) -> None:
        loop, awaited = asyncio.get_running_loop(), set(self.awaited())
        if awaited and awaited <= set(self.clock.lost(self.scope)):
            self.handle: asyncio.Handle = loop.call_soon(self.expire)
        else:
            self.handle = loop.call_later(POLL, self.look)

    def expire(self) -> None:
        self.clock.time += LONG
        self.clock.on_deadline()
        self.call()

    def cancel(self) -> None:
        self.handle.cancel()
