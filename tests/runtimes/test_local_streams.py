"""Parties on one machine whose messages go from process to process: as over a hub, whatever happens to the
streams.
"""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import ProtocolError
from tacit.runtimes import conformance, processes
from tacit.runtimes.link import Link
from tacit.runtimes.processes import Processes
from tests.security.mail import until

from .net import DEADLINE, Net, NetSecret, catch, exchange, throw


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as path:
        yield Path(path)


def sockets(folder: Path, *names: str) -> dict[str, str]:
    return {name: str(folder / name) for name in names}


def cut(link: Link, rng: random.Random) -> None:
    """Close a random stream of this party."""
    incoming = list(link.local._incoming.values())
    if incoming:
        rng.choice(incoming).close()


def test_messages_pass_no_hub_and_every_size_arrives_once_and_in_order(folder: Path) -> None:
    sizes = [0, 1, 65_535, 65_537, 300_000, 3 << 20]

    async def play() -> None:
        local = sockets(folder, "a", "b")
        async with Net.of("a", "b") as net:
            a, b = await asyncio.gather(
                net.party("a", lambda me: exchange(me, "b", 30, sizes), local=local),
                net.party("b", lambda me: exchange(me, "a", 30, sizes), local=local),
            )
            assert a == b == list(range(30))
            assert net.hub.relayed == 0
            assert net.noticed() == []

    asyncio.run(asyncio.wait_for(play(), DEADLINE))


def test_nothing_is_lost_doubled_or_reordered_while_streams_break_and_the_hub_is_killed(folder: Path) -> None:
    """A stream is cut whenever a party has received so many more of its messages."""
    rng = random.Random(1)

    async def play() -> int:
        local = sockets(folder, "a", "b")
        async with Net.of("a", "b") as net:
            cuts, heard = 0, list[int]()

            async def trouble() -> None:
                nonlocal cuts
                is_first_hub = True
                while True:
                    mark = len(heard) + rng.randrange(5, 20)
                    await until(lambda mark=mark: len(heard) >= mark)
                    for link in net.links.values():
                        cuts += bool(link.local._incoming)
                        cut(link, rng)
                    if cuts > 5 and is_first_hub:
                        is_first_hub = False
                        await net.restart()

            storm = asyncio.create_task(trouble())
            sizes = [0, 10, 70_000, 300_000]
            a, b = await asyncio.gather(
                net.party("a", lambda me: exchange(me, "b", 600, sizes, heard), local=local),
                net.party("b", lambda me: exchange(me, "a", 600, sizes), local=local),
            )
            storm.cancel()
            assert a == b == list(range(600))
            return cuts

    assert asyncio.run(asyncio.wait_for(play(), DEADLINE)) > 5


def test_a_party_that_starts_late_is_dialed_until_it_is_there(folder: Path) -> None:
    async def play() -> None:
        local = sockets(folder, "a", "b")
        async with Net.of("a", "b") as net:
            thrown = asyncio.create_task(net.party("a", lambda me: throw(me, "b"), local=local))
            await until(lambda: "a" in net.links and "b" in net.links["a"].channels)
            await until(lambda: not net.links["a"].channels["b"].present)  # the first attempt has failed
            await net.party("b", lambda me: catch(me, "a"), local=local)
            assert await thrown == list(range(20))

    asyncio.run(asyncio.wait_for(play(), DEADLINE))


def test_a_restarted_party_is_noticed_by_the_one_that_awaits_it(folder: Path) -> None:
    async def play() -> None:
        local = sockets(folder, "a", "b")
        async with Net.of("a", "b") as net:

            async def throws_and_waits(me: Any) -> None:
                await throw(me, "b", 3)
                await me.recv("b", NetSecret)

            waiting = asyncio.create_task(net.party("a", throws_and_waits, local=local, away=DEADLINE))
            await net.party("b", lambda me: catch(me, "a", 3), local=local)
            again = asyncio.create_task(net.party("b", lambda me: catch(me, "a", 3), local=local))
            with pytest.raises(ProtocolError, match="party 'b' was restarted while party 'a' waited"):
                await waiting
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)

    asyncio.run(asyncio.wait_for(play(), DEADLINE))


def test_a_stream_that_is_dialed_while_a_party_ends_is_closed(folder: Path) -> None:
    """Its task is canceled before it has begun; the socket was once left open, to be found by a later test."""

    async def play() -> int:
        local = sockets(folder, "a", "b")
        async with Net.of("a", "b") as net:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dialer:
                async with Link(net.kits["b"], local=local) as link:
                    dialer.connect(local["b"])
                    link.local._accept()
                    (dialed,) = link.local._dialed
            return dialed.fileno()

    assert asyncio.run(asyncio.wait_for(play(), DEADLINE)) == -1


def test_streams_are_closed_also_if_a_party_is_canceled_again_while_it_ends(folder: Path) -> None:
    """The second cancellation came while the first one's tasks were awaited, and what follows was left out."""

    async def play() -> int:
        local = sockets(folder, "a", "b")
        async with Net.of("a", "b") as net:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dialer:
                link = Link(net.kits["b"], local=local)
                await link.__aenter__()
                dialer.connect(local["b"])
                link.local._accept()
                (dialed,) = link.local._dialed
                ending = asyncio.ensure_future(link.__aexit__(None, None, None))
                await asyncio.sleep(0)  # it has canceled its tasks, and waits for them
                ending.cancel()
                await asyncio.wait([ending])
            return dialed.fileno()

    assert asyncio.run(asyncio.wait_for(play(), DEADLINE)) == -1


def test_an_awaited_party_that_ended_is_named_after_the_time_given(folder: Path) -> None:
    async def play() -> None:
        local = sockets(folder, "a", "b")
        async with Net.of("a", "b") as net:

            async def throws_and_waits(me: Any) -> None:
                await throw(me, "b", 3)
                await me.recv("b", NetSecret)

            waiting = asyncio.create_task(net.party("a", throws_and_waits, local=local, away=0.1))
            await net.party("b", lambda me: catch(me, "a", 3), local=local)
            with pytest.raises(ProtocolError, match="party 'b' has been disconnected for"):
                await waiting

    asyncio.run(asyncio.wait_for(play(), DEADLINE))


@pytest.mark.parametrize(
    "check",
    [conformance.ping_pong_is_answered_and_recorded, conformance.a_large_tensor_arrives_whole_and_unshared],
    ids=lambda c: c.__name__,
)
def test_processes_through_a_hub_pass_the_runtime_suite(check: Any) -> None:
    check(Processes(through_hub=True))


def test_a_folder_too_long_for_sockets_leaves_the_way_through_the_hub(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "LONGEST_SOCKET", 1)
    with caplog.at_level("INFO", "tacit.party"):
        conformance.ping_pong_is_answered_and_recorded(Processes())
    assert "is too long for sockets: messages go through the hub" in caplog.text
