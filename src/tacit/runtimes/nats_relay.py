"""Envelopes over the subjects of a NATS server, in place of tacit's own hub.

    tacit.F.TO.FROM       envelopes to party TO; the server lets FROM alone publish it, and TO alone subscribe
    tacit.F._here.FROM    FROM has connected: those who have sent something to it listen
    tacit.F._who.FROM     FROM asks who is connected; tacit.F._seen.X is X' answer

F is the digest of the federation's authority. Certificates are the federation's: the server's is that of the
hub's kit, and it maps the certificate of each party to what that party may publish (`write_config`). A server
that several federations share has a certificate of its own, and knows parties by their keys
(nats_sharing.py). As with the hub, channels are sealed between parties: the server reads names and sizes, and
may lose messages.

The server says that nobody subscribes to a subject (503): then its party is absent. A party that was there is
asked about again every few seconds, because NATS does not tell who leaves. Who sends something to a party for
the first time sends its revocation list first, so that a new list spreads from the party that got it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from cryptography.hazmat.primitives.serialization import Encoding

from ..errors import BadFrame, NoHub
from .certificates import Trust, pem, subject_of
from .envelope import ABSENT, FAILED, MAIL, PRESENT, WELCOME, pack, unpack
from .kits import Kit
from .nats_client import NO_RESPONDERS, OPENING, NatsClient, NatsLost
from .nkeys import NKey
from .relay import Writer

log = logging.getLogger("tacit.party")
ASK_AGAIN = 5.0  # seconds between questions whether parties are still there
A_SECOND = 100  # questions a second at most: parties of a server
ANSWER_AGAIN = 1.0  # seconds between two answers to one party that asks who is connected
HERE, WHO, SEEN = "_here", "_who", "_seen"  # no party's name begins with _
ASK, ANSWER = b"?", b"!"


def token(name: str) -> str:
    """Return a party's name as a part of a subject, whose parts are separated by dots."""
    return name.replace(".", "~")


def name_of(part: str) -> str:
    return part.replace("~", ".")


def prefix_of(trust: Trust) -> str:
    digest = hashlib.sha256(trust.authority.public_bytes(Encoding.DER)).hexdigest()
    return f"tacit.{digest[:16]}"


def addresses_of(address: str) -> list[tuple[str, int]]:
    """Parse "nats://host:port", or several with commas; raise ValueError."""
    found = []
    for each in address.split(","):
        scheme, _, rest = each.strip().partition("://")
        host, _, port = rest.rpartition(":")
        if scheme != "nats" or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(each)
        found.append((host, int(port)))
    return found


class NatsRelay:
    def __init__(self, kit: Callable[[], Kit], life: bytes, version: str):
        self.kit, self.life, self.version = kit, life, version
        self.me = token(kit().name)
        self.prefix = prefix_of(kit().trust)
        self.addresses = addresses_of(kit().address)
        self.peers: set[str] = set()  # parties that something was sent to over this connection
        self.absent: set[str] = set()
        self.informed: set[str] = set()  # peers that were sent the revocation list since they connected
        self.began = time.monotonic()
        self.answered: dict[str, float] = {}
        self._outbox: list[tuple[str, bytes]] = []  # answers of the relay itself: (subject, payload)
        self._news = asyncio.Event()
        self._read: Callable[[bytes], None] = lambda data: None
        self._client: NatsClient | None = None

    async def talk(
        self,
        opened: Callable[[], None],
        read: Callable[[bytes], None],
        write: Writer,
    ) -> str:
        self.addresses.append(self.addresses.pop(0))  # another server of the cluster each time
        try:
            client = await open_client(self.kit(), self.addresses[-1])
        except NatsLost as error:
            return str(error)
        self._client, self._read, self.began = client, read, time.monotonic()
        self.peers.clear()
        self.absent.clear()
        self.informed.clear()
        self._outbox.clear()
        tasks = [asyncio.create_task(client.read(self._receive))]
        try:
            mine = (f"{self.me}.*", f"{HERE}.{self.me}", f"{WHO}.*")
            await client.subscribe(*(f"{self.prefix}.{subject}" for subject in mine))
            await client.publish(f"{self.prefix}.{HERE}.{self.me}", self.life.hex().encode())
            await _first(asyncio.create_task(client.flush()), tasks[0])
            opened()
            tasks += [asyncio.create_task(write(self._send)), asyncio.create_task(self._ask_and_answer())]
            await _first(*tasks)
            return "the NATS server ended the connection"
        except NatsLost as error:
            return str(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()

    # --- out ------------------------------------------------------------------------------------------------

    async def _send(self, data: bytes) -> None:
        envelope, client = unpack(data), self._client
        assert client is not None
        if envelope.kind == FAILED:  # nobody keeps it for parties that connect later
            self._read(pack(FAILED, self.kit().name, self.kit().name))
            return
        if envelope.to not in self.peers:  # first: nobody may come between the message and this
            self.peers.add(envelope.to)
            await client.subscribe(f"{self.prefix}.{HERE}.{token(envelope.to)}")
        if envelope.to not in self.informed:
            self.informed.add(envelope.to)
            if revoked := self._revoked():
                await self._publish(envelope.to, pack(WELCOME, self.kit().name, envelope.to, revoked))
        await self._publish(envelope.to, data)

    async def _publish(self, to: str, data: bytes) -> None:
        """Publish to a party; if it is absent, the server says so on the subject of its answers."""
        assert self._client is not None
        there, here = token(to), self.me
        await self._client.publish(
            f"{self.prefix}.{there}.{here}", data, reply=f"{self.prefix}.{here}.{there}"
        )

    async def _ask_and_answer(self) -> None:
        asked = time.monotonic()
        while True:
            self._news.clear()
            while self._outbox:
                subject, payload = self._outbox.pop(0)
                assert self._client is not None
                await self._client.publish(f"{self.prefix}.{subject}", payload)
            every = max(ASK_AGAIN, len(self.peers) / A_SECOND)
            if time.monotonic() - asked > every:
                for peer in tuple(self.peers):
                    # one that is there need not answer; of one that was absent, its coming may have been lost
                    await self._publish(peer, ASK if peer in self.absent else b"")
                asked = time.monotonic() - every * random.uniform(0, 0.2)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(1.0, ASK_AGAIN))

    def _answer(self, subject: str, payload: bytes) -> None:
        if (subject, payload) not in self._outbox:  # a party that asks faster than this one answers
            self._outbox.append((subject, payload))
        self._news.set()

    # --- in -------------------------------------------------------------------------------------------------

    def _receive(self, subject: str, status: int, payload: bytes) -> None:
        parts = subject.removeprefix(self.prefix + ".").split(".")
        if len(parts) != 2:
            return
        place, sender = parts[0], name_of(parts[1])
        if place == self.me:
            self._on_mail(sender, status, payload)
        elif place == HERE:
            self._on_here(sender, payload)
        elif place == WHO and sender in self.kit().parties:
            now = time.monotonic()
            if now - self.answered.get(sender, -ANSWER_AGAIN) >= ANSWER_AGAIN:
                self.answered[sender] = now
                text = {"version": self.version, "seconds": round(now - self.began)}
                self._answer(f"{SEEN}.{self.me}", json.dumps(text).encode())

    def _on_mail(self, sender: str, status: int, payload: bytes) -> None:
        me = self.kit().name
        if status == NO_RESPONDERS:
            self.absent.add(sender)
            self.informed.discard(sender)
            self._read(pack(ABSENT, sender, me))
        elif payload == ASK:
            self._answer(f"{token(sender)}.{self.me}", ANSWER)
        elif payload == ANSWER:
            self._set_present(sender)
        elif payload:
            try:
                envelope = unpack(payload)
                if envelope.kind not in (MAIL, WELCOME) or envelope.sender != sender:
                    raise BadFrame(f"it is of kind {envelope.kind} in the name of {envelope.sender!r}.")
            except BadFrame as error:
                log.warning("party %r: a message of %r was dropped: %s", me, sender, error)
                return
            if envelope.kind == WELCOME:  # a newer revocation list
                self._learn(bytes(envelope.payload))
            else:
                self.absent.discard(sender)
                self._read(payload)

    def _set_present(self, name: str) -> None:
        if name in self.absent:
            self.absent.discard(name)
            self._read(pack(PRESENT, name, self.kit().name))

    def _on_here(self, sender: str, payload: bytes) -> None:
        """A party has connected; or this one's certificate is used by another process."""
        me = self.kit().name
        if sender != me:
            self.absent.discard(sender)
            self.informed.discard(sender)
            self._read(pack(PRESENT, sender, me))
        elif payload != self.life.hex().encode():
            raise NoHub(f"party {me!r} stops: another process connected with this party's certificate.")

    def _revoked(self) -> bytes:
        revoked = self.kit().trust.revoked
        return pem(revoked) if revoked else b""

    def _learn(self, revoked: bytes) -> None:
        """Have the link use a revocation list, if the authority signed it and it is newer."""
        if revoked != self._revoked():
            text = {"revoked": revoked.decode(errors="replace")}
            self._read(pack(WELCOME, "", self.kit().name, json.dumps(text).encode()))


async def open_client(kit: Kit, address: tuple[str, int], timeout: float = OPENING) -> NatsClient:
    """Connect to one server as the party of a kit; raise NoHub if it never accepts it, else NatsLost."""
    from .preflight import make_context

    nkey = NKey(kit.key, kit.shared.public_bytes(Encoding.DER)) if kit.shared is not None else None
    return await NatsClient.open(*address, make_context(kit), kit.name, timeout, nkey)


async def _first(*tasks: asyncio.Task[None]) -> None:
    """Wait until one of these ends, and raise its error."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def ask_who(kit: Kit, wait: float) -> dict[str, tuple[str, float]]:
    """Return {connected party: (version, seconds since it connected)}: all that answer within `wait`."""
    found: dict[str, tuple[str, float]] = {}
    prefix, me = prefix_of(kit.trust), token(kit.name)

    def receive(subject: str, status: int, payload: bytes) -> None:
        name = name_of(subject.rpartition(".")[2])
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            text = json.loads(payload)
            if name in kit.parties:
                found[name] = str(text["version"])[:64], float(text["seconds"])

    errors: list[Exception] = []
    for address in addresses_of(kit.address):
        try:
            client = await open_client(kit, address)
        except NatsLost as error:
            errors.append(error)
            continue
        reading = asyncio.create_task(client.read(receive))
        try:
            await client.subscribe(f"{prefix}.{SEEN}.*")
            await client.publish(f"{prefix}.{WHO}.{me}", b"")
            await _first(asyncio.create_task(client.flush()), reading)
            await asyncio.wait([reading], timeout=wait)
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            await client.close()
        return found
    raise errors[0]


# What may wait for one party, MB: a server of one federation holds an update of each of hundreds of parties.
# One that federations share has NATS' default, eight windows of a channel, so that none takes all memory. A
# party that reads more slowly is disconnected, connects again, and gets what it had not confirmed.
PENDING, PENDING_SHARED = 512, 64


def limits(pending: int = PENDING) -> tuple[str, ...]:
    """Return lines of a server's configuration, for one federation or for several."""
    return (
        "max_payload: 1MB",
        f"max_pending: {pending}MB  # what may wait for one party",
        'write_deadline: "60s"  # 10 s disconnect a party whose machine is busy',
        'ping_interval: "15s"',
        "ping_max: 2",
    )


def quote(text: str) -> str:
    """Return text in quotes as a NATS configuration takes it; other than JSON, it has no \\u escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if ord(c) >= 32 else f"\\x{ord(c):02x}" for c in escaped) + '"'


def permissions_of(trust: Trust, name: str) -> str:
    """Return what a server lets a party do, as a server's configuration says it."""
    prefix = prefix_of(trust)

    def allow(*subjects: str) -> str:
        return f"{{allow: [{', '.join(quote(f'{prefix}.{s}') for s in subjects)}]}}"

    return (
        f"permissions: {{publish: {allow(f'*.{token(name)}')}, "
        f"subscribe: {allow(f'{token(name)}.*', f'{HERE}.*', f'{WHO}.*', f'{SEEN}.*')}}}"
    )


def write_config(trust: Trust, listen: str, parties: Iterable[tuple[str, str]]) -> str:
    """Return the configuration of a NATS server for a federation; `parties`: (name, role) of each.

    Each party may publish in its own name only, and read what is addressed to it.
    """
    users = [
        f"    {{user: {quote(subject_of(name, trust.federation, role))}, {permissions_of(trust, name)}}}"
        for name, role in parties
    ]
    return "\n".join(
        (
            f"# Federation {trust.federation!r}: written by `tacit provision`, which overwrites it.",
            "# Run in this folder: nats-server -c nats.conf",
            f"listen: {quote(listen)}",
            *limits(),
            "tls {",
            '  cert_file: "./party.crt"',
            '  key_file: "./party.key"',
            '  ca_file: "./authority.crt"',
            "  verify_and_map: true  # the certificate tells which party it is",
            "  timeout: 30  # seconds of a handshake: all parties may connect at once",
            "}",
            "authorization {",
            "  timeout: 30",
            "  users: [",
            ",\n".join(users),
            "  ]",
            "}",
            "",
        )
    )
