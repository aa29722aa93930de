"""Server-sent events: a page gets the parts of itself that changed since it was sent, and nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping

INTERVAL = 0.4  # seconds between two looks at the files
ALIVE = 15.0  # seconds between two comments, so that a closed page is noticed


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_event(name: str, value: object) -> bytes:
    """Return one event; JSON has no line break, so no content can end it."""
    return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()


async def stream(
    mark: Callable[[], Hashable],
    parts: Callable[[], Awaitable[Mapping[str, str]]],
    known: Mapping[str, str],
    stopping: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Yield an event "parts" with {key: markup} whenever parts changed, null for those that are gone.

    `mark` is cheap and changes when the files do; `parts` makes all parts of the page; `known` are the
    digests of those the page has already.
    """
    sent, last, idle = dict(known), object(), 0.0
    yield b"retry: 1000\n\n"
    while not stopping.is_set():
        now = await asyncio.to_thread(mark)
        if now != last:
            last, idle = now, 0.0
            made = await parts()
            changed: dict[str, str | None] = {k: v for k, v in made.items() if sent.get(k) != digest(v)}
            changed |= {k: None for k in sent if k not in made}
            if changed:
                sent = {k: digest(v) for k, v in made.items()}
                yield to_event("parts", {"parts": changed, "order": list(made)})
        elif idle >= ALIVE:
            idle = 0.0
            yield b": here\n\n"
        idle += INTERVAL
        try:
            await asyncio.wait_for(stopping.wait(), INTERVAL)
        except TimeoutError:
            continue
