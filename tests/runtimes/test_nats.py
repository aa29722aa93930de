"""Parties that meet at a NATS server instead of tacit's hub: the same programs, the same faults.

The server is Debian's `nats-server`, with the configuration that `tacit provision` writes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import BadJob, BadKit, NoHub, PartyFailed, ProtocolError, SealBroken
from tacit.parties import Ledger, Program, Runtime
from tacit.runtimes import conformance, nats_relay
from tacit.runtimes import link as links
from tacit.runtimes.envelope import MAIL, pack
from tacit.runtimes.hub import Hub
from tacit.runtimes.kits import Kit, load
from tacit.runtimes.link import Link
from tacit.runtimes.nats_client import NatsClient, NatsLost
from tacit.runtimes.preflight import check_admission, make_context, reach, read_presence
from tacit.runtimes.provision import provision, read_federation_file
from tests.ports import free_port
from tests.security.mail import until

from .net import DEADLINE, OPTIONS, NetBall, catch, exchange, throw

# of the tests below, and of the conformance suite
CLIENTS = [
    *("a", "b.c", "mallory", "b", "c", "silent", "first", "second", "listener", "returner", "other"),
    *("faulty", "reader", "writer"),
]
NAMES = ("server", *CLIENTS)


def find_server() -> str:
    found = shutil.which("nats-server", path=f"{os.environ['PATH']}:/usr/sbin")
    if not found:
        pytest.fail("no NATS server to test with: install it with: apt-get install nats-server")
    return found


class Nats:
    """A NATS server of one federation, and links to it."""

    def __init__(self, folder: Path):
        self.port = free_port()
        self.folder = folder
        self.file = folder / "federation.toml"
        self.write()
        self.kits = {name: load(folder / "kits" / name) for name in NAMES}
        self.links: dict[str, Link] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, revoke: tuple[str, ...] = ()) -> None:
        self.file.write_text(
            f'name = "heart study, EU"\nhub = "nats://127.0.0.1:{self.port}"\nclients = {json.dumps(CLIENTS)}\n'
        )
        provision(read_federation_file(self.file), self.folder / "kits", revoke)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [find_server(), "-c", "nats.conf", "-a", "127.0.0.1"],
            cwd=self.folder / "kits" / "hub",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def party(self, name: str, program: Any, **options: Any) -> Any:
        async with Link(self.kits[name], **{**OPTIONS, **options}) as link:
            self.links[name] = link
            return await link.run(program)

    async def run(self, **programs: Any) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
            tasks = {n: group.create_task(self.party(n.replace("_", "."), p)) for n, p in programs.items()}
        return {name: task.result() for name, task in tasks.items()}


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    server = Nats(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Nats]:
    """A server that the test may kill."""
    server = Nats(tmp_path)
    yield server
    server.kill()


@asynccontextmanager
async def client_of(kit: Kit) -> AsyncIterator[tuple[NatsClient, asyncio.Task[None], list[Any]]]:
    """A party that writes what it likes, and all that it reads."""
    (address,) = nats_relay.addresses_of(kit.address)
    got: list[Any] = []
    for _ in range(600):  # the server may still be starting
        try:
            client = await NatsClient.open(*address, make_context(kit), kit.name)
            break
        except NatsLost:
            await asyncio.sleep(0.1)
    reading = asyncio.create_task(client.read(lambda *message: got.append(message)))
    try:
        yield client, reading, got
    finally:
        reading.cancel()
        await client.close()


class OverNats:
    """A runtime for the conformance suite: the links of all parties in one process."""

    def __init__(self, server: Nats):
        self.server = server

    async def run(self, programs: Mapping[str, Program], *, ledger: Ledger | None = None) -> dict[str, Any]:
        async def play(name: str) -> Any:
            async with Link(self.server.kits[name], **OPTIONS) as link:  # type: ignore[arg-type]
                try:
                    return await link.run(programs[name])
                except Exception as error:
                    raise PartyFailed(name, error) from error
                finally:
                    if ledger is not None:
                        ledger.merge(link.mailbox.ledger)

        tasks = {name: asyncio.create_task(play(name)) for name in programs}
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return {name: task.result() for name, task in tasks.items()}


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda c: c.__name__)
def test_the_conformance_suite_of_runtimes_passes_over_nats(
    nats: Nats, check: Callable[[Runtime], None]
) -> None:
    check(OverNats(nats))


def test_messages_of_any_size_arrive_in_order_both_ways(nats: Nats) -> None:
    n, sizes = 60, [0, 10, 70_000, 3_000_000]
    found = asyncio.run(
        nats.run(a=lambda me: exchange(me, "b.c", n, sizes), b_c=lambda me: exchange(me, "a", n, sizes))
    )
    assert found == {"a": list(range(n)), "b_c": list(range(n))}


def test_nothing_is_lost_doubled_or_reordered_while_the_server_is_killed_again_and_again(own: Nats) -> None:
    """It is killed whenever a party has received so many of its messages."""
    rng = random.Random(1)
    own.start()

    async def play() -> dict[str, Any]:
        n, sizes, heard = 300, [0, 10, 70_000, 300_000], list[int]()

        async def trouble() -> None:
            for mark in sorted(rng.sample(range(10, n - 100), 4)):
                await until(lambda mark=mark: len(heard) >= mark)
                own.kill()
                await asyncio.sleep(rng.uniform(0, 0.2))
                own.start()

        storm = asyncio.create_task(trouble())
        found = await own.run(
            a=lambda me: exchange(me, "b.c", n, sizes, heard), b_c=lambda me: exchange(me, "a", n, sizes)
        )
        await storm
        return found

    assert asyncio.run(play()) == {"a": list(range(300)), "b_c": list(range(300))}
    assert sum(link.connections for link in own.links.values()) > 2


def test_a_late_party_gets_earlier_messages_and_the_server_may_start_last(own: Nats) -> None:
    async def play() -> list[int]:
        early = asyncio.create_task(own.party("a", lambda me: throw(me, "b.c", 3)))
        await asyncio.sleep(0.2)  # it tries, and tries again
        own.start()
        while "b.c" not in own.links["a"].channels or own.links["a"].channels["b.c"].present:
            await asyncio.sleep(0.01)  # until the server says that nobody is there
        await own.party("b.c", lambda me: catch(me, "a", 3))
        return await early

    assert asyncio.run(play()) == [0, 1, 2]


def test_a_party_that_was_killed_is_noticed_and_reported(nats: Nats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_relay, "ASK_AGAIN", 0.1)

    async def play() -> None:
        async def waits(me: Any) -> None:
            await me.send("b.c", NetBall(1))
            await me.recv("b.c", NetBall)

        waiting = asyncio.create_task(nats.party("a", waits, away=0.3))
        async with Link(nats.kits["b.c"], **OPTIONS) as link:  # type: ignore[arg-type]
            await link.party.recv("a", NetBall)  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match=r"party 'b\.c' has been disconnected for"):
            await waiting

    asyncio.run(play())


def test_who_is_connected_is_answered_by_the_parties(nats: Nats) -> None:
    async def play() -> Any:
        ready, done = asyncio.Event(), asyncio.Event()

        async def waits(me: Any) -> None:
            ready.set()
            await done.wait()

        waiting = asyncio.create_task(nats.party("a", waits, version="9.9"))
        await ready.wait()
        await nats.links["a"].connected.wait()
        found = await asyncio.to_thread(read_presence, nats.kits["server"])
        done.set()
        await waiting
        return found

    found = asyncio.run(play())
    assert (found.why, found.present) == ("", {"a": "9.9"})
    assert 0 <= found.seconds["a"] < DEADLINE


def test_a_second_process_with_the_same_kit_ends_the_first(nats: Nats) -> None:
    async def play() -> None:
        async with Link(nats.kits["a"], **OPTIONS) as first:  # type: ignore[arg-type]
            task = asyncio.create_task(first.run(lambda me: me.recv("b.c", NetBall)))
            await first.connected.wait()
            async with Link(nats.kits["a"], **OPTIONS) as second:  # type: ignore[arg-type]
                await second.connected.wait()
                with pytest.raises(NoHub, match="another process connected with this party's certificate"):
                    await task

    asyncio.run(play())


def test_a_party_can_neither_write_in_anothers_name_nor_read_anothers_messages(nats: Nats) -> None:
    """The server enforces it; the sealed channels would refuse the messages, too."""
    prefix = nats_relay.prefix_of(nats.kits["a"].trust)

    async def tries(subject: str, publish: bool) -> None:
        async with client_of(nats.kits["mallory"]) as (client, reading, _):
            if publish:
                await client.publish(subject, pack(MAIL, "a", "b.c", b"R" + bytes(60)))
            else:
                await client.subscribe(subject)
            async with asyncio.timeout(DEADLINE):
                with pytest.raises(NoHub, match="Permissions Violation"):
                    await reading

    async def play() -> None:
        game = asyncio.create_task(
            nats.run(a=lambda me: throw(me, "b.c", 50), b_c=lambda me: catch(me, "a", 50))
        )
        for subject in ("b~c.a", "_here.a", "_seen.a"):
            await tries(f"{prefix}.{subject}", publish=True)
        for subject in ("b~c.*", "*.*", "b~c.a", ">"):
            await tries(f"{prefix}.{subject}", publish=False)
        assert (await game)["a"] == list(range(50))

    asyncio.run(play())


@pytest.mark.parametrize(
    ("place", "payload"),
    [
        ("b~c", b"\x00"),
        ("b~c", b"\xff" * 100),
        ("b~c", pack(MAIL, "a", "b.c", bytes(100))),  # another name than its subject
        ("b~c", pack(1, "a", "b.c")),  # poses as the server: a is absent
        ("b~c", pack(3, "mallory", "b.c", b'{"failed": {"a": ["x", 1]}}')),
        ("b~c", pack(3, "mallory", "b.c", b"no list")),
        ("_here", b"{"),
        ("_who", b"x" * 1000),
    ],
)
def test_what_a_malicious_member_writes_disturbs_nobody_else(nats: Nats, place: str, payload: bytes) -> None:
    prefix = nats_relay.prefix_of(nats.kits["a"].trust)

    async def play() -> None:
        async def slow_throw(me: Any) -> list[int]:
            first = await throw(me, "b.c", 5)
            async with client_of(nats.kits["mallory"]) as (client, reading, _):
                for _ in range(20):
                    await client.publish(f"{prefix}.{place}.mallory", payload)
                await nats_relay._first(asyncio.create_task(client.flush()), reading)
            return first + await throw(me, "b.c", 20)

        found = await nats.run(a=slow_throw, b_c=lambda me: catch(me, "a", 25))
        assert found["a"] == [*range(5), *range(20)]
        assert not nats.links["b.c"].earlier

    asyncio.run(play())


def test_a_newer_revocation_list_spreads_and_the_revoked_party_is_refused(own: Nats) -> None:
    own.start()
    old = dict(own.kits)

    async def play() -> None:
        async with client_of(old["mallory"]):
            pass  # it is admitted before
        own.write(revoke=("mallory",))
        assert own.process is not None
        own.process.send_signal(1)  # reload
        own.kits["server"] = load(own.folder / "kits" / "server")  # has the new list; the others have not
        # a kit on disk was rewritten, too; these are copies at their owners
        own.kits["a"] = replace(old["a"], directory=None)
        own.kits["b.c"] = replace(old["b.c"], directory=None)
        told = await own.run(server=lambda me: throw(me, "a", 5), a=lambda me: catch(me, "server", 5))
        assert told["server"] == list(range(5))
        with pytest.raises(SealBroken, match="revoked"):
            own.links["a"].kit.trust.check(old["mallory"].certificate)

    asyncio.run(play())
    fatal, why = reach(old["mallory"])
    assert fatal
    assert "refuses this party: Authorization Violation" in why
    with pytest.raises(NoHub, match="Authorization Violation"):
        asyncio.run(_connect(old["mallory"]))


async def _connect(kit: Kit) -> None:
    async with Link(kit, **OPTIONS) as link:  # type: ignore[arg-type]
        await link.run(lambda me: me.recv("a", NetBall))


def test_why_a_server_is_refused_is_said(nats: Nats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RESTART", 0.0)
    asyncio.run(nats.run(a=lambda me: throw(me, "b.c", 1), b_c=lambda me: catch(me, "a", 1)))  # it runs
    assert reach(nats.kits["a"]) == (False, "")
    assert check_admission(nats.kits["a"]) == ("", {})
    stranger = Nats(tmp_path).kits["a"].at(nats.kits["a"].address)
    fatal, why = reach(stranger)
    assert fatal
    assert "do not accept each other's certificates" in why
    with pytest.raises(NoHub, match="do not accept each other's certificates"):
        asyncio.run(_connect(stranger))
    nobody = nats.kits["a"].at(f"nats://127.0.0.1:{free_port()}")
    fatal, why = reach(nobody)
    assert not fatal
    assert "cannot be reached" in why
    assert "cannot be reached" in check_admission(nobody)[0]
    with pytest.raises(NoHub, match=r"cannot be reached.*tried for"):
        asyncio.run(_connect_for(nobody, 0.2))


async def _connect_for(kit: Kit, patience: float) -> None:
    async with Link(kit, patience=patience) as link:
        await link.run(lambda me: me.recv("b.c", NetBall))


def test_a_plain_server_is_refused_although_it_works(tmp_path: Path, nats: Nats) -> None:
    port = free_port()
    plain = subprocess.Popen(
        [find_server(), "-a", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with pytest.raises(NoHub, match="does not ask for certificates, so anybody could connect"):
            asyncio.run(_connect(nats.kits["a"].at(f"nats://127.0.0.1:{port}")))
    finally:
        plain.kill()
        plain.wait()


def test_nothing_is_read_that_came_before_tls(nats: Nats) -> None:
    """Somebody on the way adds to the server's plain INFO that another process has this party's certificate."""
    kit = nats.kits["a"]
    subject = f"{nats_relay.prefix_of(kit.trust)}.{nats_relay.HERE}.a"

    async def attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", nats.port)
        info = await theirs.readuntil(b"\r\n")
        writer.write(info + f"PONG\r\nMSG {subject} 1 4\r\ndead\r\n".encode())
        with suppress(OSError):
            await asyncio.gather(copy(reader, ours), copy(theirs, writer))
        ended.set()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                target.write(data)
        finally:
            target.close()
            with suppress(OSError):
                await target.wait_closed()

    ended = asyncio.Event()

    async def play() -> None:
        server = await asyncio.start_server(attack, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def connect() -> None:
            client = await NatsClient.open("127.0.0.1", port, make_context(kit), kit.name)
            await client.read(lambda *message: pytest.fail(f"read {message}"))

        with pytest.raises(NatsLost, match="sent more than INFO before TLS"):
            await connect()
        await ended.wait()
        server.close()
        await server.wait_closed()

    reach(kit)  # the server runs
    asyncio.run(play())


def test_questions_of_a_party_that_floods_are_answered_once_at_a_time(nats: Nats) -> None:
    relay = nats_relay.NatsRelay(lambda: nats.kits["a"], b"life", "1")
    for _ in range(1000):
        relay._receive(f"{relay.prefix}.a.mallory", 0, nats_relay.ASK)
    assert len(relay._outbox) == 1


def test_a_federation_names_its_server_and_its_hub_refuses_to_run(nats: Nats, tmp_path: Path) -> None:
    with pytest.raises(BadKit, match=r"uses a NATS server instead of this hub .* nats-server -c nats\.conf"):
        Hub(load(nats.folder / "kits" / "hub"))
    for hub in ("nats://", "nats://host", "nats://host:0", "nats://host:1,tcp://b:2", "http://host:80"):
        nats.file.with_name("bad.toml").write_text(f'name = "f"\nhub = "{hub}"\nclients = ["a"]\n')
        with pytest.raises(BadJob, match="hub is"):
            read_federation_file(nats.file.with_name("bad.toml"))
    # without them the server ends handshakes after 2 s, and 2,000 parties that connect at once never got in
    assert (nats.folder / "kits" / "hub" / "nats.conf").read_text().count("timeout: 30") == 2
    assert nats_relay.addresses_of("nats://a:1, nats://[::1]:2") == [("a", 1), ("[::1]", 2)]
