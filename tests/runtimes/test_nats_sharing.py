"""Several federations on one NATS server: they work side by side, and none can reach another.

The server is Debian's `nats-server`, with the configuration that `tacit nats` writes. The two federations have
the same name and the same parties; only their authorities differ.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from tacit.errors import BadJob, BadKit, NoHub
from tacit.parties import Runtime
from tacit.runtimes import conformance, nats_relay, nats_sharing, nkeys
from tacit.runtimes.certificates import HUB_NAME, Authority, key_pem, pem, read_certificate, read_key
from tacit.runtimes.channel import WINDOW
from tacit.runtimes.envelope import MAIL, pack
from tacit.runtimes.kits import Kit, load
from tacit.runtimes.link import Link
from tacit.runtimes.nats_client import NatsClient, NatsLost
from tacit.runtimes.nkeys import NKey
from tacit.runtimes.preflight import check_admission, reach
from tacit.runtimes.provision import provision, read_federation_file
from tests.cli.shell import refused, said
from tests.ports import free_port
from tests.security.mail import until

from .net import DEADLINE, OPTIONS, NetBall, catch, exchange, throw
from .test_nats import CLIENTS, NAMES, OverNats, find_server

NAME = "hearts"


class Shared:
    """A NATS server and federations on it, each in a folder of its own."""

    def __init__(self, folder: Path, federations: tuple[str, ...] = ("ours", "theirs")):
        self.port, self.folder = free_port(), folder
        self.process: subprocess.Popen[bytes] | None = None
        nats_sharing.write_server(folder / "nats", (), ("127.0.0.1",))
        for federation in federations:
            self.provision(federation)
        self.join(*federations)
        self.kits = {
            federation: {name: load(folder / federation / name) for name in NAMES}
            for federation in federations
        }

    def provision(self, federation: str, revoke: tuple[str, ...] = ()) -> None:
        file = self.folder / f"{federation}.toml"
        file.write_text(
            f'name = "{NAME}"\nhub = "nats://127.0.0.1:{self.port}"\nclients = {json.dumps(CLIENTS)}\n'
            'shared = "nats/authority/authority.crt"\n'
        )
        provision(read_federation_file(file), self.folder / federation, revoke)

    def members(self, federation: str) -> Path:
        return self.folder / federation / "members.json"

    def join(self, *federations: str) -> None:
        files = [str(self.members(federation)) for federation in federations]
        nats_sharing.write_server(self.folder / "nats", files, listen=f"127.0.0.1:{self.port}")

    @property
    def authority(self) -> x509.Certificate:
        file = self.folder / "nats" / "authority" / "authority.crt"
        return read_certificate(file.read_bytes(), str(file))

    def start(self) -> None:
        self.process = start(self.folder / "nats" / "server")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def prefix(self, federation: str) -> str:
        return nats_relay.prefix_of(self.kits[federation]["a"].trust)

    async def run(self, federation: str, **programs: Any) -> dict[str, Any]:
        async def party(name: str, program: Any) -> Any:
            async with Link(self.kits[federation][name], **OPTIONS) as link:  # type: ignore[arg-type]
                return await link.run(program)

        async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
            tasks = {n: group.create_task(party(n.replace("_", "."), p)) for n, p in programs.items()}
        return {name: task.result() for name, task in tasks.items()}


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [find_server(), "-c", "nats.conf"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    server = Shared(tmp_path_factory.mktemp("shared"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Shared]:
    """A server that the test may change."""
    server = Shared(tmp_path)
    server.start()
    yield server
    server.kill()


async def open_patiently(kit: Kit) -> NatsClient:
    (address,) = nats_relay.addresses_of(kit.address)
    for _ in range(600):
        try:
            return await nats_relay.open_client(kit, address)
        except NatsLost:  # the server is still starting
            await asyncio.sleep(0.1)
    raise AssertionError("the server did not start")


@asynccontextmanager
async def client_of(kit: Kit) -> AsyncIterator[tuple[NatsClient, asyncio.Task[None], list[Any]]]:
    """A party that writes what it likes, and all that it reads."""
    client, got = await open_patiently(kit), list[Any]()
    reading = asyncio.create_task(client.read(lambda *message: got.append(message)))
    try:
        yield client, reading, got
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await client.close()


# --- they work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda c: c.__name__)
def test_the_conformance_suite_of_runtimes_passes_on_a_shared_server(
    shared: Shared, check: Callable[[Runtime], None]
) -> None:
    server: Any = type("Server", (), {"kits": shared.kits["theirs"]})
    check(OverNats(server))


def test_two_federations_with_the_same_names_exchange_messages_at_the_same_time(shared: Shared) -> None:
    n, sizes = 60, [0, 10, 70_000, 3_000_000]

    async def play() -> list[dict[str, Any]]:
        return await asyncio.gather(
            *(
                shared.run(
                    federation,
                    a=lambda me: exchange(me, "b.c", n, sizes),
                    b_c=lambda me: exchange(me, "a", n, sizes),
                )
                for federation in ("ours", "theirs")
            )
        )

    assert asyncio.run(play()) == [{"a": list(range(n)), "b_c": list(range(n))}] * 2


def test_a_second_process_of_another_federations_namesake_ends_nobody(shared: Shared) -> None:
    """The party "a" of one federation connects while "a" of the other one works."""

    async def play() -> list[int]:
        game = asyncio.create_task(
            shared.run("ours", a=lambda me: throw(me, "b.c", 50), b_c=lambda me: catch(me, "a", 50))
        )
        for _ in range(3):
            async with Link(shared.kits["theirs"]["a"], **OPTIONS) as link:  # type: ignore[arg-type]
                await link.connected.wait()
        return (await game)["a"]

    assert asyncio.run(play()) == list(range(50))


def test_who_is_connected_is_told_to_members_only(shared: Shared) -> None:
    async def play() -> list[dict[str, str]]:
        async with Link(shared.kits["ours"]["a"], **OPTIONS) as link:  # type: ignore[arg-type]
            await link.connected.wait()
            found = {}
            while not found:  # a busy machine may take more than the second that is waited for answers
                _, found = await asyncio.to_thread(check_admission, shared.kits["ours"]["server"])
            _, others = await asyncio.to_thread(check_admission, shared.kits["theirs"]["server"])
            return [found, others]

    assert asyncio.run(play()) == [{"a": ""}, {}]


# --- a member of another federation -------------------------------------------------------------------------


def test_a_member_of_one_federation_can_neither_write_nor_read_in_another(shared: Shared) -> None:
    """Not even where it is the member whose name is the same."""
    prefix = shared.prefix("ours")

    async def tries(who: str, subject: str, publish: bool) -> None:
        async with client_of(shared.kits["theirs"][who]) as (client, reading, _):
            if publish:
                await client.publish(subject, pack(MAIL, "a", "b.c", b"R" + bytes(60)))
            else:
                await client.subscribe(subject)
            async with asyncio.timeout(DEADLINE):
                with pytest.raises(NoHub, match="Permissions Violation"):
                    await reading

    async def play() -> None:
        game = asyncio.create_task(
            shared.run("ours", a=lambda me: throw(me, "b.c", 50), b_c=lambda me: catch(me, "a", 50))
        )
        for who in ("a", "mallory"):
            for place in (f"b~c.{who}", f"_here.{who}", f"_who.{who}", f"_seen.{who}"):
                await tries(who, f"{prefix}.{place}", publish=True)
            for place in (f"{who}.*", "_here.*", "_here.b~c", "_who.*", "_seen.*", "b~c.*", ">"):
                await tries(who, f"{prefix}.{place}", publish=False)
        for subject in (">", "tacit.>", "*.*.*.*", "$SYS.>", "_INBOX.>"):
            await tries("mallory", subject, publish=False)
        assert (await game)["a"] == list(range(50))

    asyncio.run(play())


def test_a_member_of_another_federation_cannot_see_whether_a_party_is_connected(shared: Shared) -> None:
    """All it is told about a party that is there is what it is told about one that is not."""

    async def ask(about: str) -> list[bytes]:
        kit = shared.kits["theirs"]["mallory"]
        client, lines = await open_patiently(kit), list[bytes]()
        mine = f"{shared.prefix('theirs')}.mallory"
        await client.subscribe(f"{mine}.*")
        for place in (f"{about}.mallory", f"_who.{about}", f"_here.{about}", f"_seen.{about}"):
            await client.publish(f"{shared.prefix('ours')}.{place}", nats_relay.ASK, reply=f"{mine}.{about}")
            await client.subscribe(f"{shared.prefix('ours')}.{place}")
        await client._send(b"PING\r\n")
        while (line := await client._line()) != b"PONG":
            lines.append(line.replace(about.encode(), b"PARTY"))
        await client.close()
        return lines

    async def play() -> None:
        async with Link(shared.kits["ours"]["first"], **OPTIONS) as link:  # type: ignore[arg-type]
            await link.connected.wait()
            present, absent = await ask("first"), await ask("second")
        assert present == absent
        assert len(present) == 8
        assert all(line.startswith(b"-ERR") for line in present)

    asyncio.run(play())


def test_a_member_that_opens_many_connections_shuts_out_its_own_federation_only(shared: Shared) -> None:
    async def play() -> None:
        clients = []

        async def open_many() -> None:
            (address,) = nats_relay.addresses_of(shared.kits["theirs"]["mallory"].address)
            for _ in range(nats_sharing.CONNECTIONS * len(NAMES) + nats_sharing.SPARE + 1):
                clients.append(await nats_relay.open_client(shared.kits["theirs"]["mallory"], address))

        try:
            with pytest.raises((NoHub, NatsLost), match=r"maximum.*connections"):
                await open_many()
            assert len(clients) >= len(NAMES)
            assert (await shared.run("ours", a=throw_five, b_c=catch_five))["a"] == list(range(5))
        finally:
            for client in clients:
                await client.close()

    async def throw_five(me: Any) -> list[int]:
        return await throw(me, "b.c", 5)

    async def catch_five(me: Any) -> None:
        await catch(me, "a", 5)

    asyncio.run(play())


# --- an authority that issues any certificate it likes ------------------------------------------------------


def forge(shared: Shared, name: str) -> Kit:
    """A certificate by the authority of "theirs" with the subject of a party of "ours"."""
    folder = shared.folder / "theirs" / "authority"
    authority = Authority(
        read_certificate((folder / "authority.crt").read_bytes(), ""),
        read_key((folder / "authority.key").read_bytes(), ""),
    )
    victim = shared.kits["ours"][name]
    certificate, key = authority.issue(name, victim.role)
    assert certificate.subject == victim.certificate.subject
    return replace(victim, certificate=certificate, key=key)


async def say(port: int, context: ssl.SSLContext, server_name: str, *lines: str) -> list[bytes]:
    """Connect as nobody of tacit would, and return what the server says until it answers or hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readuntil(b"\r\n")
    await writer.start_tls(context, server_hostname=server_name)
    writer.write("".join(f"{line}\r\n" for line in lines).encode())
    got: list[bytes] = []
    while line := await reader.readline():
        got.append(line.strip())
        if line == b"PONG\r\n":
            break
    await hang_up(writer)
    return got


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


def context_of(kit: Kit, trusts: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trusts.decode())
    with tempfile.NamedTemporaryFile() as file:
        file.write(key_pem(kit.key) + pem(kit.certificate))
        file.flush()
        context.load_cert_chain(file.name)
    return context


def test_a_server_that_maps_certificates_of_several_authorities_is_fooled_by_one_of_them(
    shared: Shared, tmp_path: Path
) -> None:
    """Why a shared server knows parties by keys: this is what nats.conf of one federation would do with two."""
    ours, port = shared.kits["ours"], free_port()
    folder = shared.folder / "ours" / "authority"
    authority = Authority(
        ours["a"].trust.authority, read_key((folder / "authority.key").read_bytes(), str(folder))
    )
    certificate, key = authority.issue("hub", "hub")
    (tmp_path / "party.crt").write_bytes(pem(certificate))
    (tmp_path / "party.key").write_bytes(key_pem(key))
    both = pem(ours["a"].trust.authority) + pem(shared.kits["theirs"]["a"].trust.authority)
    (tmp_path / "authority.crt").write_bytes(both)
    (tmp_path / "nats.conf").write_text(
        nats_relay.write_config(ours["a"].trust, f"127.0.0.1:{port}", [("a", "client"), ("b.c", "client")])
    )
    forged = forge(shared, "b.c")
    context = context_of(forged, pem(ours["a"].trust.authority))
    process = start(tmp_path)
    try:
        while not asyncio.run(is_listening(port)):
            assert process.poll() is None
            time.sleep(0.05)
        answers = asyncio.run(
            say(port, context, HUB_NAME, "CONNECT {}", f"SUB {shared.prefix('ours')}.b~c.* 1", "PING")
        )
    finally:
        process.kill()
        process.wait()
    assert answers[-1] == b"PONG"  # the forged b.c is admitted, and may read what is sent to b.c
    assert not any(b"ERR" in line for line in answers)


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    await hang_up(writer)
    return True


def test_a_shared_server_is_not_fooled_by_a_forged_certificate(shared: Shared) -> None:
    forged = forge(shared, "b.c")
    trusts = pem(shared.authority)
    subscribe = f"SUB {shared.prefix('ours')}.b~c.* 1"

    async def play() -> None:
        await (await open_patiently(shared.kits["ours"]["a"])).close()
        # the certificate alone, with a name, with the key of the victim but not its signature
        victim = NKey(shared.kits["ours"]["b.c"].key, shared.authority.public_bytes(Encoding.DER)).public
        signature = "A" * 86
        for options in (
            {},
            {"user": forged.certificate.subject.rfc4514_string()},
            {"user": victim},
            {"nkey": victim},
            {"nkey": victim, "sig": signature},
            {"nkey": victim, "sig": ""},
        ):
            got = await say(
                shared.port,
                context_of(forged, trusts),
                "127.0.0.1",
                f"CONNECT {json.dumps(options)}",
                subscribe,
                "PING",
            )
            assert b"PONG" not in got
            assert any(b"Authorization Violation" in line for line in got)
        # nor is its own key one of this server
        with pytest.raises(NoHub, match="Authorization Violation"):
            await open_patiently(forged)

    asyncio.run(play())


def test_a_party_with_a_forged_certificate_is_refused_by_the_parties_too(shared: Shared) -> None:
    """Even if the server lets it in where it does not belong: here the malicious operator lists its key."""
    forged = forge(shared, "b.c")
    folder = Path(tempfile.mkdtemp(dir=shared.folder))
    listed = {name: NKey(kit.key, der(shared.authority)).public for name, kit in shared.kits["ours"].items()}
    listed["b.c"] = NKey(forged.key, der(shared.authority)).public
    members = nats_sharing.read_members(shared.members("ours"), shared.authority)
    port = free_port()
    for file in ("server.crt", "server.key"):
        (folder / file).write_bytes((shared.folder / "nats" / "server" / file).read_bytes())
    (folder / "federations.conf").write_text(nats_sharing.write_accounts([replace(members, keys=listed)]))
    (folder / "nats.conf").write_text(nats_sharing._write_config(f"127.0.0.1:{port}"))
    process = start(folder)

    async def play() -> None:
        async def receives(me: Any) -> None:
            await me.recv("a", NetBall)

        kits = {"a": shared.kits["ours"]["a"], "b.c": forged}
        async with (
            Link(kits["a"].at(f"nats://127.0.0.1:{port}"), **OPTIONS) as a,  # type: ignore[arg-type]
            Link(kits["b.c"].at(f"nats://127.0.0.1:{port}"), **OPTIONS) as b,  # type: ignore[arg-type]
        ):
            await a.connected.wait()
            await b.connected.wait()
            await a.party.send("b.c", NetBall(7))  # type: ignore[arg-type]
            task = asyncio.create_task(b.run(receives))
            await until(lambda: any("was not issued by the authority" in note for note in a.notes + b.notes))
            assert not a.channels["b.c"].confirmed
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    try:
        asyncio.run(play())
    finally:
        process.kill()
        process.wait()


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


# --- members files ------------------------------------------------------------------------------------------


def altered(shared: Shared, federation: str, change: Callable[[dict[str, Any]], None], sign: bool) -> Path:
    """The members file of a federation after a change; `sign`: its authority signs it again."""
    body = json.loads(shared.members(federation).read_text())
    change(body)
    if sign:
        body.pop("signature")
        key = read_key((shared.folder / federation / "authority" / "authority.key").read_bytes(), "")
        signature = key.sign(nats_sharing._to_sign(body), ec.ECDSA(hashes.SHA256()))
        body["signature"] = base64.b64encode(signature).decode()
    with tempfile.NamedTemporaryFile("w", dir=shared.folder, suffix=".json", delete=False) as file:
        file.write(json.dumps(body))
    return Path(file.name)


def test_a_federation_cannot_list_the_key_of_another_ones_party(shared: Shared) -> None:
    """Else that party would be led into another account."""
    victim = json.loads(shared.members("ours").read_text())["members"][1]
    for change in (
        lambda body: body["members"].append(victim),
        lambda body: body["members"].append({**victim, "name": "new"}),
        lambda body: body["members"][1].update(key=victim["key"]),
        lambda body: body["members"][1].update(key=victim["key"], proof=victim["proof"]),
    ):
        with pytest.raises(BadKit, match="is not its own"):
            nats_sharing.read_members(altered(shared, "theirs", change, sign=True), shared.authority)


def test_a_federation_cannot_replace_another_ones_list(shared: Shared) -> None:
    """It names the other authority, and signs with its own."""
    other = json.loads(shared.members("ours").read_text())["authority"]
    for sign in (True, False):
        file = altered(shared, "theirs", lambda body: body.update(authority=other), sign)
        with pytest.raises(BadKit, match="its authority did not sign it"):
            nats_sharing.read_members(file, shared.authority)
    file = altered(shared, "ours", lambda body: body["members"].pop(), sign=False)
    with pytest.raises(BadKit, match="its authority did not sign it"):
        nats_sharing.read_members(file, shared.authority)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda b: b["members"][1].update(name='a"}]} $SYS {'), "a party has the name"),
        (lambda b: b["members"][1].update(name="a.*"), "a party has the name"),
        (lambda b: b["members"][1].update(name=["a"]), "a party has the name"),
        (
            lambda b: b["members"][1].update(key=b["members"][1]["key"] + "\n}"),
            "not a public key|Non-base32",
        ),
        (
            lambda b: b["members"][1].update(key=b["members"][1]["key"].lower()),
            "Non-base32",
        ),
        (
            lambda b: b["members"][1].update(
                key="SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
            ),
            "not a public",
        ),
        (lambda b: b["members"][1].update(key=7), "TypeError"),
        (lambda b: b.update(members=[]), "it has no party"),
        (lambda b: b["members"].append(b["members"][1]), "two parties have the same key"),
        (lambda b: b.update(format="tacit members 2"), "an unknown format"),
        (lambda b: b.update(more=1), "an unknown format"),
        (lambda b: b.update(server="00"), "made for the servers of another operator"),
        (lambda b: b.update(issued="yesterday"), "ValueError"),
        (lambda b: b.update(issued="0001-01-01T00:00:00+14:00"), "OverflowError"),
        (lambda b: b.update(authority="-"), r"is not a certificate\. Ask the federation"),
        (lambda b: b.pop("members"), "an unknown format"),
    ],
)
def test_a_members_file_with_anything_else_is_refused(
    shared: Shared, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    with pytest.raises(BadKit, match=why):
        nats_sharing.read_members(altered(shared, "theirs", change, sign=True), shared.authority)


@pytest.mark.parametrize("text", [b"", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000, b'{"signature": "x"}'])
def test_what_is_no_members_file_is_refused(shared: Shared, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "members.json").write_bytes(text)
    with pytest.raises(BadKit, match="cannot be used"):
        nats_sharing.read_members(tmp_path / "members.json", shared.authority)
    with pytest.raises(BadKit, match="cannot be read"):
        nats_sharing.read_members(tmp_path / "other.json", shared.authority)


@pytest.mark.parametrize(
    ("here", "there", "why"),
    [
        (NAME.encode(), b"\xff" * len(NAME), "subject"),
        (bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2a8648ce3d027f"), "UnsupportedAlgorithm"),
    ],
    ids=["name", "kind of key"],
)
def test_an_authority_that_cannot_be_read_is_refused(
    shared: Shared, tmp_path: Path, here: bytes, there: bytes, why: str
) -> None:
    """Else its file would be kept, and stop every later `tacit nats`, also of other federations."""
    genuine = Authority.new(NAME)
    altered = x509.load_der_x509_certificate(der(genuine.certificate).replace(here, there))
    kit = replace(shared.kits["ours"]["a"], key=ec.generate_private_key(ec.SECP256R1()))
    file = tmp_path / "members.json"
    file.write_text(nats_sharing.write_members(Authority(altered, genuine.key), shared.authority, [kit]))
    with pytest.raises(BadKit, match=rf"members\.json cannot be used: .*{why}"):
        nats_sharing.write_server(shared.folder / "nats", [str(file)])
    assert len(list((shared.folder / "nats" / "federations").iterdir())) == 2


def test_a_copy_of_an_older_list_in_the_folder_is_refused(shared: Shared, tmp_path: Path) -> None:
    """Read after the newer one, it would admit the revoked again."""
    folder = tmp_path / "nats"
    shutil.copytree(shared.folder / "nats", folder)
    for federation in ("ours", "theirs"):
        (folder / "federations" / "zz.json").write_bytes(shared.members(federation).read_bytes())
        with pytest.raises(BadKit, match="are of one federation"):
            nats_sharing.write_server(folder, [])


def test_no_federation_stays_admitted_when_the_last_one_is_removed(shared: Shared, tmp_path: Path) -> None:
    folder = tmp_path / "nats"
    shutil.copytree(shared.folder / "nats", folder)
    for file in (folder / "federations").iterdir():
        file.unlink()
    with pytest.raises(BadKit, match=r"no members file is left.*Stop the NATS server"):
        nats_sharing.write_server(folder, [])
    assert not (folder / "server" / "federations.conf").exists()
    checked = subprocess.run(
        [find_server(), "-t", "-c", "nats.conf"], cwd=folder / "server", capture_output=True, check=False
    )
    assert checked.returncode != 0  # it does not start, and admits nobody
    nats_sharing.write_server(folder, [str(shared.members("ours"))])
    assert (folder / "server" / "federations.conf").read_text().count("nkey") == len(NAMES)


@pytest.mark.parametrize("host", ["nats://nats.example.org", "nats.example.org:4222", "hôpital.ch", "a b"])
def test_a_host_that_no_certificate_can_be_for_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadKit, match="expected names or addresses without scheme and port"):
        nats_sharing.write_server(tmp_path / "nats", (), ("nats.example.org", host))
    assert not (tmp_path / "nats").exists()


def test_the_name_of_a_federation_cannot_add_to_what_the_operator_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said(capsys, "nats", "--host", "127.0.0.1")[0] == 0
    name = "x\nfederation  hearts\x1b[2K"
    Path("f.toml").write_text(
        f'name = {json.dumps(name)}\nhub = "nats://127.0.0.1:1"\nclients = ["a"]\n'
        'shared = "nats/authority/authority.crt"\n'
    )
    provision(read_federation_file("f.toml"), tmp_path / "kits")
    code, text = said(capsys, "nats", "kits/members.json")
    assert code == 0
    assert text.count("\nfederation") + text.startswith("federation") == 1
    assert "\x1b" not in text


def test_the_name_of_a_federation_cannot_add_to_the_configuration(tmp_path: Path) -> None:
    nats_sharing.write_server(tmp_path / "nats", (), ("127.0.0.1",))
    name = '"x" }\n$SYS { users: [{user: x}] } # é\r\n'
    (tmp_path / "f.toml").write_text(
        f'name = {json.dumps(name)}\nhub = "nats://127.0.0.1:1"\nclients = ["a"]\n'
        'shared = "nats/authority/authority.crt"\n'
    )
    federation = read_federation_file(tmp_path / "f.toml")
    assert "\n" in federation.name
    provision(federation, tmp_path / "kits")
    nats_sharing.write_server(tmp_path / "nats", [str(tmp_path / "kits" / "members.json")])
    text = (tmp_path / "nats" / "server" / "federations.conf").read_text()
    assert len(text.splitlines()) == 8  # a comment; the account, its limits, two users and their brackets
    assert_valid(tmp_path / "nats" / "server")


@pytest.mark.parametrize("name", ["Hôpital de Genève", 'a "b" c', "back\\\\slash, comma"])
def test_the_configuration_of_one_federation_takes_any_name(tmp_path: Path, name: str) -> None:
    """JSON's escapes of other letters are unknown to NATS."""
    port = free_port()
    (tmp_path / "f.toml").write_text(
        f'name = {json.dumps(name, ensure_ascii=False)}\nhub = "nats://127.0.0.1:{port}"\nclients = ["a"]\n'
    )
    provision(read_federation_file(tmp_path / "f.toml"), tmp_path / "kits")
    process = start(tmp_path / "kits" / "hub")
    try:
        asyncio.run(connect_and_leave(load(tmp_path / "kits" / "a")))
    finally:
        process.kill()
        process.wait()


async def connect_and_leave(kit: Kit) -> None:
    await (await open_patiently(kit)).close()


def assert_valid(folder: Path) -> None:
    done = subprocess.run(
        [find_server(), "-t", "-c", "nats.conf"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_collisions_are_refused_before_anything_is_written(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared.folder / "nats"
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    ours, theirs = str(shared.members("ours")), str(shared.members("theirs"))
    with pytest.raises(BadKit, match="are of one federation"):
        nats_sharing.write_server(folder, [ours, ours])
    with monkeypatch.context() as patch:  # two authorities whose digests begin alike
        patch.setattr(nats_sharing, "prefix_of", lambda trust: "tacit.0123456789abcdef")
        with pytest.raises(BadKit, match="or of two that cannot share a server"):
            nats_sharing.write_server(folder, [ours, theirs])
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    with pytest.raises(BadKit, match="contains no certificate yet"):
        nats_sharing.write_server(tmp_path / "new", [ours])
    with pytest.raises(BadKit, match="made for the servers of another operator"):
        nats_sharing.write_server(tmp_path / "new", [ours], ("127.0.0.1",))
    assert not (tmp_path / "new").exists()


def test_an_older_list_does_not_replace_a_newer_one(own: Shared) -> None:
    old = own.members("ours").with_name("old.json")
    old.write_bytes(own.members("ours").read_bytes())
    own.provision("ours", revoke=("mallory",))
    own.join("ours")
    with pytest.raises(BadKit, match="is older than the one in place"):
        nats_sharing.write_server(own.folder / "nats", [str(old)])
    own.join("theirs")
    text = (own.folder / "nats" / "server" / "federations.conf").read_text()
    assert text.count("nkey") == 2 * len(NAMES) - 1  # the list of "ours" is still the newer one


# --- changes while parties are connected --------------------------------------------------------------------


def test_a_revoked_party_is_shut_out_and_a_third_federation_added_while_others_work(own: Shared) -> None:
    heard: list[int] = []

    async def play() -> int:
        async with client_of(own.kits["ours"]["mallory"]) as (_, reading, _):
            links: list[Link] = []

            async def party(name: str, program: Any) -> Any:
                async with Link(own.kits["theirs"][name], **OPTIONS) as link:  # type: ignore[arg-type]
                    links.append(link)
                    return await link.run(program)

            changed = asyncio.Event()

            async def throws(me: Any) -> list[int]:
                first = await throw(me, "b.c", 5)
                heard.extend(first)
                await changed.wait()
                return first + await throw(me, "b.c", 5)

            game = asyncio.create_task(party("a", throws))
            other = asyncio.create_task(party("b.c", lambda me: catch(me, "a", 10)))
            await until(lambda: len(heard) == 5)
            own.provision("ours", revoke=("mallory",))
            own.provision("third")
            own.join("ours", "third")
            assert own.process is not None
            own.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(DEADLINE):
                with pytest.raises((NoHub, NatsLost), match=r"ended the connection|refuses"):
                    await reading
            changed.set()
            assert await game == [*range(5), *range(5)]
            await other
            await connect_and_leave(load(own.folder / "third" / "a"))
            return max(link.connections for link in links)

    assert asyncio.run(play()) == 1  # nobody of the other federation was disconnected
    fatal, why = reach(own.kits["ours"]["mallory"])
    assert fatal
    assert "refuses this party: Authorization Violation" in why
    assert reach(own.kits["ours"]["a"]) == (False, "")


# --- the server ---------------------------------------------------------------------------------------------


def test_a_server_with_another_certificate_is_refused(shared: Shared, tmp_path: Path) -> None:
    kit = shared.kits["ours"]["a"]
    asyncio.run(connect_and_leave(kit))
    # another operator; and this one's certificate at a host that it is not for
    other = Shared(tmp_path, ("ours",)).authority
    for stranger in (replace(kit, shared=other), kit.at(f"nats://localhost:{shared.port}")):
        fatal, why = reach(stranger)
        assert fatal
        assert "do not accept each other's certificates" in why
        assert "Ask its operator" in why


def test_a_server_of_one_federation_is_refused_by_a_kit_of_a_shared_one(
    shared: Shared, tmp_path: Path
) -> None:
    """It would know parties by certificates, which this party does not show."""
    folder = shared.folder / "nats" / "server"
    for file in ("server.crt", "server.key"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    port = free_port()
    (tmp_path / "nats.conf").write_text(
        f"listen: 127.0.0.1:{port}\ntls {{ cert_file: server.crt, key_file: server.key }}\n"
    )
    process = start(tmp_path)
    try:
        with pytest.raises(NoHub, match="does not know parties by their keys"):
            asyncio.run(connect_and_leave(shared.kits["ours"]["a"].at(f"nats://127.0.0.1:{port}")))
    finally:
        process.kill()
        process.wait()


def test_a_server_without_tls_is_refused(shared: Shared, tmp_path: Path) -> None:
    """Anybody on the way could give such an answer: the key signs nothing for it."""
    port = free_port()
    (tmp_path / "nats.conf").write_text(f"listen: 127.0.0.1:{port}\n")
    process = start(tmp_path)
    try:
        with pytest.raises(NoHub, match=r"does not use TLS\. .*`tacit nats` writes"):
            asyncio.run(connect_and_leave(shared.kits["ours"]["a"].at(f"nats://127.0.0.1:{port}")))
    finally:
        process.kill()
        process.wait()


# --- keys ---------------------------------------------------------------------------------------------------


def test_keys_are_written_as_nats_writes_them() -> None:
    """The pair of keys in the documentation of NATS (docs.nats.io, "NKeys")."""
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    nkey = object.__new__(NKey)
    nkey._key = Ed25519PrivateKey.from_private_bytes(base64.b32decode(seed + "=" * (-len(seed) % 8))[2:34])
    assert nkey.public == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def test_a_key_belongs_to_one_party_at_one_operator(shared: Shared, tmp_path: Path) -> None:
    kits = [kit for several in shared.kits.values() for kit in several.values()]
    other = der(Shared(tmp_path, ()).authority)
    keys = {NKey(kit.key, server).public for kit in kits for server in (der(shared.authority), other)}
    assert len(keys) == 2 * len(kits)


def test_a_hostile_server_gets_no_proof_signed_by_its_nonce(shared: Shared) -> None:
    """Else it could list this party in a federation of its own."""
    kit = shared.kits["ours"]["a"]
    nkey, federation = NKey(kit.key, der(shared.authority)), b"0" * 64
    with pytest.raises(NoHub, match="nonce of an unknown form"):
        nkey.sign_nonce((nkeys.PROOF + federation + b" a").decode())
    for nonce in ("", "short", "a" * 65, "abcdefgh\n", "abc def ghi", "äbcdefghi"):
        with pytest.raises(NoHub, match="nonce of an unknown form"):
            nkey.sign_nonce(nonce)
    proof = nkey.prove(federation, "a")
    assert nkeys.proves(nkey.public, federation, "a", proof)
    assert not nkeys.proves(nkey.public, federation, "b", proof)
    assert not nkeys.proves(nkey.public, b"1" * 64, "a", proof)
    with pytest.raises(InvalidSignature):
        nkey._key.public_key().verify(proof, b"abcdefgh")


# --- the commands -------------------------------------------------------------------------------------------


def test_a_federation_cannot_have_more_wait_than_eight_windows_of_a_channel_for_each_connection() -> None:
    """NATS keeps what a party does not read, and does not hold back senders: `max_pending` bounds it."""
    shared, own = nats_sharing._write_config("127.0.0.1:1"), nats_relay.limits()
    assert f"max_pending: {8 * WINDOW >> 20}MB " in shared
    assert any(f"max_pending: {nats_relay.PENDING}MB " in line for line in own)


def test_the_commands_say_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "contains no certificate yet" in refused(capsys, "nats")
    code, text = said(capsys, "nats", "--host", "nats.example.org, ::1")
    assert code == 0
    assert "for nats.example.org, ::1" in text
    assert "Give nats/authority/authority.crt to each federation" in text
    file = read_certificate(Path("nats/server/server.crt").read_bytes(), "")
    names = file.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["nats.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    assert not Path("nats/server/nats.conf").exists()  # without parties' keys it would admit anybody
    assert os.stat("nats/server/server.key").st_mode & 0o077 == 0
    assert os.stat("nats/authority/authority.key").st_mode & 0o077 == 0
    for hub, shared, why in (
        ("nats://nats.example.org:4222", "none.crt", r"cannot be read"),
        ("hub.example.org:8443", "nats/authority/authority.crt", r"Only a NATS server may be shared"),
    ):
        Path("bad.toml").write_text(f'name = "f"\nhub = "{hub}"\nshared = "{shared}"\nclients = ["a"]\n')
        with pytest.raises(BadJob, match=why):
            read_federation_file("bad.toml")
    Path("bad.toml").write_text(
        'name = "f"\nhub = "nats://nats.example.org:4222"\nshared = "bad.toml"\nclients = ["a"]\n'
    )
    with pytest.raises(BadKit, match=r"is not a certificate\. Ask the operator of the NATS server"):
        read_federation_file("bad.toml")
    Path("f.toml").write_text(
        'name = "hearts"\nhub = "nats://nats.example.org:4222"\nclients = ["a", "b"]\n'
        'shared = "nats/authority/authority.crt"\n'
    )
    code, text = said(capsys, "provision", "f.toml")
    assert code == 0
    assert "Send kits/members.json, which has no secret" in text
    assert not Path("kits/hub").exists()
    assert load("kits/a").shared is not None
    code, text = said(capsys, "nats", "kits/members.json", "--listen", "127.0.0.1:14222")
    assert code == 0
    assert "hearts, 3 parties" in text
    assert 'listen: "127.0.0.1:14222"' in Path("nats/server/nats.conf").read_text()
    assert_valid(tmp_path / "nats" / "server")
    code, text = said(capsys, "provision", "f.toml", "--revoke", "b")
    assert "The operator's `tacit nats` excludes them. Copy revoked.crl" in text
    code, text = said(capsys, "nats", "kits/members.json")
    assert "hearts, 2 parties" in text
    # a certificate of the operator's own authority
    Path("nats/authority/authority.key").unlink()
    assert "put server.crt and server.key of your own authority" in refused(capsys, "nats", "--host", "x")
    assert said(capsys, "nats", "kits/members.json")[0] == 0
    # back to a server of its own
    Path("f.toml").write_text('name = "hearts"\nhub = "nats://127.0.0.1:4222"\nclients = ["a"]\n')
    assert said(capsys, "provision", "f.toml")[0] == 0
    assert load("kits/a").shared is None
    (tmp_path / "kits" / "a" / "party.toml").write_text(
        (tmp_path / "kits" / "a" / "party.toml").read_text() + 'shared = "nats.crt"\n'
    )
    Path("kits/a/nats.crt").unlink()
    with pytest.raises(BadKit, match=r"lacks nats\.crt"):
        load("kits/a")
