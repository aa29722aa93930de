"""What a process of the same machine can do to parties that exchange messages over Unix sockets: it needs a
party's key to be heard, and is heard in that party's name only.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import SealBroken
from tacit.runtimes import local_streams
from tacit.runtimes.certificates import Authority, Trust, pem
from tacit.runtimes.channel import TRIES
from tacit.runtimes.envelope import MAX_ENVELOPE
from tacit.runtimes.kits import CertificateIdentity, Kit, temporary
from tacit.runtimes.link import Link
from tacit.runtimes.local_streams import LABEL, LENGTH, NONCE, _read, make_proof, verify_proof
from tests.runtimes.net import DEADLINE, Net, catch, throw
from tests.security.mail import until


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as path:
        yield Path(path)


def sockets(folder: Path, *names: str) -> dict[str, str]:
    return {name: str(folder / name) for name in names}


async def dial(path: str, prove: Callable[[bytes], bytes]) -> socket.socket:
    """Dial a party as another program may, with this proof."""
    loop, target = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    target.setblocking(False)
    await loop.sock_connect(target, path)
    proof = prove(await _read(target, NONCE))
    await loop.sock_sendall(target, len(proof).to_bytes(LENGTH, "big") + proof)
    return target


async def is_closed(target: socket.socket) -> bool:
    """Wait until the other side has closed the stream."""
    try:
        return await asyncio.get_running_loop().sock_recv(target, 1) == b""
    except ConnectionError:
        return True
    finally:
        target.close()


def play(folder: Path, attack: Callable[[Net, dict[str, str]], Awaitable[None]]) -> Net:
    """Run an attack while a and b exchange messages, which must arrive; m is a party of the federation."""

    async def run() -> Net:
        local = sockets(folder, *"abm")
        async with Net.of(*"abm") as net:
            begun = asyncio.Event()

            async def throws(me: Any) -> list[int]:
                assert await throw(me, "b", 3) == [0, 1, 2]
                begun.set()
                await until(lambda: attacked.done())
                return await throw(me, "b", 3, size=300_000)

            async def catches(me: Any) -> None:
                await catch(me, "a", 6)

            async def attacks() -> None:
                await begun.wait()
                await attack(net, local)

            attacked = asyncio.create_task(attacks())
            a, _ = await asyncio.gather(
                net.party("a", throws, local=local), net.party("b", catches, local=local)
            )
            await attacked
            assert a == [0, 1, 2]
            return net

    return asyncio.run(asyncio.wait_for(run(), DEADLINE))


def test_without_a_key_of_the_federation_no_byte_is_read(folder: Path) -> None:
    """Another federation's certificate in the name of a, a's certificate without its key, no proof at all."""
    _, foreign = temporary("test", ("a", "b"))

    async def attack(net: Net, local: dict[str, str]) -> None:
        a, m = net.kits["a"], net.kits["m"]
        proofs: list[Callable[[bytes], bytes]] = [
            lambda nonce: make_proof(foreign["a"], "b", nonce),
            lambda nonce: make_proof(replace(a, key=m.key), "b", nonce),
            lambda nonce: make_proof(replace(m, name="a"), "b", nonce),  # a's name, m's certificate and key
            lambda nonce: b"",
            lambda nonce: bytes(700),
        ]
        before = net.links["b"].local._incoming["a"]
        for proof in proofs:
            assert await is_closed(await dial(local["b"], proof))
        assert net.links["b"].local._incoming == {"a": before}

    net = play(folder, attack)
    assert sum("a stream was refused" in note for note in net.links["b"].notes) == 5


def test_a_proof_holds_for_one_stream_to_one_listener_and_is_no_other_signature() -> None:
    _, kits = temporary("test", ("a", "b", "c"))
    nonce, other = bytes(NONCE), b"\1" * NONCE
    proof = make_proof(kits["a"], "b", nonce)
    assert verify_proof(kits["b"], nonce, proof)[0] == "a"
    for kit, challenge in ((kits["b"], other), (kits["c"], nonce)):  # replayed; passed on to another listener
        with pytest.raises(SealBroken, match="has the certificate of 'a', but not its key"):
            verify_proof(kit, challenge, proof)
    signature = CertificateIdentity(lambda: kits["a"]).sign(LABEL + nonce + b"b")
    with pytest.raises(SealBroken):  # of a protocol
        verify_proof(kits["b"], nonce, b"\0\1a" + signature)


def test_a_party_is_heard_in_its_own_name_only(folder: Path) -> None:
    """What m sends counts as m's, until it is not read any more; the channel of a and b is not affected."""

    async def attack(net: Net, local: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        m = await dial(local["b"], lambda nonce: make_proof(net.kits["m"], "b", nonce))
        for _ in range(TRIES):
            await loop.sock_sendall(m, (200).to_bytes(LENGTH, "big") + b"?" * 200)
        await until(
            lambda: "m" in net.links["b"].channels and net.links["b"].channels["m"].failure is not None
        )
        assert net.links["b"].channels["a"].failure is None
        m.close()

    play(folder, attack)


def test_sizes_no_payload_has_close_the_stream_before_they_are_read(folder: Path) -> None:
    async def attack(net: Net, local: dict[str, str]) -> None:
        loop, b = asyncio.get_running_loop(), net.links["b"]
        m = await dial(local["b"], lambda nonce: make_proof(net.kits["m"], "b", nonce))
        await loop.sock_sendall(m, (MAX_ENVELOPE + 1).to_bytes(LENGTH, "big"))
        assert await is_closed(m)
        assert any(f"'m' sent {MAX_ENVELOPE + 1} bytes at once" in note for note in b.notes)
        proof = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # and as a proof
        proof.setblocking(False)
        await loop.sock_connect(proof, local["b"])
        await loop.sock_sendall(proof, b"\xff" * LENGTH)
        await _read(proof, NONCE)
        assert await is_closed(proof)

    play(folder, attack)


def test_a_silent_dialer_is_dropped_and_delays_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def attack(net: Net, local: dict[str, str]) -> None:
        monkeypatch.setattr(local_streams, "PROVE", 0.05)  # the parties' own streams are open already
        silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        silent.setblocking(False)
        await asyncio.get_running_loop().sock_connect(silent, local["b"])
        await _read(silent, NONCE)
        assert await is_closed(silent)

    play(folder, attack)


def test_a_revoked_party_is_cut_off_at_once(folder: Path) -> None:
    authority = Authority.new("test")
    trust = Trust(authority.certificate, authority.revocations(()))

    def kit(name: str) -> Kit:
        return Kit(name, "client", "127.0.0.1:9", *authority.issue(name, "client"), trust, ("a", "b"))

    a, b = kit("a"), kit("b")
    newer = authority.revocations([a.certificate.serial_number])

    async def run() -> None:
        local = sockets(folder, "a", "b")
        async with Link(b, local=local, patience=DEADLINE) as link:
            stream = await dial(local["b"], lambda nonce: make_proof(a, "b", nonce))
            await until(lambda: "a" in link.local._incoming)
            welcome = json.dumps({"revoked": pem(newer).decode()})
            link._renew(memoryview(welcome.encode()))  # as the hub sends it
            assert link.local._incoming == {}
            assert await is_closed(stream)
            assert await is_closed(await dial(local["b"], lambda nonce: make_proof(a, "b", nonce)))

    asyncio.run(asyncio.wait_for(run(), DEADLINE))
