"""Plain functions as callbacks of a server's program, which awaits some of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


def awaited(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any) -> Any:
        return function(*args)

    return call
