"""Clocks: real time, or virtual time in which waiting takes no time.

A virtual clock advances only when no party can do anything else, directly to the next timer, one at a time in
the order (time, creation). So a simulated hour takes as long as its computation, and every run gives the same
result.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(ABC):
    """A clock in seconds: `now()`, `at(when, call)`, `sleep` and `until`."""

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """Call `call()` at time `when`, unless cancelled before."""

    async def sleep(self, seconds: float) -> None:
        await self.until(self.now() + seconds)

    async def until(self, when: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.at(when, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()


class RealClock(Clock):
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        # call_later, not call_at: a loop's own clock need not start where time.monotonic does
        return asyncio.get_running_loop().call_later(max(0.0, when - self.now()), call)


class _Alarm:
    def __init__(self, clock: VirtualClock, call: Callable[[], None]):
        self.clock, self.call = clock, call
        self.live = True

    def cancel(self) -> None:
        if self.live:
            self.live = False
            self.clock._drop()


class VirtualClock(Clock):
    """A simulated clock that starts at `start`; the runtime calls `advance` when nothing else can happen."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._alarms: list[tuple[float, int, _Alarm]] = []
        self._order = itertools.count()
        self._cancelled = 0

    def now(self) -> float:
        return self._now

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        alarm = _Alarm(self, call)
        heapq.heappush(self._alarms, (when, next(self._order), alarm))
        return alarm

    def advance(self) -> bool:
        """Advance to the next timer and call it; False if there is none."""
        while self._alarms:
            when, _, alarm = heapq.heappop(self._alarms)
            if not alarm.live:
                self._cancelled -= 1
                continue
            alarm.live = False
            self._now = max(self._now, when)
            alarm.call()
            return True
        return False

    def _drop(self) -> None:
        # cancelled timers stay in the heap; remove them when they are the majority, so that memory stays
        # bounded
        self._cancelled += 1
        if self._cancelled > 64 and 2 * self._cancelled > len(self._alarms):
            self._alarms = [entry for entry in self._alarms if entry[2].live]
            heapq.heapify(self._alarms)
            self._cancelled = 0
