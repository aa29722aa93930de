"""A party's connection to the relay (tacit's hub, or NATS), which is opened again when it is lost.

It raises NoHub if the relay refuses this party, or cannot be reached for `patience` seconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from ..errors import NoHub
from .kits import Kit
from .relay import Send, open_relay

# seconds between attempts to connect: doubling, with jitter
WAIT = (0.05, 2.0)
# Parties that connect again in a second, about, when all of a federation lose their connection at once; they
# begin at random times. A hub admits 240 to 330 a second on one core (many_parties.py).
RATE = 250
RESTART = 2.0  # seconds that a restart of the hub may take; after them, the reason is looked for
LOOK = 60.0  # seconds between such looks at most: each is a connection of its own


class RelayConnection:
    """Reads and writes envelopes, with one connection at a time."""

    def __init__(
        self,
        kit: Callable[[], Kit],
        life: bytes,
        version: str,
        patience: float,
        pull: Callable[[str], bytes | None],
        receive: Callable[[bytes], None],
        on_welcome: Callable[[], None],
        note: Callable[[str], None],
    ):
        self.kit, self.life, self.version = kit, life, version  # the kit may get a newer revocation list
        self.patience = patience
        self.pull = pull  # the next envelope for a party, if there is one
        self.receive, self.on_welcome, self.note = receive, on_welcome, note
        self.connections = 0
        self.connected = asyncio.Event()
        self._news = asyncio.Event()
        self._to_write: dict[str, None] = {}  # parties for which there may be something to send, in turn
        self._for_relay: list[bytes] = []

    def wake(self, name: str) -> None:
        """There is, or may be, something to send to this party."""
        self._to_write[name] = None
        self._news.set()

    def send(self, envelope: bytes) -> None:
        """Send something to the relay itself, as soon as it is connected."""
        self._for_relay.append(envelope)
        self._news.set()

    async def stay_connected(self) -> None:
        lost, wait = time.monotonic(), WAIT[0]
        look, looked = RESTART, lost
        spread = len(self.kit().parties) / RATE
        relay = open_relay(self.kit, self.life, self.version)
        while True:
            before = self.connections
            try:
                why = await relay.talk(self._on_open, self.receive, self._write)
            finally:
                self.connected.clear()
            if self.connections > before:
                lost, wait = time.monotonic(), WAIT[0]
                look, looked = RESTART, lost
                self.note(f"the connection to the hub was lost: {why}")
                await asyncio.sleep(random.uniform(0.0, spread))
            elif time.monotonic() - looked > look or time.monotonic() - lost > self.patience:
                from .preflight import reach

                kit = self.kit()
                fatal, reason = await asyncio.to_thread(reach, kit)
                why = reason or why
                if fatal or time.monotonic() - lost > self.patience:
                    raise NoHub(f"{why} Party {kit.name!r} tried for {time.monotonic() - lost:.0f} s.")
                look, looked = min(2 * look, LOOK), time.monotonic()
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, max(WAIT[1], spread))

    def _on_open(self) -> None:
        self.connections += 1
        self.connected.set()
        self.on_welcome()
        self._news.set()

    async def _write(self, send: Send) -> None:
        while True:
            self._news.clear()  # first: an event during writing sets it again
            while self._for_relay:
                await send(self._for_relay.pop(0))
            # one record per channel in turn, so that a large message does not block others
            while self._to_write and not self._for_relay:
                name = next(iter(self._to_write))
                del self._to_write[name]
                payload = self.pull(name)
                if payload is not None:
                    self._to_write[name] = None  # at the end
                    await send(payload)
            if not self._for_relay:
                await self._news.wait()
