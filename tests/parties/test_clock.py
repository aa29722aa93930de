"""Virtual time takes no time and always passes in the same order."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from tacit.parties.clock import RealClock, VirtualClock
from tacit.runtimes import InProcess


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_timers_fire_by_time_then_by_order_and_canceled_ones_do_not(timers):
    clock, rung = VirtualClock(), []
    handles = [
        clock.at(float(when), lambda i=i: rung.append((i, clock.now()))) for i, (when, _) in enumerate(timers)
    ]
    for handle, (_, cancelled) in zip(handles, timers):
        if cancelled:
            handle.cancel()
    while clock.advance():
        pass
    assert rung == [
        (i, float(when))
        for when, i in sorted((when, i) for i, (when, cancelled) in enumerate(timers) if not cancelled)
    ]


def test_deadlines_that_were_met_do_not_pile_up():
    clock = VirtualClock()
    for _ in range(10_000):
        clock.at(3600.0, lambda: None).cancel()
    assert len(clock._alarms) < 200
    assert not clock.advance()


def test_an_hour_of_virtual_sleep_takes_no_time_and_wakes_in_order():
    async def sleeper(me):
        for _ in range(3):
            await me.clock.sleep({"slow": 1500.0, "fast": 1000.0}[me.name])
            woken.append((me.name, me.clock.now()))
        return me.clock.now()

    woken: list[tuple[str, float]] = []
    before = time.monotonic()
    assert InProcess().run_sync({"slow": sleeper, "fast": sleeper}) == {"slow": 4500.0, "fast": 3000.0}
    assert time.monotonic() - before < 60
    # both ring at 3000; slow asked at 1500, fast at 2000
    assert woken == [
        ("fast", 1000),
        ("slow", 1500),
        ("fast", 2000),
        ("slow", 3000),
        ("fast", 3000),
        ("slow", 4500),
    ]


def test_virtual_time_waits_for_work_on_other_threads():
    async def worker(me):
        await asyncio.to_thread(time.sleep, 0.05)
        return me.clock.now()

    async def sleeper(me):
        await me.clock.sleep(1.0)
        return me.clock.now()

    assert InProcess().run_sync({"worker": worker, "sleeper": sleeper}) == {"worker": 0.0, "sleeper": 1.0}


def test_the_real_clock_really_waits():
    async def wait():
        clock = RealClock()
        before = clock.now()
        await clock.sleep(0.05)
        return clock.now() - before

    assert asyncio.run(wait()) >= 0.05
