"""What the tests of mail limits share."""

from __future__ import annotations

import asyncio
from typing import Any

from tacit.parties import Mailbox
from tacit.runtimes.link import Link
from tests.runtimes.net import DEADLINE

MB = 1 << 20


def unread(box: Mailbox) -> tuple[int, int, int]:
    """(bytes, letters, scopes) that wait, counted from the queues themselves."""
    letters = [
        (scope, letter)
        for scope, queues in box._queues.items()
        for queue in queues.values()
        for letter in queue
    ]
    return sum(len(letter.frame) for _, letter in letters), len(letters), len(box._queues)


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.01)


def is_held(link: Link, peer: str) -> bool:
    return peer in link.channels and link.channels[peer].refused is not None
