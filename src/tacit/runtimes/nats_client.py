"""A connection to a NATS server: as much of its protocol as a relay of envelopes needs.

One task reads, in the order of the server, also across subjects: a note that a party is absent must not
overtake the one that it has come. Writing waits for the socket, so that a slow server slows its senders down.

The protocol is text (docs.nats.io, "Client Protocol"): the server sends INFO, both turn to TLS, the client
sends CONNECT and PING and waits for PONG. Then PUB, SUB, MSG and HMSG, whose headers are only read for the
status 503: nobody subscribes to the subject of a message that named one for replies.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..errors import NoHub
from .certificates import HUB_NAME
from .envelope import MAX_ENVELOPE
from .kits import SHARED
from .nkeys import NKey

LINE_LIMIT = 1 << 20  # bytes of a control line: INFO lists the servers of a cluster
HEARTBEAT = 10.0  # seconds between pings; a server that says nothing for three times this is lost
OPENING = 30.0  # seconds for a connection and its handshake: all parties may connect at once
NO_RESPONDERS = 503
# words in an error of the server after which another attempt would be refused, too
FATAL = ("authorization", "authentication", "permissions violation", "maximum payload", "tls required")

Deliver = Callable[[str, int, bytes], None]  # (subject, status or 0, payload)


class NatsLost(Exception):
    """The connection cannot be opened, or has ended; another attempt may succeed."""


class NatsClient:
    """`client = await NatsClient.open(…); await client.subscribe(…); await client.read(deliver)`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str):
        self.reader, self.writer, self.where = reader, writer, where
        self.pongs: list[asyncio.Future[None]] = []
        self.subscriptions = 0
        self.has_read = True  # anything since the last ping

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        context: ssl.SSLContext,
        name: str,
        timeout: float = OPENING,
        nkey: NKey | None = None,
    ) -> NatsClient:
        """Connect to one server; raise NoHub if it will never accept this party, else NatsLost.

        With `nkey` the server knows this party by it, and its own certificate must be that of its host. Else
        it knows it by its certificate, and its own must be that of the federation's hub.
        """
        where = f"nats://{host}:{port}"
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(host.strip("[]"), port, limit=LINE_LIMIT)
        except (OSError, TimeoutError) as error:
            raise NatsLost(f"{where} cannot be reached: {error or 'no answer'}.") from None
        client = cls(reader, writer, where)
        try:
            async with asyncio.timeout(timeout):
                await client._handshake(context, name, host.strip("[]") if nkey else HUB_NAME, nkey)
        except BaseException as error:
            await client.close()
            if isinstance(error, ssl.SSLError):
                advice = (
                    f"Ask its operator: its certificate must be for {host}, by the authority in {SHARED}."
                    if nkey
                    else "Run the NATS server with the nats.conf in the hub's kit of this federation."
                )
                raise NoHub(
                    f"{where} and party {name!r} do not accept each other's certificates ({error.reason}). "
                    f"{advice}"
                ) from None
            if isinstance(error, OSError | TimeoutError | EOFError):
                raise NatsLost(f"{where} ended the connection: {error or 'no answer'}.") from None
            raise
        return client

    async def _handshake(
        self, context: ssl.SSLContext, name: str, server_name: str, nkey: NKey | None
    ) -> None:
        line = await self._line()
        if not line.startswith(b"INFO "):
            raise NoHub(f"{self.where} does not answer as a NATS server. Check the port.")
        info = _parse_info(line)
        if not info.get("tls_required"):
            raise NoHub(
                f"{self.where} does not use TLS. Its operator runs it with the configuration that `tacit "
                "nats` writes."
                if nkey
                else f"{self.where} does not ask for certificates, so anybody could connect. Run it with the "
                "nats.conf in the hub's kit."
            )
        if not info.get("headers") or info.get("max_payload", 0) < MAX_ENVELOPE:
            raise NoHub(
                f"{self.where} takes messages of at most {info.get('max_payload')} bytes"
                f"{'' if info.get('headers') else ' without headers'}; {MAX_ENVELOPE} with headers are "
                "needed. Set max_payload in its configuration, and use NATS 2.2 or newer."
            )
        if nkey and "nonce" not in info:
            raise NoHub(
                f"{self.where} does not know parties by their keys. Run it with the configuration that "
                "`tacit nats` writes."
            )
        # what came before TLS would be read behind it, as if the server had sent it; a server waits for TLS
        if self.reader._buffer:  # type: ignore[attr-defined]
            raise NatsLost(f"{self.where} sent more than INFO before TLS: somebody else may have sent it.")
        await self.writer.start_tls(context, server_hostname=server_name)
        options: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "echo": False,  # a party's announcement is for others
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "tacit",
            "version": "1",
            "name": name,
        }
        if nkey:
            options |= {"nkey": nkey.public, "sig": nkey.sign_nonce(str(info["nonce"]))}
        await self._send(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        while (line := await self._line()) != b"PONG":
            if line.startswith(b"-ERR"):
                raise _to_error(self.where, line)

    # --- out ------------------------------------------------------------------------------------------------

    async def _send(self, data: bytes) -> None:
        try:
            self.writer.write(data)
            await self.writer.drain()
        except (OSError, RuntimeError) as error:
            raise NatsLost(f"{self.where} ended the connection: {error}.") from None

    async def subscribe(self, *subjects: str) -> None:
        first = self.subscriptions + 1
        self.subscriptions += len(subjects)
        await self._send("".join(f"SUB {s} {k}\r\n" for k, s in enumerate(subjects, first)).encode())

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send a message; if nobody subscribes to its subject, the server answers 503 to `reply`."""
        head = f"PUB {subject} {reply} {len(payload)}" if reply else f"PUB {subject} {len(payload)}"
        await self._send(b"".join((head.encode(), b"\r\n", payload, b"\r\n")))

    async def flush(self) -> None:
        """Wait until the server has processed all that was sent; `read` must run."""
        pong = asyncio.get_running_loop().create_future()
        self.pongs.append(pong)
        await self._send(b"PING\r\n")
        await pong

    async def close(self) -> None:
        """Close at once: what others have not confirmed is sent again."""
        for pong in self.pongs:
            pong.cancel()
        self.writer.transport.abort()
        with suppress(OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self.writer.wait_closed()

    # --- in -------------------------------------------------------------------------------------------------

    async def read(self, deliver: Deliver) -> None:
        """Read until the connection ends: NatsLost, or NoHub if the server does not want this party."""
        beat = asyncio.create_task(self._keep_beating())
        try:
            while True:
                try:
                    message = await self._next()
                except (OSError, EOFError, ValueError) as error:
                    raise NatsLost(f"{self.where} ended the connection: {error}.") from None
                self.has_read = True
                if message is not None:
                    deliver(*message)
        finally:
            beat.cancel()
            self.writer.transport.abort()

    async def _next(self) -> tuple[str, int, bytes] | None:
        """Return the next message, or None if the server sent something else."""
        line = await self._line()
        if line.startswith(b"MSG "):
            _, subject, *_, size = line.split()
            return subject.decode(), 0, await self._payload(int(size))
        if line.startswith(b"HMSG "):
            _, subject, *_, of_head, size = line.split()
            data = await self._payload(int(size))
            words = data[: int(of_head)].split(b"\r\n", 1)[0].split()
            status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
            return subject.decode(), status, data[int(of_head) :]
        if line == b"PING":
            await self._send(b"PONG\r\n")
        elif line == b"PONG":
            if self.pongs and not (pong := self.pongs.pop(0)).done():
                pong.set_result(None)
        elif line.startswith(b"-ERR"):
            raise _to_error(self.where, line)
        return None

    async def _payload(self, size: int) -> bytes:
        if not 0 <= size <= 2 * MAX_ENVELOPE:
            raise ValueError(f"a message of {size} bytes")
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def _line(self) -> bytes:
        try:
            return (await self.reader.readuntil(b"\r\n"))[:-2].strip()
        except asyncio.LimitOverrunError:
            raise ValueError("a line that does not end") from None

    async def _keep_beating(self) -> None:
        with suppress(NatsLost):
            while self.has_read:
                self.has_read = False
                self.pongs.append(asyncio.get_running_loop().create_future())
                await self._send(b"PING\r\n")
                await asyncio.sleep(HEARTBEAT)
                if not self.has_read:  # a busy machine may be late
                    await asyncio.sleep(2 * HEARTBEAT)
        self.writer.transport.abort()  # `read` ends


def _parse_info(line: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        info = json.loads(line[5:])
        if isinstance(info, dict):
            return info
    return {}


def _to_error(where: str, line: bytes) -> Exception:
    text = line[4:].decode(errors="replace").strip().strip("'")
    if any(word in text.lower() for word in FATAL):
        return NoHub(
            f"{where} refuses this party: {text}. Its certificate may have been revoked; else run the NATS "
            "server with the configuration that `tacit provision` wrote last for this federation, or `tacit "
            "nats` from it."
        )
    return NatsLost(f"{where} ended the connection: {text}.")
