"""The hub: parties connect to it, and it relays their encrypted messages. It reads only envelopes.

A party is identified by the certificate of its connection (mutual TLS); an envelope in another name ends the
connection. Nothing is stored for absent parties or on disk: parties keep unconfirmed messages and send them
again, so a hub may be killed and restarted at any time. A sender whose messages wait for slow readers is not
read from until they catch up: it can occupy at most QUOTA bytes here, and does not block others. The hub's
own notes are bounded as well: at most one presence note per party and connection, and a note about an absent
party counts on the quota of its sender. A party that stops with an error says which kind of error it was
(stopping.py); until it connects again, and for RECENT seconds at most, parties that connect are told.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from cryptography import x509

from ..errors import BadFrame, BadKit, NoHub, SealBroken
from . import open_files, stopping
from .certificates import Trust, party_of, pem
from .envelope import (
    ABSENT,
    CHECK,
    FAILED,
    MAIL,
    MAX_ENVELOPE,
    METHOD,
    PRESENT,
    VERSION,
    WELCOME,
    pack,
    unpack,
)
from .kits import Kit, keep_revocations
from .listening import find_addresses
from .monitoring import Metric, Monitor, Pulse

log = logging.getLogger("tacit.hub")
RAISE = "Raise it at the hub (ulimit -n, or LimitNOFILE= of its systemd unit) and start it again."
QUOTA = 64 << 20  # queued bytes of one sender
ENTRY = 256  # bytes counted in addition to an envelope's size: the overhead of a queued one in Python
# Parties ping; the hub pings only those of which it heard nothing. The kernel tells whether the other machine
# is there: a connection on which it confirms nothing for PATIENCE is lost. A process that does not answer, on
# a machine that does, waits for a core or was stopped: 60 s, as in gRPC, ended all connections of a busy hub.
HEARTBEAT = 10.0  # seconds
PATIENCE = 30.0  # seconds
STALL = 180.0  # seconds
# Seconds until a connection without a handshake is closed: anybody can open one, and each is a file. No party
# waits longer (hub_relay.py); gRPC's default is 120.
HANDSHAKE = 80.0
IDLE = 60.0  # seconds until a connection without a call is closed, such as one that a newer one replaced
NEARLY = 0.9  # of the limit of open files: the operator is told
COUNT_AGAIN = 5  # seconds between counts of open files
TELL_AGAIN = 60.0  # seconds between such lines in the log
RECENT = 600.0  # seconds for which the failure of a party is told to those that connect after it
LOOK_AGAIN = 2.0  # seconds between checks of the revocation list
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_ENVELOPE),
    ("grpc.max_send_message_length", MAX_ENVELOPE),
    ("grpc.keepalive_timeout_ms", int(1000 * PATIENCE)),
    ("grpc.http2.ping_timeout_ms", int(1000 * STALL)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
HUB_OPTIONS = [
    *OPTIONS,
    ("grpc.keepalive_time_ms", int(2000 * HEARTBEAT)),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.max_connection_idle_ms", int(1000 * IDLE)),
    ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE)),
    ("grpc.so_reuseport", 0),
]


class QueuedFrame(NamedTuple):
    payer: str  # the party on whose quota it counts, or ""
    size: int  # what it counts
    data: bytes
    about: str | None = None  # a note about the presence of this party; see Connection.notes


class Connection:
    """A connected party, and the frames to write to it."""

    def __init__(self, name: str, certificate: x509.Certificate, version: str = ""):
        self.name, self.certificate = name, certificate
        self.version = version  # declared by the party, for preflight only
        self.since = time.monotonic()
        self.waiting: deque[QueuedFrame] = deque()
        self.notes: dict[str, int] = {}  # ABSENT or PRESENT: the latest for each party
        self.news, self.ended = asyncio.Event(), asyncio.Event()
        self.closed = ""

    def put(self, entry: QueuedFrame) -> None:
        self.waiting.append(entry)
        self.news.set()

    def next(self) -> tuple[QueuedFrame, bytes]:
        """Remove and return the next entry, and its bytes."""
        entry = self.waiting.popleft()
        return entry, pack(
            self.notes.pop(entry.about), entry.about, self.name
        ) if entry.about is not None else entry.data

    def close(self, why: str) -> None:
        self.closed = why
        self.news.set()
        self.ended.set()


class Hub:
    """A relay between parties; it cannot read their messages.

    `tap(sender, to, data)`, for tests, sees all the hub sees and may replace, repeat or drop the bytes.
    """

    def __init__(self, kit: Kit, tap: Callable[[str, str, bytes], list[bytes]] | None = None):
        if kit.role != "hub":
            raise BadKit(f"this is the kit of {kit.name!r} (a {kit.role}); a hub needs the hub's own kit.")
        if kit.address.startswith("nats://"):
            raise BadKit(
                f"federation {kit.federation!r} uses a NATS server instead of this hub ({kit.address}). Run "
                f"in {kit.directory or 'its folder'}: nats-server -c nats.conf"
            )
        self.kit, self.trust, self.tap = kit, kit.trust, tap
        self.connections: dict[str, Connection] = {}
        self.watchers: dict[str, set[str]] = {}  # who is notified when a party connects or disconnects
        self.held: dict[str, int] = {}
        self.room: dict[str, asyncio.Event] = {}
        self.left: dict[str, float] = {}  # when a party's connection ended that has not come back
        self.failures: dict[str, tuple[str, float]] = {}  # the kind of a party's error, and when
        self.relayed = self.relayed_bytes = 0
        self.accepted = self.refused = 0  # connections
        self.limit = open_files.read_limit()
        self.most = open_files.room_for_connections(self.limit)  # connections
        self._told_limit = -TELL_AGAIN  # when the operator was told last
        self.pulse = Pulse()
        self.port = 0
        self.is_accepting = False
        self._server: Any = None
        self._watch: asyncio.Task[None] | None = None
        self._beat: asyncio.Task[None] | None = None

    async def start(self) -> int:
        authority, key, certificate = self.kit.pems()
        self._server = grpc.aio.server(options=HUB_OPTIONS)
        _, service, method = METHOD.split("/")
        handlers = {  # no serializers: bytes in, bytes out
            method: grpc.stream_stream_rpc_method_handler(self._relay),
            CHECK.split("/")[2]: grpc.unary_unary_rpc_method_handler(self._check),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        self.port = 0
        for address in find_addresses(self.kit.listen):
            self.port = self._bind(address, credentials)
        await self._server.start()
        self.is_accepting = True
        self._watch = asyncio.create_task(self._watch_revocations())
        self._beat = asyncio.create_task(self._keep_beating())
        log.info(
            "hub of federation %r listens on %s (port %d)", self.kit.federation, self.kit.listen, self.port
        )
        return self.port

    def _bind(self, address: str, credentials: Any) -> int:
        """Accept connections at one address; return its port."""
        host, _, port = address.rpartition(":")
        if port == "0" and self.port:  # all addresses of a name have the port that the first was given
            address = f"{host}:{self.port}"
        try:
            bound = int(self._server.add_secure_port(address, credentials))
        except RuntimeError:
            bound = 0
        if not bound:  # taken since it was checked
            raise NoHub(f"the hub cannot listen on {address}: the port is taken. Stop whoever uses it.")
        return bound

    async def stop(self) -> None:
        self.is_accepting = False
        for task in (self._watch, self._beat):
            if task is not None:
                task.cancel()
        if self._server is not None:
            await self._server.stop(0)

    async def serve_forever(self) -> None:
        await self._server.wait_for_termination()

    async def _keep_beating(self) -> None:
        for second in itertools.count():
            self.pulse.beat()
            # connections that are not admitted, of anybody, have files, too; 10,000 take 5 ms to count
            if second % COUNT_AGAIN == 0 and (count := open_files.count()) > NEARLY * self.limit:
                self._tell_limit(f"{count} files are open")
            await asyncio.sleep(1.0)

    def _tell_limit(self, what: str) -> None:
        if time.monotonic() - self._told_limit >= TELL_AGAIN:
            self._told_limit = time.monotonic()
            log.warning("%s, of at most %d for this process. %s", what, self.limit, RAISE)

    def why_not_ready(self) -> str:
        """Return "" if parties can connect, else why they cannot."""
        return "" if self.is_accepting else "the hub does not accept connections"

    def metrics(self) -> list[Metric]:
        """Return figures over all parties; another thread may call this."""
        queued = sum(self.held.copy().values())
        return [
            Metric("tacit_hub_connections", "gauge", "parties that are connected", len(self.connections)),
            Metric(
                "tacit_hub_connections_total",
                "counter",
                "connections accepted since the start",
                self.accepted,
            ),
            Metric(
                "tacit_hub_refused_total", "counter", "connections refused or closed by the hub", self.refused
            ),
            Metric(
                "tacit_hub_open_files",
                "gauge",
                "files that are open: one for each connection",
                open_files.count(),
            ),
            Metric("tacit_hub_open_files_limit", "gauge", "files that may be open", self.limit),
            Metric("tacit_hub_envelopes_total", "counter", "sealed envelopes relayed", self.relayed),
            Metric("tacit_hub_bytes_total", "counter", "bytes of envelopes relayed", self.relayed_bytes),
            Metric("tacit_hub_queued_bytes", "gauge", "bytes that wait for slow readers", queued),
        ]

    # --- one connection -------------------------------------------------------------------------------------

    async def _admit(self, context: Any) -> tuple[str, x509.Certificate]:
        certificate = x509.load_pem_x509_certificate(context.auth_context()["x509_pem_cert"][0])
        name = party_of(certificate)
        try:
            self.trust.check(certificate)
        except SealBroken as error:
            self.refused += 1
            log.warning("refused %r from %s: %s", name, context.peer(), error)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        return name, certificate

    async def _check(self, _: bytes, context: Any) -> bytes:
        """Answer a preflight check: whether the certificate is valid, and who is connected."""
        await self._admit(context)
        return json.dumps(
            {
                "federation": self.kit.federation,
                "present": {connection.name: connection.version for connection in self.connections.values()},
                "seconds": {c.name: round(time.monotonic() - c.since) for c in self.connections.values()},
                "left": {name: round(time.monotonic() - at) for name, at in self.left.items()},
            }
        ).encode()

    async def _relay(self, requests: AsyncIterator[bytes], context: Any) -> None:
        name, certificate = await self._admit(context)
        if name not in self.connections and len(self.connections) >= self.most:
            self.refused += 1
            self._tell_limit(f"{len(self.connections)} parties are connected; {name!r} was turned away")
            await context.abort(  # UNAVAILABLE: it tries again
                grpc.StatusCode.UNAVAILABLE,
                f"the hub has {len(self.connections)} connections, as many as its limit of open files "
                f"({self.limit}) allows. {RAISE}",
            )
        version = dict(context.invocation_metadata() or ()).get(VERSION, "")
        connection = Connection(name, certificate, version[:64] if isinstance(version, str) else "")
        old = self.connections.get(name)
        if old is not None:  # a party reconnects before the loss was noticed, or its kit is used twice
            log.info("%r connects again; its older connection is closed", name)
            old.close("another process connected with this party's certificate.")
        self.connections[name] = connection
        self.accepted += 1
        self.failures.pop(name, None)
        self.left.pop(name, None)
        log.info("%r is here (%s)", name, context.peer())
        connection.put(self._welcome(name))
        self._notify(name, PRESENT)
        reader = asyncio.create_task(self._read(requests, connection))
        writer = asyncio.create_task(self._write(connection, context, reader))
        ended = asyncio.create_task(connection.ended.wait())
        try:
            await asyncio.wait((writer, ended), return_when=asyncio.FIRST_COMPLETED)
            if not connection.closed:
                await writer
        finally:
            # before the connection ends, which a party that does not read can delay: accept nothing more from
            # it, and drop what was queued for it
            for task in (reader, writer, ended):
                task.cancel()
            while connection.waiting:
                self._release(connection.waiting.popleft())
            if self.connections.get(name) is connection:
                del self.connections[name]
                self.left[name] = time.monotonic()
                self._notify(name, ABSENT)
                log.info("%r has gone", name)
        if connection.closed:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, connection.closed)

    def _welcome(self, name: str) -> QueuedFrame:
        revoked = pem(self.trust.revoked).decode() if self.trust.revoked else ""
        return QueuedFrame(
            "",
            0,
            pack(
                WELCOME,
                "",
                name,
                json.dumps(
                    {"federation": self.kit.federation, "revoked": revoked, "failed": self._recent_failures()}
                ).encode(),
            ),
        )

    def _recent_failures(self) -> dict[str, tuple[str, float]]:
        """{party: (the kind of its error, seconds since then)}."""
        now = time.monotonic()
        self.failures = {n: (why, at) for n, (why, at) in self.failures.items() if now - at < RECENT}
        return {name: (why, now - at) for name, (why, at) in self.failures.items()}

    async def _read(self, requests: AsyncIterator[bytes], connection: Connection) -> None:
        name = connection.name
        room = self.room.setdefault(name, asyncio.Event())
        try:
            async for data in requests:
                try:
                    envelope = unpack(data)
                    if envelope.kind not in (MAIL, FAILED):
                        raise BadFrame("only the hub sends presence messages.")
                    if envelope.sender != name:
                        raise SealBroken(
                            f"the certificate is that of {name!r}, but an envelope is from "
                            f"{envelope.sender!r}. A party can send only in its own name."
                        )
                except (BadFrame, SealBroken) as error:
                    self.refused += 1
                    log.warning("refused %r: %s", name, error)
                    connection.close(str(error))
                    return
                if envelope.kind == FAILED:
                    self.failures[name] = stopping.to_reason(bytes(envelope.payload)), time.monotonic()
                    receipt = pack(FAILED, name, name)
                    self._enter(connection, QueuedFrame(name, ENTRY + len(receipt), receipt))
                else:
                    for each in (data,) if self.tap is None else self.tap(name, envelope.to, data):
                        self._pass_on(connection, envelope.to, each)
                while self.held.get(name, 0) > QUOTA:
                    room.clear()
                    await room.wait()
        except (grpc.aio.UsageError, asyncio.CancelledError, grpc.RpcError):
            return

    def _pass_on(self, connection: Connection, to: str, data: bytes) -> None:
        sender, receiver = connection.name, self.connections.get(to)
        if receiver is not None or to in self.kit.parties:  # only known names are stored
            self.watchers.setdefault(to, set()).add(sender)
        if receiver is None or receiver.closed:
            self._note(connection, to, ABSENT, sender)
            return
        self.relayed += 1
        self.relayed_bytes += len(data)
        self._enter(receiver, QueuedFrame(sender, ENTRY + len(data), data))

    def _enter(self, connection: Connection, entry: QueuedFrame) -> None:
        if entry.payer:
            self.held[entry.payer] = self.held.get(entry.payer, 0) + entry.size
        connection.put(entry)

    def _note(self, connection: Connection, about: str, state: int, payer: str = "") -> None:
        """Notify a party of another's presence; an unsent note is replaced, so there is at most one."""
        is_new = about not in connection.notes
        connection.notes[about] = state
        if is_new:
            self._enter(connection, QueuedFrame(payer, ENTRY + len(about), b"", about))

    async def _write(self, connection: Connection, context: Any, reader: asyncio.Task[None]) -> None:
        reader.add_done_callback(lambda _: connection.news.set())
        while not connection.closed:
            while connection.waiting and not connection.closed:
                entry, data = connection.next()
                try:
                    await context.write(data)
                finally:
                    self._release(entry)
            if reader.done() and not connection.closed:
                return
            connection.news.clear()
            if not connection.waiting and not connection.closed and not reader.done():
                await connection.news.wait()

    def _release(self, entry: QueuedFrame) -> None:
        if entry.payer:
            self.held[entry.payer] -= entry.size
            if self.held[entry.payer] <= QUOTA // 2 and entry.payer in self.room:
                self.room[entry.payer].set()

    def _notify(self, name: str, state: int) -> None:
        for other in self.watchers.get(name, ()):
            if other in self.connections and other != name:
                self._note(self.connections[other], name, state)

    # --- revocations ----------------------------------------------------------------------------------------

    async def _watch_revocations(self) -> None:
        """Apply a new revocation list in the hub's kit within seconds, also to connected parties."""
        file = None if self.kit.directory is None else Path(self.kit.directory) / "revoked.crl"
        last_change = file.stat().st_mtime_ns if file is not None and file.exists() else 0
        while file is not None:
            await asyncio.sleep(LOOK_AGAIN)
            try:
                if file.stat().st_mtime_ns != last_change:
                    last_change = (
                        file.stat().st_mtime_ns
                    )  # before reading: a change during reading is seen next time
                    self.renew(self.trust.update(file.read_bytes()))
                    if keep_revocations(
                        replace(self.kit, trust=self.trust)
                    ):  # an older list had replaced the one in use
                        log.warning(
                            "%s was older than the revocation list in use; the newer one was written back",
                            file,
                        )
                        last_change = file.stat().st_mtime_ns
            except (OSError, SealBroken) as error:
                log.error("the revocation list was refused: %s", error)

    def renew(self, trust: Trust) -> None:
        """Use a new revocation list: disconnect revoked parties and send the list to all others."""
        is_new, self.trust = trust is not self.trust, trust
        for connection in self.connections.values():
            try:
                trust.check(connection.certificate)
                if is_new:
                    connection.put(self._welcome(connection.name))
            except SealBroken as error:
                log.warning("%r is disconnected: %s", connection.name, error)
                connection.close(str(error))


async def serve(
    kit: Kit, ready: Callable[[int], None] = lambda port: None, monitor: str | None = None
) -> None:
    """Run a hub until cancelled; with `monitor`, answer its operator's probes at that address.

    It raises the limit of open files of this process as far as it may.
    """
    open_files.raise_limit()
    hub = Hub(kit)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            if monitor is not None:
                watching = Monitor(monitor, hub.metrics, hub.why_not_ready, lambda: hub.pulse.is_alive)
                stack.enter_context(watching)
                log.info("monitoring at port %d", watching.port)
            ready(await hub.start())
            await hub.serve_forever()
    finally:
        await hub.stop()
        log.info(
            "relayed %d envelopes, %d bytes in %.0f s",
            hub.relayed,
            hub.relayed_bytes,
            time.monotonic() - began,
        )
