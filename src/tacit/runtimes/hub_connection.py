"""A party's connection to the hub by gRPC with mutual TLS, which is opened again when it is lost.

It raises NoHub if the hub refuses this party, or cannot be reached for `patience` seconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import grpc

from ..errors import NoHub
from .certificates import HUB_NAME
from .envelope import METHOD, VERSION
from .hub import OPTIONS
from .kits import Kit

# seconds between attempts to connect: doubling, with jitter, so that parties do not reconnect at once
WAIT = (0.05, 2.0)
RESTART = 2.0  # seconds that a restart of the hub may take; after them, the reason is looked for
CLIENT_OPTIONS = [
    *OPTIONS,
    ("grpc.ssl_target_name_override", HUB_NAME),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class HubConnection:
    """Reads and writes envelopes, with one connection at a time."""

    def __init__(
        self,
        kit: Kit,
        version: str,
        patience: float,
        pull: Callable[[str], bytes | None],
        receive: Callable[[bytes], None],
        on_welcome: Callable[[], None],
        note: Callable[[str], None],
    ):
        self.kit, self.version, self.patience = kit, version, patience
        self.pull = pull  # the next envelope for a party, if there is one
        self.receive, self.on_welcome, self.note = receive, on_welcome, note
        self.connections = 0
        self.connected = asyncio.Event()
        self._news = asyncio.Event()
        self._to_write: dict[str, None] = {}  # parties for which there may be something to send, in turn
        self._for_hub: list[bytes] = []

    def wake(self, name: str) -> None:
        """There is, or may be, something to send to this party."""
        self._to_write[name] = None
        self._news.set()

    def send(self, envelope: bytes) -> None:
        """Send something to the hub itself, as soon as it is connected."""
        self._for_hub.append(envelope)
        self._news.set()

    async def stay_connected(self) -> None:
        lost, wait, why = time.monotonic(), WAIT[0], ""
        authority, key, certificate = self.kit.pems()
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        while True:
            before = self.connections
            async with grpc.aio.secure_channel(
                self.kit.address, credentials, options=CLIENT_OPTIONS
            ) as connection:
                try:
                    await self._talk(connection.stream_stream(METHOD)(metadata=((VERSION, self.version),)))
                    why = "the hub ended the connection"
                except grpc.aio.AioRpcError as error:
                    why = error.details() or str(error.code())
                    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                        raise NoHub(
                            f"the hub at {self.kit.address} refused party {self.kit.name!r}: {why}"
                        ) from None
                    if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED):
                        raise NoHub(
                            f"the server at {self.kit.address} does not answer as a hub: "
                            f"{error.code().name}: {why}. Is it a tacit hub of the same version?"
                        ) from None
                finally:
                    self.connected.clear()
            if self.connections > before:
                lost, wait = time.monotonic(), WAIT[0]
                self.note(f"the connection to the hub was lost: {why}")
            elif time.monotonic() - lost > min(RESTART, self.patience):
                from .preflight import reach

                fatal, reason = await asyncio.to_thread(reach, self.kit)
                why = reason or why
                if fatal or time.monotonic() - lost > self.patience:
                    raise NoHub(f"{why} Party {self.kit.name!r} tried for {time.monotonic() - lost:.0f} s.")
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, WAIT[1])

    async def _talk(self, call: Any) -> None:
        writer: asyncio.Task[None] | None = None
        try:
            async for data in call:
                if writer is None:  # the hub's welcome: it accepted the certificate
                    writer = asyncio.create_task(self._write(call))
                    self.connections += 1
                    self.connected.set()
                    self.on_welcome()
                    self._news.set()
                self.receive(data)
            code = await call.code()
            if code is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
                )
        finally:
            if writer is not None:
                writer.cancel()
            call.cancel()

    async def _write(self, call: Any) -> None:
        try:
            while True:
                self._news.clear()  # first: an event during writing sets it again
                while self._for_hub:
                    await call.write(self._for_hub.pop(0))
                # one record per channel in turn, so that a large message does not block others
                while self._to_write and not self._for_hub:
                    name = next(iter(self._to_write))
                    del self._to_write[name]
                    payload = self.pull(name)
                    if payload is not None:
                        self._to_write[name] = None  # at the end
                        await call.write(payload)
                if not self._for_hub:
                    await self._news.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return  # the reading side reports the reason
