"""The hub: parties dial out to it, and it relays what they say to each other. It reads envelopes, never
letters.

Who someone is, the connection's certificate says (mutual TLS); an envelope in another's name ends the
connection. Nothing is kept for a party that is not there, and nothing on disk: parties hold what was not
confirmed and send it again, so a hub may be killed and started at any time. A sender whose mail waits for
slow readers is not read from until they have caught up: it holds at most QUOTA bytes here, and stops nobody
else. What the hub itself has to say is bounded, too: of each party a desk holds one note, whether it is
there, and a note about a party that is not counts as its sender's mail.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from cryptography import x509

from ..errors import BadFrame, BadKit, NoHub, SealBroken
from .certificates import Trust, party_of, pem
from .envelope import ABSENT, CHECK, MAIL, MAX_ENVELOPE, METHOD, PRESENT, VERSION, WELCOME, pack, unpack
from .kits import Kit, keep_revocations

log = logging.getLogger("tacit.hub")
QUOTA = 64 << 20  # bytes of one sender that may wait here
ENTRY = 256  # bytes that count beside an envelope's own: about what Python takes for a waiting one
HEARTBEAT = 10.0  # seconds; half-open connections are noticed after about twice this
LOOK_AGAIN = 2.0  # seconds between looks at the list of revocations
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_ENVELOPE),
    ("grpc.max_send_message_length", MAX_ENVELOPE),
    ("grpc.keepalive_time_ms", int(1000 * HEARTBEAT)),
    ("grpc.keepalive_timeout_ms", int(1000 * HEARTBEAT)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


class QueuedFrame(NamedTuple):
    payer: str  # on whose quota it counts; "": nobody's
    size: int  # what it counts
    data: bytes
    about: str | None = None  # a note whether this party is here; what it says is in the desk's notes


class Connection:
    """A connected party: what waits to be written to it."""

    def __init__(self, name: str, certificate: x509.Certificate, version: str = ""):
        self.name, self.certificate, self.version = (
            name,
            certificate,
            version,
        )  # the version is what it says, for preflight; the server asks by itself
        self.waiting: deque[QueuedFrame] = deque()
        self.notes: dict[str, int] = {}  # ABSENT or PRESENT, by party: one for each, the latest
        self.news, self.ended = asyncio.Event(), asyncio.Event()
        self.closed = ""

    def put(self, entry: QueuedFrame) -> None:
        self.waiting.append(entry)
        self.news.set()

    def next(self) -> tuple[QueuedFrame, bytes]:
        """The entry to be written now, taken out, and its bytes."""
        entry = self.waiting.popleft()
        return entry, pack(
            self.notes.pop(entry.about), entry.about, self.name
        ) if entry.about is not None else entry.data

    def close(self, why: str) -> None:
        self.closed = why
        self.news.set()
        self.ended.set()


class Hub:
    """`tap(sender, to, data)`, for tests, sees all the hub sees and may give other bytes, or several, or
    none.
    """

    def __init__(self, kit: Kit, tap: Callable[[str, str, bytes], list[bytes]] | None = None):
        if kit.role != "hub":
            raise BadKit(f"this is the kit of {kit.name!r} (a {kit.role}); a hub needs the hub's own kit.")
        self.kit, self.trust, self.tap = kit, kit.trust, tap
        self.connections: dict[str, Connection] = {}
        self.asked: dict[str, set[str]] = {}  # who wants to know when a party comes and goes
        self.held: dict[str, int] = {}
        self.room: dict[str, asyncio.Event] = {}
        self.relayed = self.relayed_bytes = 0
        self.port = 0
        self._server: Any = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> int:
        authority, key, certificate = self.kit.pems()
        self._server = grpc.aio.server(
            options=[
                *OPTIONS,
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
                ("grpc.so_reuseport", 0),
            ]
        )
        handler = grpc.stream_stream_rpc_method_handler(self._relay)  # no serialisers: bytes in, bytes out
        _, service, method = METHOD.split("/")
        look = grpc.unary_unary_rpc_method_handler(self._check)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler, CHECK.split("/")[2]: look}),)
        )
        credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        try:
            self.port = self._server.add_secure_port(self.kit.listen, credentials)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise NoHub(
                f"the hub cannot listen on {self.kit.listen}: the port is taken, or this machine has no "
                "such address. "
                "Stop whoever uses it, or set `listen` in party.toml."
            )
        await self._server.start()
        self._watch = asyncio.create_task(self._look_at_revocations())
        log.info(
            "hub of federation %r listens on %s (port %d)", self.kit.federation, self.kit.listen, self.port
        )
        return self.port

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            await self._server.stop(0)

    async def serve_forever(self) -> None:
        await self._server.wait_for_termination()

    # --- one connection -------------------------------------------------------------------------------------

    async def _admit(self, context: Any) -> tuple[str, x509.Certificate]:
        certificate = self._certificate(context)
        name = party_of(certificate)
        try:
            self.trust.check(certificate)
        except SealBroken as error:
            log.warning("refused %r from %s: %s", name, context.peer(), error)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        return name, certificate

    async def _check(self, _: bytes, context: Any) -> bytes:
        """For a party that looks before it takes part: whether its certificate counts, and who is here, with
        which version. It disturbs nobody.
        """
        await self._admit(context)
        return json.dumps(
            {
                "federation": self.kit.federation,
                "present": {desk.name: desk.version for desk in self.connections.values()},
            }
        ).encode()

    async def _relay(self, requests: AsyncIterator[bytes], context: Any) -> None:
        name, certificate = await self._admit(context)
        said = dict(context.invocation_metadata() or ()).get(VERSION, "")
        desk = Connection(name, certificate, said[:64] if isinstance(said, str) else "")
        old = self.connections.get(name)
        if (
            old is not None
        ):  # a party that lost its connection comes back before we noticed, or its kit is used twice
            log.info("%r connects again; its older connection is closed", name)
            old.close("another process connected with this party's certificate.")
        self.connections[name] = desk
        log.info("%r is here (%s)", name, context.peer())
        desk.put(self._welcome(name))
        self._tell(name, PRESENT)
        reader = asyncio.create_task(self._read(name, requests, context, desk))
        writer = asyncio.create_task(self._write(desk, context, reader))
        ended = asyncio.create_task(desk.ended.wait())
        try:
            await asyncio.wait((writer, ended), return_when=asyncio.FIRST_COMPLETED)
            if not desk.closed:
                await writer
        finally:
            # before the connection ends, which a party that does not read can put off: nothing more is taken
            # from it, and what waited for it is forgotten
            for task in (reader, writer, ended):
                task.cancel()
            while desk.waiting:
                self._release(desk.waiting.popleft())
            if self.connections.get(name) is desk:
                del self.connections[name]
                self._tell(name, ABSENT)
                log.info("%r has gone", name)
        if desk.closed:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, desk.closed)

    def _welcome(self, name: str) -> QueuedFrame:
        revoked = pem(self.trust.revoked).decode() if self.trust.revoked else ""
        return QueuedFrame(
            "",
            0,
            pack(
                WELCOME,
                "",
                name,
                json.dumps({"federation": self.kit.federation, "revoked": revoked}).encode(),
            ),
        )

    @staticmethod
    def _certificate(context: Any) -> x509.Certificate:
        return x509.load_pem_x509_certificate(context.auth_context()["x509_pem_cert"][0])

    async def _read(self, name: str, requests: AsyncIterator[bytes], context: Any, desk: Connection) -> None:
        room = self.room.setdefault(name, asyncio.Event())
        try:
            async for data in requests:
                try:
                    envelope = unpack(data)
                    if envelope.kind != MAIL:
                        raise BadFrame("only the hub says who is there.")
                    if envelope.sender != name:
                        raise SealBroken(
                            f"the certificate is that of {name!r}, and an envelope says it is from "
                            f"{envelope.sender!r}. "
                            "A party speaks under its own name only."
                        )
                except (BadFrame, SealBroken) as error:
                    log.warning("refused %r: %s", name, error)
                    desk.close(str(error))
                    return
                for each in (data,) if self.tap is None else self.tap(name, envelope.to, data):
                    self._pass_on(desk, envelope.to, each)
                while self.held.get(name, 0) > QUOTA:
                    room.clear()
                    await room.wait()
        except (grpc.aio.UsageError, asyncio.CancelledError, grpc.RpcError):
            return

    def _pass_on(self, desk: Connection, to: str, data: bytes) -> None:
        sender, there = desk.name, self.connections.get(to)
        if there is not None or to in self.kit.parties:  # no list of names nobody has
            self.asked.setdefault(to, set()).add(sender)
        if there is None or there.closed:
            self._note(desk, to, ABSENT, sender)
            return
        self.relayed += 1
        self.relayed_bytes += len(data)
        self._enter(there, QueuedFrame(sender, ENTRY + len(data), data))

    def _enter(self, desk: Connection, entry: QueuedFrame) -> None:
        if entry.payer:
            self.held[entry.payer] = self.held.get(entry.payer, 0) + entry.size
        desk.put(entry)

    def _note(self, desk: Connection, about: str, what: int, payer: str = "") -> None:
        """Tell a party who is here and who is not. A note that still waits is changed, so that there is never
        more than one about a party.
        """
        is_new = about not in desk.notes
        desk.notes[about] = what
        if is_new:
            self._enter(desk, QueuedFrame(payer, ENTRY + len(about), b"", about))

    async def _write(self, desk: Connection, context: Any, reader: asyncio.Task[None]) -> None:
        reader.add_done_callback(lambda _: desk.news.set())
        while not desk.closed:
            while desk.waiting and not desk.closed:
                entry, data = desk.next()
                try:
                    await context.write(data)
                finally:
                    self._release(entry)
            if reader.done() and not desk.closed:
                return
            desk.news.clear()
            if not desk.waiting and not desk.closed and not reader.done():
                await desk.news.wait()

    def _release(self, entry: QueuedFrame) -> None:
        if entry.payer:
            self.held[entry.payer] -= entry.size
            if self.held[entry.payer] <= QUOTA // 2 and entry.payer in self.room:
                self.room[entry.payer].set()

    def _tell(self, name: str, what: int) -> None:
        for other in self.asked.get(name, ()):
            if other in self.connections and other != name:
                self._note(self.connections[other], name, what)

    # --- revocations ----------------------------------------------------------------------------------------

    async def _look_at_revocations(self) -> None:
        """A new list laid into the hub's kit takes effect within seconds, for those who are connected too."""
        file = None if self.kit.directory is None else Path(self.kit.directory) / "revoked.crl"
        seen = file.stat().st_mtime_ns if file is not None and file.exists() else 0
        while file is not None:
            await asyncio.sleep(LOOK_AGAIN)
            try:
                if file.stat().st_mtime_ns != seen:
                    seen = (
                        file.stat().st_mtime_ns
                    )  # before it is read: a change while it is read is seen at the next look
                    self.renew(self.trust.updated(file.read_bytes()))
                    if keep_revocations(
                        replace(self.kit, trust=self.trust)
                    ):  # an older list was copied over the one this hub knows
                        log.warning(
                            "%s was older than the list of revocations in use; the newer one was written "
                            "back",
                            file,
                        )
                        seen = file.stat().st_mtime_ns
            except (OSError, SealBroken) as error:
                log.error("the list of revocations was not taken over: %s", error)

    def renew(self, trust: Trust) -> None:
        """Use this list of revocations from now on: send those away who are on it, and the list to all
        others.
        """
        is_new, self.trust = trust is not self.trust, trust
        for desk in self.connections.values():
            try:
                trust.check(desk.certificate)
                if is_new:
                    desk.put(self._welcome(desk.name))
            except SealBroken as error:
                log.warning("%r is sent away: %s", desk.name, error)
                desk.close(str(error))


async def serve(kit: Kit, ready: Callable[[int], None] = lambda port: None) -> None:
    """Run a hub until cancelled."""
    hub = Hub(kit)
    began = time.monotonic()
    ready(await hub.start())
    try:
        await hub.serve_forever()
    finally:
        await hub.stop()
        log.info(
            "relayed %d envelopes, %d bytes in %.0f s",
            hub.relayed,
            hub.relayed_bytes,
            time.monotonic() - began,
        )
