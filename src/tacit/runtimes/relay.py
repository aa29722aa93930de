"""What a link needs of a relay between parties: tacit's own hub, or NATS."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from .kits import Kit

Send = Callable[[bytes], Awaitable[None]]
Writer = Callable[[Send], Coroutine[Any, Any, None]]


class Relay(Protocol):
    """One party's way to the others: it carries envelopes, and loses some."""

    async def talk(
        self,
        opened: Callable[[], None],
        read: Callable[[bytes], None],
        write: Writer,
    ) -> str:
        """Connect once, and return why the connection ended; raise NoHub if trying again is useless.

        `opened` is called when envelopes can be sent, then `write(send)` runs until the end. `read` gets
        each envelope, and what the relay itself says: ABSENT, PRESENT, WELCOME, FAILED.
        """


def open_relay(kit: Callable[[], Kit], life: bytes, version: str) -> Relay:
    """Return the relay at the kit's address; the kit may get a newer revocation list meanwhile."""
    if kit().address.startswith("nats://"):
        from .nats_relay import NatsRelay

        return NatsRelay(kit, life, version)
    from .hub_relay import HubRelay

    return HubRelay(kit(), version)
