"""Run several coroutines of one party concurrently; the first that fails cancels the others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0]  # noqa: B904  # its own cause is what the reader needs
    return [task.result() for task in tasks]
