"""Run several coroutines of one party concurrently; the first that fails cancels the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0]  # noqa: B904  # its own cause is what the reader needs
    return [task.result() for task in tasks]


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run a function in a thread, and if cancelled, wait until it has ended.

    For functions that change what is used afterwards: `asyncio.to_thread` would leave them running.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
