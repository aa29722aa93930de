"""Many parties at one hub: handshakes that take long, the limit of open files, parties that all connect again."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from tacit.errors import NoHub
from tacit.runtimes import hub as hubs
from tacit.runtimes import hub_relay, open_files, relay_connection
from tacit.runtimes.kits import Kit, temporary
from tacit.runtimes.link import Link
from tacit.runtimes.relay_connection import LOOK, RATE, RelayConnection

from .net import DEADLINE, Net
from .test_hub import connect

BUSY = 1.5  # seconds; without its option, gRPC gives up an attempt to connect after 0.12 s


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not is_so():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def late(port: int, seconds: float) -> AsyncIterator[tuple[str, list[int]]]:
    """Yield the address of a proxy that passes on what a client sends after so many seconds, and its connections."""
    seen: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, wait: float) -> None:
        try:
            await asyncio.sleep(wait)
            while data := await source.read(1 << 16):
                target.write(data)
        except ConnectionError:
            pass
        finally:
            target.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        there, its = await asyncio.open_connection("127.0.0.1", port)
        tasks.update(
            (asyncio.create_task(copy(reader, its, seconds)), asyncio.create_task(copy(there, writer, 0)))
        )

    proxy = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}", seen
    finally:
        proxy.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_hub_that_takes_long_to_answer_gets_one_connection_of_each_party() -> None:
    """It is far away, or thousands call it at once. Before, a party gave up after 0.12 s, and did so forever; the hub
    kept a file for each of these attempts until it came to it.
    """

    async def play() -> None:
        names = [f"p{i}" for i in range(5)]
        async with (
            Net.of(*names) as net,
            late(net.hub.port, BUSY) as (address, seen),
            AsyncExitStack() as stack,
        ):
            links = [
                await stack.enter_async_context(Link(net.kits[name].at(address), patience=DEADLINE))
                for name in names
            ]
            for link in links:
                async with asyncio.timeout(DEADLINE):
                    await link.connected.wait()
            assert len(seen) == len(names) == net.hub.accepted

    asyncio.run(play())


def test_attempts_that_time_out_take_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_relay, "ATTEMPT", (0.1, 0.4))

    async def play() -> list[float]:
        with socket.create_server(("127.0.0.1", 0)) as mute:  # the system accepts, and nobody answers
            _, kits = temporary("f", ("a",))
            relay = hub_relay.HubRelay(kits["a"].at(f"127.0.0.1:{mute.getsockname()[1]}"), "")
            tried = []
            for _ in range(4):
                tried.append(dict(relay._options())["grpc.min_reconnect_backoff_ms"])
                async with asyncio.timeout(DEADLINE):
                    await relay.talk(lambda: None, lambda data: None, lambda send: asyncio.sleep(0))
            return tried

    assert asyncio.run(play()) == [100, 200, 400, 400]


def test_a_hub_without_free_files_says_so_and_admits_a_party_once_another_has_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        async with Net.of("a", "b", "c") as net:
            net.hub.most = 2
            async with Link(net.kits["a"]) as a, Link(net.kits["b"]) as b:
                await a.connected.wait()
                await b.connected.wait()
                with pytest.raises(
                    NoHub,
                    match=r"the hub has 2 connections, as many as its limit of open files \(\d+\) allows\. Raise",
                ):
                    async with Link(net.kits["c"], patience=0.1) as c:
                        await c.run(lambda me: asyncio.Event().wait())
                async with Link(net.kits["c"], patience=DEADLINE) as c:
                    await until(lambda: net.hub.refused > 3)
                    assert not c.connected.is_set()
                    net.hub.most = 3
                    await c.connected.wait()
                    async with connect(net.kits["a"]) as again:  # who is connected may connect again
                        await again.read()

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(play(), DEADLINE))
    lines = [r.getMessage() for r in caplog.records if "was turned away" in r.getMessage()]
    assert len(lines) == 1  # for many parties that were
    assert "2 parties are connected; 'c' was turned away" in lines[0]
    assert "LimitNOFILE=" in lines[0]


def test_the_operator_is_told_before_the_files_run_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "COUNT_AGAIN", 1)

    async def play() -> None:
        async with Net.of("a") as net, connect(net.kits["a"]) as a:
            await a.read()
            net.hub.most, net.hub.limit = 1, open_files.count()
            await until(lambda: any("files are open, of at most" in r.getMessage() for r in caplog.records))

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())


def test_the_operator_is_told_that_no_file_is_left_although_nobody_is_connected(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that nobody finished use the files of a hub; then it could not count them, and said 0."""
    monkeypatch.setattr(hubs, "COUNT_AGAIN", 1)

    def no_file_left(folder: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    async def play() -> None:
        async with Net.of("a") as net:
            monkeypatch.setattr(open_files.os, "listdir", no_file_left)
            assert open_files.count() == open_files.read_limit() == net.hub.limit
            await until(lambda: any("files are open, of at most" in r.getMessage() for r in caplog.records))

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())


@pytest.fixture
def lowered() -> Iterator[tuple[int, int]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = open_files.count() + 500
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    yield lower, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_served_hub_may_open_as_many_files_as_the_system_allows(lowered: tuple[int, int]) -> None:
    async def play() -> None:
        kit, _ = temporary("f", ("a",))
        is_ready = asyncio.Event()
        task = asyncio.create_task(hubs.serve(kit, lambda port: is_ready.set()))
        async with asyncio.timeout(DEADLINE):
            await is_ready.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert open_files.read_limit() == lowered[0]
    asyncio.run(play())
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (lowered[1], lowered[1])


def test_a_hub_in_another_program_keeps_to_its_limit(lowered: tuple[int, int]) -> None:
    hub = hubs.Hub(temporary("f", ("a",))[0])
    assert hub.limit == lowered[0]
    assert hub.most == lowered[0] - open_files.RESERVE


def test_the_hub_closes_the_connection_of_a_party_that_connected_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the party does not: a member could keep all files of the hub open otherwise."""
    options = [
        (name, 100 if name == "grpc.max_connection_idle_ms" else value) for name, value in hubs.HUB_OPTIONS
    ]
    assert options != hubs.HUB_OPTIONS
    monkeypatch.setattr(hubs, "HUB_OPTIONS", options)

    async def play() -> None:
        async with Net.of("a") as net, AsyncExitStack() as stack:
            kept = []
            for _ in range(10):
                call = await stack.enter_async_context(connect(net.kits["a"]))
                await call.read()
                kept.append(call)
                if len(kept) == 1:
                    one = open_files.count()
            await until(lambda: open_files.count() <= one + 2)
            assert not kept[-1].done()

    asyncio.run(play())


def test_the_hub_closes_connections_whose_handshake_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of anybody, without a certificate: each is a file of the hub."""
    limit = "grpc.server_handshake_timeout_ms"
    assert (
        dict(hubs.HUB_OPTIONS)[limit] == 1000 * hub_relay.ATTEMPT[1]
    )  # of a party that waits for a busy hub
    options = [(name, 300 if name == limit else value) for name, value in hubs.HUB_OPTIONS]
    monkeypatch.setattr(hubs, "HUB_OPTIONS", options)

    async def play() -> None:
        async with Net.of("a") as net:
            before = open_files.count()
            mute = [await asyncio.open_connection("127.0.0.1", net.hub.port) for _ in range(10)]
            async with asyncio.timeout(DEADLINE):
                for reader, writer in mute:
                    await reader.read()  # until the hub closes it
                    writer.close()
            async with connect(net.kits["a"]) as a:
                await a.read()
            await until(lambda: open_files.count() <= before + 2)

    asyncio.run(play())


class Away:
    """A relay whose connections are lost at once, or which cannot be reached."""

    def __init__(self, opens: int):
        self.opens = opens

    async def talk(self, opened: Callable[[], None], read: Any, write: Any) -> str:
        if self.opens:
            self.opens -= 1
            opened()
        return "gone"


def waits(
    monkeypatch: pytest.MonkeyPatch, kit: Kit, opens: int, tries: int, patience: float = 1e9
) -> tuple[list[float], int]:
    """Return the seconds that a party waits between attempts, and how often it looks for the reason."""
    now, slept, looks = 0.0, list[float](), 0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(seconds)
        if len(slept) >= tries:
            raise asyncio.CancelledError

    async def to_thread(*_: object) -> tuple[bool, str]:
        nonlocal looks
        looks += 1
        return False, "nobody listens"

    class Clock:
        monotonic = staticmethod(lambda: now)

    class Loop:
        Event = asyncio.Event

    Loop.sleep, Loop.to_thread = staticmethod(sleep), staticmethod(to_thread)  # type: ignore[attr-defined]
    monkeypatch.setattr(relay_connection, "time", Clock)
    monkeypatch.setattr(relay_connection, "asyncio", Loop)
    monkeypatch.setattr(relay_connection, "open_relay", lambda *_: Away(opens))

    def nothing(*_: object) -> None: ...

    party = RelayConnection(lambda: kit, b"", "", patience, nothing, nothing, nothing, nothing)
    with pytest.raises((asyncio.CancelledError, NoHub)):
        asyncio.run(party.stay_connected())
    return slept, looks


def test_parties_that_lose_their_connection_together_connect_again_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hub admits about RATE parties a second: 5,000 that it lost come over 20 s, ten parties at once."""
    random.seed(1)
    _, kits = temporary("f", ("a",))
    many = replace(kits["a"], parties=tuple(f"p{i}" for i in range(5000)))
    first = [waits(monkeypatch, many, opens=1, tries=1)[0][0] for _ in range(2000)]
    spread = 5000 / RATE
    for k in range(10):  # in each tenth of the time a tenth of them: six standard deviations
        came = sum(k * spread / 10 <= s < (k + 1) * spread / 10 for s in first)
        assert abs(came - 200) < 6 * (2000 * 0.1 * 0.9) ** 0.5
    assert waits(monkeypatch, replace(many, parties=("a",) * 10), opens=1, tries=1)[0][0] <= 10 / RATE


def test_a_party_looks_for_the_reason_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a connection; in an hour of attempts every two seconds there were 1,800."""
    _, kits = temporary("f", ("a",))
    slept, looks = waits(monkeypatch, kits["a"], opens=0, tries=10**6, patience=3600.0)
    assert sum(slept) > 3600.0
    assert 5 < looks < 3600 / LOOK + 10


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_a_machine_that_is_gone_is_told_from_a_process_that_has_no_core() -> None:
    """The kernel's limit ends a connection to a machine that is gone; gRPC's is for processes (hub.py, STALL)."""

    async def play() -> list[int]:
        async with Net.of("a") as net, connect(net.kits["a"]) as call:
            await call.read()
            found = []
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as each:
                    if each.family == socket.AF_UNIX:
                        continue
                    if net.hub.port in (each.getsockname()[1], each.getpeername()[1]):
                        found.append(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
            return found

    assert asyncio.run(play()) == [1000 * hubs.PATIENCE] * 2
    assert dict(hubs.HUB_OPTIONS)["grpc.http2.ping_timeout_ms"] == 1000 * hubs.STALL > 60_000
    assert dict(hub_relay.CLIENT_OPTIONS)["grpc.http2.ping_timeout_ms"] == 1000 * hubs.STALL
