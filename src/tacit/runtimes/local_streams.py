"""Streams between the processes of one machine, over Unix sockets: sealed payloads that pass no hub.

    dialer                                       listener
      |<-- nonce --------------------------------|
      |--- name, certificate, sign(nonce, listener) ->|
      |--- payload, payload, … ------------------>|

A stream carries payloads in one direction, so that their order is kept; each party dials those to which it
sends. A payload has its length, four bytes, before it. The payloads are those of the encrypted channels
(channel.py), as they would pass through a hub: sealed from end to end between the two certificates. The
listener takes the name of a dialer from its certificate, as a hub does, so no process can send in the name of
another party. A stream that breaks is dialed again, and the channel sends again what was not confirmed.

Nobody but the two processes (and whoever may read their memory: the user who started both, and root) sees
who sends how much to whom. The folder of the sockets must be open to that user alone.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from ..errors import SealBroken
from .envelope import MAX_ENVELOPE
from .kits import Kit

# separates these signatures from those of handshakes and protocols
LABEL = b"tacit local stream 1 "
NONCE = 32
LENGTH = 4  # bytes of a payload's length
MOST_PROOF = 8192  # a name, a certificate and a signature take about 800 bytes
WAIT = (0.01, 0.2)  # seconds between attempts to dial a party that is not there: doubling
PROVE = 10.0  # seconds a dialer has to prove who it is; a stopped process can hold no more
SOCKET_BUFFER = 1 << 20  # asked for; systems give less, Linux 208 kB

Parts = tuple[bytes, bytes]


class LocalStreams:
    """The streams of one party. `paths`: the socket of each party of the machine, this one's too."""

    def __init__(
        self,
        kit: Callable[[], Kit],
        paths: Mapping[str, str],
        pull: Callable[[str], Parts | None],
        receive: Callable[[str, memoryview], None],
        on_presence: Callable[[str, bool], None],
        fail: Callable[[BaseException], None],
        note: Callable[[str], None],
    ):
        self.kit, self.paths = kit, {name: str(path) for name, path in paths.items()}
        self.pull = pull  # the next payload for a party, if there is one
        self.receive = receive
        self.on_presence = on_presence  # a party can be reached now, or no longer
        self.fail, self.note = fail, note
        self._listener: socket.socket | None = None
        self._dialed: set[socket.socket] = set()  # accepted streams whose dialers have not proved their names
        self._incoming: dict[str, _Incoming] = {}
        self._outgoing: dict[str, _Outgoing] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.paths

    def open(self) -> None:
        path = self.paths[self.kit().name]
        with suppress(FileNotFoundError):
            os.unlink(path)  # of a process that was killed
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(path)
        self._listener.listen(128)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def start(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def close(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # also if the party is canceled a second time, while it waits
            for dialed in self._dialed:  # whose tasks were canceled before they had begun
                dialed.close()
            for incoming in list(self._incoming.values()):
                incoming.close()

    def wake(self, name: str) -> None:
        """There is, or may be, something to send to this party."""
        if name not in self._outgoing:
            self._outgoing[name] = _Outgoing(self, name)
            self.start(self._outgoing[name].run())
        self._outgoing[name].news.set()

    def renew(self) -> None:
        """Close the streams of parties whose certificate has been revoked."""
        for name, incoming in list(self._incoming.items()):
            try:
                self.kit().trust.check(incoming.certificate)
            except SealBroken as error:
                self.note(f"the stream of {name!r} is closed: {error}")
                incoming.close()

    # --- streams to this party ------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept a stream: not in a task, which could be canceled when it has the socket and lose it."""
        assert self._listener is not None
        try:
            dialed, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # such as too many open files
            asyncio.get_running_loop().remove_reader(self._listener)
            self.fail(error)
            return
        dialed.setblocking(False)
        self._dialed.add(dialed)
        self.start(self._admit(dialed))

    async def _admit(self, dialed: socket.socket) -> None:
        """Begin to read a stream whose dialer has proved its name."""
        try:
            async with asyncio.timeout(PROVE):
                name, certificate = await self._identify(dialed)
        except (OSError, EOFError, SealBroken) as error:  # TimeoutError is an OSError
            dialed.close()
            if isinstance(error, SealBroken):
                self.note(f"a stream was refused: {error}")
            return
        except BaseException:
            dialed.close()
            raise
        finally:
            self._dialed.discard(dialed)
        if name in self._incoming:  # its process was started again before the loss was noticed
            self._incoming[name].close()
        self._incoming[name] = _Incoming(self, name, certificate, dialed)
        if name in self._outgoing:
            self._outgoing[name].is_there.set()  # do not wait until the next attempt to dial it

    async def _identify(self, dialed: socket.socket) -> tuple[str, x509.Certificate]:
        loop, kit, nonce = asyncio.get_running_loop(), self.kit(), secrets.token_bytes(NONCE)
        await loop.sock_sendall(dialed, nonce)
        size = int.from_bytes(await _read(dialed, LENGTH), "big")
        if size > MOST_PROOF:
            raise SealBroken(f"its dialer sent {size} bytes as a proof of its name.")
        proof = await _read(dialed, size)
        name, certificate = verify_proof(kit, nonce, proof)
        if name == kit.name or name not in self.paths:
            raise SealBroken(f"{name!r} is no other party of this machine.")
        return name, certificate

    def _forget(self, incoming: _Incoming) -> None:
        if self._incoming.get(incoming.name) is incoming:
            del self._incoming[incoming.name]


def make_proof(kit: Kit, listener: str, nonce: bytes) -> bytes:
    """Return a dialer's certificate and signature for one stream to one listener."""
    name, der = kit.name.encode(), kit.der
    return b"".join(
        (
            len(name).to_bytes(2, "big"),
            name,
            len(der).to_bytes(2, "big"),
            der,
            kit.sign(LABEL + nonce + listener.encode()),
        )
    )


def verify_proof(kit: Kit, nonce: bytes, proof: bytes) -> tuple[str, x509.Certificate]:
    """Return the name and certificate of a stream's dialer, or raise SealBroken."""
    a = 2 + int.from_bytes(proof[:2], "big")
    b = a + 2 + int.from_bytes(proof[a : a + 2], "big")
    name, der, signature = proof[2:a].decode(errors="replace"), proof[a + 2 : b], proof[b:]
    key = kit.trust.party(der, name)
    try:
        key.verify(signature, LABEL + nonce + kit.name.encode(), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise SealBroken(f"its dialer has the certificate of {name!r}, but not its key.") from None
    return name, x509.load_der_x509_certificate(der)


async def _read(source: socket.socket, size: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < size:
        more = await loop.sock_recv(source, size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


class _Incoming:
    """A stream that is read: every payload is received in place, from one buffer that is used again."""

    def __init__(
        self, streams: LocalStreams, name: str, certificate: x509.Certificate, source: socket.socket
    ):
        self.streams, self.name, self.certificate, self.source = streams, name, certificate, source
        self.buffer = memoryview(bytearray(LENGTH + MAX_ENVELOPE))
        self.filled = 0
        self.is_open = True
        source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
        asyncio.get_running_loop().add_reader(source, self._on_readable)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().remove_reader(self.source)
            self.source.close()
            self.streams._forget(self)

    def _on_readable(self) -> None:
        try:
            count = self.source.recv_into(self.buffer[self.filled :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self.filled += count
        try:
            self._take_payloads()
        except Exception as error:  # of the program's side; without this the loop would only log it
            self.close()
            self.streams.fail(error)

    def _take_payloads(self) -> None:
        at = 0
        while self.filled - at >= LENGTH:
            begin = at + LENGTH
            size = int.from_bytes(self.buffer[at:begin], "big")
            if size > MAX_ENVELOPE:
                self.streams.note(f"{self.name!r} sent {size} bytes at once; its stream is closed")
                self.close()
                return
            if self.filled - begin < size:
                break
            self.streams.receive(self.name, self.buffer[begin : begin + size])
            at = begin + size
        if at:
            self.buffer[: self.filled - at] = self.buffer[at : self.filled]
            self.filled -= at


class _Outgoing:
    """A stream that is written, and dialed again when it breaks."""

    def __init__(self, streams: LocalStreams, peer: str):
        self.streams, self.peer = streams, peer
        self.news, self.is_there = asyncio.Event(), asyncio.Event()
        self.is_lost = False

    async def run(self) -> None:
        wait = WAIT[0]
        while True:
            self.is_there.clear()
            try:
                target = await self._dial()
            except (OSError, EOFError):  # TimeoutError is an OSError
                self.streams.on_presence(self.peer, False)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.is_there.wait(), wait)
                wait = min(2 * wait, WAIT[1])
                continue
            wait, self.is_lost = WAIT[0], False
            loop = asyncio.get_running_loop()
            loop.add_reader(target, self._on_end)
            try:
                self.streams.on_presence(self.peer, True)
                await self._write(target)
            except OSError:
                pass
            finally:
                loop.remove_reader(target)
                target.close()
            self.streams.on_presence(self.peer, False)

    async def _dial(self) -> socket.socket:
        loop, kit = asyncio.get_running_loop(), self.streams.kit()
        target = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            target.setblocking(False)
            target.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
            async with asyncio.timeout(PROVE):
                await loop.sock_connect(target, self.streams.paths[self.peer])
                proof = make_proof(kit, self.peer, await _read(target, NONCE))
                await loop.sock_sendall(target, len(proof).to_bytes(LENGTH, "big") + proof)
        except BaseException:
            target.close()
            raise
        return target

    def _on_end(self) -> None:
        """The listener writes nothing after its nonce: it has closed the stream."""
        self.is_lost = True
        self.news.set()

    async def _write(self, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while not self.is_lost:
            self.news.clear()  # first: an event during writing sets it again
            while not self.is_lost and (parts := self.streams.pull(self.peer)) is not None:
                head, sealed = parts
                front = (len(head) + len(sealed)).to_bytes(LENGTH, "big") + head
                try:
                    count = target.sendmsg((front, sealed))
                except (BlockingIOError, InterruptedError):
                    count = 0
                if count < len(front):
                    await loop.sock_sendall(target, front[count:])
                    count = len(front)
                if count < len(front) + len(sealed):
                    await loop.sock_sendall(target, memoryview(sealed)[count - len(front) :])
            if not self.is_lost:
                await self.news.wait()
