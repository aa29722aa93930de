"""A coroutine that hands items to a caller which is not asynchronous: in order, one at a time, and ended with
its consumer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tacit.errors import PartyFailed
from tacit.parties.ledger import Ledger
from tacit.runtimes.inprocess import InProcess
from tacit.runtimes.streaming import Emitter, drain


def counting(emitter: Emitter[int], log: list[Any], n: int = 3) -> Any:
    async def count() -> str:
        try:
            for i in range(n):
                await emitter.emit(i)
                log.append(f"after {i}")
            return "done"
        finally:
            log.append("ended")

    return count


def test_the_coroutine_waits_until_the_consumer_asks_for_the_next_item() -> None:
    emitter, log = Emitter[int](), []
    stream = emitter.stream(counting(emitter, log))
    for i in range(3):
        assert next(stream) == i
        assert log == [f"after {j}" for j in range(i)]
    with pytest.raises(StopIteration) as end:
        next(stream)
    assert end.value.value == "done"
    assert log[-1] == "ended"


def test_closing_the_stream_ends_the_coroutine() -> None:
    emitter, log = Emitter[int](), []
    stream = emitter.stream(counting(emitter, log))
    next(stream)
    stream.close()
    assert log == ["ended"]


def test_an_error_of_the_coroutine_is_raised_after_the_items_before_it() -> None:
    emitter = Emitter[int]()

    async def fails() -> None:
        await emitter.emit(1)
        raise ValueError("no more")

    stream = emitter.stream(fails)
    assert next(stream) == 1
    with pytest.raises(ValueError, match="no more"):
        next(stream)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle SIGINT as in a terminal: a shell that starts the tests in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_the_coroutine_and_waits_for_it() -> None:
    emitter, log = Emitter[int](), []

    async def waits() -> None:
        await emitter.emit(1)
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("ended")

    stream = emitter.stream(waits)
    assert next(stream) == 1
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert log == ["ended"]


def test_in_a_notebook_the_loop_has_a_thread_of_its_own() -> None:
    async def cell() -> tuple[list[int], set[threading.Thread]]:
        emitter, log = Emitter[int](), []
        before = set(threading.enumerate())  # one of an earlier test may end meanwhile
        items = list(emitter.stream(counting(emitter, log)))
        assert log[-1] == "ended"
        return items, set(threading.enumerate()) - before

    assert asyncio.run(cell()) == ([0, 1, 2], set())


def test_parties_wait_while_the_consumer_has_an_item_and_the_ledger_is_whole_when_it_stops() -> None:
    """A message sent while another party emits is delivered only after the consumer asked for more."""
    emitter, ledger, log = Emitter[str](), Ledger(), []

    async def server(me: Any) -> None:
        for word in "ab":
            await me.clock.sleep(1.0)
            await emitter.emit(word)
            log.append(me.clock.now())

    async def client(me: Any) -> None:
        while True:
            await me.clock.sleep(0.4)

    stream = InProcess().stream({"server": server, "client": client}, emitter, ledger=ledger)
    assert next(stream) == "a"
    assert log == []
    assert next(stream) == "b"
    assert log == [1.0]
    stream.close()

    async def broken(me: Any) -> None:
        raise ValueError("wrong")

    with pytest.raises(PartyFailed, match="wrong"):
        drain(InProcess().stream({"server": broken}, emitter))
