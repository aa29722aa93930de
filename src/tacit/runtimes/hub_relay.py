"""A party's connection to tacit's own hub: a stream of envelopes over gRPC, with mutual TLS."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import grpc

from ..errors import NoHub
from .certificates import HUB_NAME
from .envelope import METHOD, VERSION
from .hub import HANDSHAKE, HEARTBEAT, OPTIONS
from .kits import Kit
from .relay import Send, Writer

# Seconds for an attempt to connect: TCP and TLS take three round trips and a signature at each side, and they
# wait for a core at a hub that thousands call at once. An attempt that is given up costs the hub as much as
# one that succeeds, so who gives up early makes the crowd larger. Doubled after an attempt that timed out.
ATTEMPT = (20.0, HANDSHAKE)
CLIENT_OPTIONS = [
    *OPTIONS,
    ("grpc.keepalive_time_ms", int(1000 * HEARTBEAT)),
    ("grpc.ssl_target_name_override", HUB_NAME),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # despite its name, the seconds that an attempt to connect may take; without it, 0.1
    ("grpc.min_reconnect_backoff_ms", int(1000 * ATTEMPT[0])),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
OWN = ("grpc.keepalive_time_ms", "grpc.min_reconnect_backoff_ms")  # differ between attempts


class HubRelay:
    def __init__(self, kit: Kit, version: str):
        self.kit, self.version = kit, version
        authority, key, certificate = kit.pems()
        self.credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        self.attempt = ATTEMPT[0]

    def _options(self) -> list[tuple[str, object]]:
        """Return the options of one attempt to connect."""
        return [
            *((name, value) for name, value in CLIENT_OPTIONS if name not in OWN),
            # parties that connected together do not ping together
            ("grpc.keepalive_time_ms", int(1000 * HEARTBEAT * random.uniform(0.8, 1.2))),
            ("grpc.min_reconnect_backoff_ms", int(1000 * self.attempt)),
        ]

    async def talk(
        self,
        opened: Callable[[], None],
        read: Callable[[bytes], None],
        write: Writer,
    ) -> str:
        kit = self.kit
        began = time.monotonic()
        async with grpc.aio.secure_channel(kit.address, self.credentials, options=self._options()) as channel:
            call = channel.stream_stream(METHOD)(metadata=((VERSION, self.version),))
            writer: asyncio.Task[None] | None = None
            try:
                async for data in call:
                    if writer is None:  # the hub's welcome: it accepted the certificate
                        writer = asyncio.create_task(_write(write, call.write))
                        self.attempt = ATTEMPT[0]
                        opened()
                    read(data)
                if (code := await call.code()) is not grpc.StatusCode.OK:
                    raise grpc.aio.AioRpcError(
                        code,
                        await call.initial_metadata(),
                        await call.trailing_metadata(),
                        await call.details(),
                    )
                return "the hub ended the connection"
            except grpc.aio.AioRpcError as error:
                why = error.details() or str(error.code())
                if writer is None and time.monotonic() - began >= self.attempt:
                    self.attempt = min(2 * self.attempt, ATTEMPT[1])
                if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                    raise NoHub(f"the hub at {kit.address} refused party {kit.name!r}: {why}") from None
                if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED):
                    raise NoHub(
                        f"the server at {kit.address} does not answer as a hub: {error.code().name}: {why}. "
                        "Is it a tacit hub of the same version?"
                    ) from None
                return why
            finally:
                if writer is not None:
                    writer.cancel()
                call.cancel()


async def _write(write: Writer, send: Send) -> None:
    try:
        await write(send)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
        return  # the reading side reports the reason
