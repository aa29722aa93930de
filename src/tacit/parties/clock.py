"""Time as a party sees it: the wall's, or a simulation's in which waiting takes no time.

A virtual clock moves only when nobody has anything left to do, and then straight to the next timer, one timer
at a time and in the order (when, asked first). So a simulation of an hour takes as long as its arithmetic,
and comes out the same every time.
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
    """`now()` in seconds, `at(when, call)`, and `sleep` made of the two."""

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """Call `call()` when the clock shows `when`, unless cancelled before."""

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
    """Starts at 0, or where a simulation that is resumed had come to. Whoever runs it calls `advance` when
    nothing else can happen.
    """

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
        """Move to the next timer and ring it. False when there is none: then time stands still for good."""
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
        # deadlines that were met stay in the heap; sweep when they are most of it, so that a long run stays
        # flat in memory
        self._cancelled += 1
        if self._cancelled > 64 and 2 * self._cancelled > len(self._alarms):
            self._alarms = [entry for entry in self._alarms if entry[2].live]
            heapq.heapify(self._alarms)
            self._cancelled = 0
