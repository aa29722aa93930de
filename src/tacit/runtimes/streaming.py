"""What a coroutine hands out one at a time, for a caller that is not asynchronous.

A protocol's server runs inside an event loop, and the training loop does not. `Emitter.emit` hands an item
over and waits until the consumer asks for the next one. So the consumer is done with an item (has written it
to disk, or has refused to continue) before the coroutine goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Emitter(Generic[T]):
    """Items on their way from one coroutine to one consumer."""

    def __init__(self) -> None:
        self._items: list[T] = []  # at most one
        self._emitted, self._wanted = asyncio.Event(), asyncio.Event()

    async def emit(self, item: T) -> None:
        """Hand an item over, and wait until the consumer asks for the next one."""
        self._items.append(item)
        self._wanted.clear()
        self._emitted.set()
        await self._wanted.wait()

    def stream(
        self,
        start: Callable[[], Coroutine[Any, Any, R]],
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> Generator[T, None, R]:
        """Run a coroutine on an event loop of its own; yield what it emits, return what it returns.

        The loop stands still while the consumer has an item. Ctrl-C, an error in the consumer and closing the
        generator all cancel the coroutine, and wait until it has ended.
        """
        with ExitStack() as stack:
            call = _caller(stack)
            runner = asyncio.Runner(loop_factory=loop_factory)
            stack.callback(call, runner.close)

            def step(coroutine: Coroutine[Any, Any, Any]) -> Any:
                return call(runner.run, coroutine)

            task = step(_begin(start()))
            stack.callback(lambda: task.done() or step(_cancel(task)))
            while step(self._next(task)):
                yield self._items.pop()
            return task.result()  # type: ignore[no-any-return]

    async def _next(self, task: asyncio.Task[Any]) -> bool:
        """Wait for the next item, or for the end of the coroutine; return whether there is an item."""
        if not self._items:  # the first item may have come while the coroutine was started
            self._emitted.clear()
            self._wanted.set()
        emitted = asyncio.ensure_future(self._emitted.wait())
        try:
            await asyncio.wait([emitted, task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # Ctrl-C
            await _cancel(task)
            raise
        finally:
            emitted.cancel()
        return bool(self._items)


def drain(stream: Generator[Any, None, R]) -> R:
    """Run a stream to its end, and return its result."""
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def _begin(coroutine: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
    return asyncio.create_task(coroutine)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _caller(stack: ExitStack) -> Callable[..., Any]:
    """How to run the steps of a loop: in this thread, or, in a notebook whose own loop has it, in another."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return lambda function, *args: function(*args)
    pool = stack.enter_context(ThreadPoolExecutor(1, "tacit"))
    context = contextvars.copy_context()
    return lambda function, *args: pool.submit(context.run, function, *args).result()
