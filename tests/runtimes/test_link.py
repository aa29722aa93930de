"""A party's connection over real sockets: in order, exactly once, whatever happens to connections and to the
hub.
"""

from __future__ import annotations

import asyncio
import random
import resource
from typing import Any

import pytest

from tacit.errors import ProtocolError
from tacit.runtimes import link as links
from tacit.runtimes.channel import WINDOW
from tacit.runtimes.link import Link
from tests.security.mail import until

from .net import DEADLINE, Net, NetBall, NetSecret, catch, exchange, throw


async def counts(me: Any, to: str, n: int, sizes: list[int]) -> None:
    for i in range(n):
        await me.send(to, NetSecret(str(i), bytes(sizes[i % len(sizes)])))


def test_nothing_is_lost_doubled_or_reordered_while_the_hub_is_killed_again_and_again() -> None:
    """The hub is killed whenever a party has received so many of its messages."""
    rng = random.Random(1)

    async def play() -> tuple[dict[str, Any], int]:
        async with Net.of("a", "b") as net:
            n, sizes, heard = 400, [0, 10, 70_000, 300_000], list[int]()

            async def trouble() -> None:
                for mark in sorted(rng.sample(range(10, n - 100), 5)):
                    await until(lambda mark=mark: len(heard) >= mark)
                    await net.restart(rng.uniform(0, 0.2))

            storm = asyncio.create_task(trouble())
            told = await net.run(
                a=lambda me: exchange(me, "b", n, sizes, heard), b=lambda me: exchange(me, "a", n, sizes)
            )
            await storm
            return told, sum(link.connections for link in net.links.values())

    told, connections = asyncio.run(play())
    assert told == {"a": list(range(400)), "b": list(range(400))}
    assert connections > 2


def test_a_party_whose_connection_is_cut_continues() -> None:
    async def play() -> list[int]:
        async with Net.of("a", "b") as net:

            async def cuts() -> None:
                for _ in range(4):
                    await asyncio.sleep(0.15)
                    for connection in list(net.hub.connections.values()):
                        connection.news.set()
                        connection.closed = ""
                    for link in net.links.values():
                        link._tasks[0].cancel()  # the connection's task dies; a new one dials
                        await asyncio.gather(link._tasks[0], return_exceptions=True)
                        link._tasks[0] = asyncio.create_task(link.relay.stay_connected())

            task = asyncio.create_task(cuts())
            told = await net.run(a=lambda me: throw(me, "b", 400), b=lambda me: catch(me, "a", 400))
            await task
            return told["a"]

    assert asyncio.run(play()) == list(range(400))


def test_a_late_party_gets_earlier_messages() -> None:
    async def play() -> list[int]:
        async with Net.of("a", "b") as net:
            early = asyncio.create_task(net.party("a", lambda me: throw(me, "b", 3)))
            await until(lambda: "a" in net.links and "b" in net.links["a"].channels)
            await until(lambda: not net.links["a"].channels["b"].present)  # the hub says that b is not there
            await net.party("b", lambda me: catch(me, "a", 3))
            return await early

    assert asyncio.run(play()) == [0, 1, 2]


def test_a_party_that_has_finished_keeps_its_messages_for_one_that_connects_later() -> None:
    async def play() -> int:
        async with Net.of("a", "b") as net:
            has_sent = asyncio.Event()

            async def says(me: Any) -> None:
                await me.send("b", NetBall(7))
                has_sent.set()

            async def receives(me: Any) -> int:
                return (await me.recv("a", NetBall)).x

            early = asyncio.create_task(net.party("a", says, linger=2.0))
            await has_sent.wait()
            await asyncio.sleep(
                0.3
            )  # longer than it waits for a receiver that was there and left: linger / 10
            assert not early.done()
            got = await net.party("b", receives)
            await early
            return got

    assert asyncio.run(_soon(play)) == 7


def test_the_hub_may_start_last() -> None:
    async def play() -> list[int]:
        async with Net.of("a", "b") as net:
            await net.hub.stop()
            game = asyncio.create_task(
                net.run(a=lambda me: throw(me, "b", 3), b=lambda me: catch(me, "a", 3))
            )
            await asyncio.sleep(0.2)  # they try, and try again
            await net.restart()
            return (await game)["a"]

    assert asyncio.run(play()) == [0, 1, 2]


def test_a_party_that_is_ended_does_not_wait_for_one_that_never_came() -> None:
    """Ctrl-C once waited for the first contact with every receiver, five minutes by default."""

    async def play() -> None:
        async with Net.of("a", "b") as net:
            sent = asyncio.Event()

            async def program(me: Any) -> None:
                await me.send("b", NetBall(1))
                sent.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(net.party("a", program, linger=0.1))
            await sent.wait()
            task.cancel()
            await asyncio.wait([task], timeout=DEADLINE / 3)  # the first contact is awaited for DEADLINE
            assert task.cancelled()

    asyncio.run(play())


def test_a_link_communicates_with_members_only() -> None:
    async def play() -> None:
        async with Net.of("a", "b") as net, Link(net.kits["a"]) as link:
            with pytest.raises(ProtocolError, match="party 'a' tried to send to 'b' as 'b'"):
                await link.deliver("b", "b", "", b"")
            with pytest.raises(
                ProtocolError,
                match=r"party 'a' sends to 'bob', which is not in federation 'test'\. Known: a, b",
            ):
                await link.deliver("a", "bob", "", b"")

    asyncio.run(play())


def test_a_large_message_is_not_held_three_times_over() -> None:
    """64 MB from one party to another, both in this process: the message once at its sender, once at its
    receiver, and windows of a few MB on the way. The codec's frame is the sender's copy here, and what decode
    makes is freed with it.
    """
    size = 64 << 20

    async def play() -> int:
        async with Net.of("a", "b") as net:

            async def sends(me: Any) -> None:
                await me.send("b", NetSecret("x", bytes(size)))
                await me.recv("b", NetBall)

            async def reads(me: Any) -> int:
                while not net.links["b"].mailbox._queues:
                    await asyncio.sleep(0.05)
                top = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                await me.recv("a", NetSecret)
                await me.send("a", NetBall(1))
                return top

            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return (await net.run(a=sends, b=reads))["b"] - before

    grown = asyncio.run(play()) * 1024
    assert grown < 3.75 * size, (
        f"{grown / size:.2f} times the message"
    )  # bytes(size), its frame, the receiver's, windows


@pytest.mark.parametrize(
    ("before", "then"), [(800, 2_400), pytest.param(2_000, 8_000, marks=pytest.mark.slow)]
)
def test_memory_stays_flat_over_thousands_of_small_messages(before: int, then: int) -> None:
    """After the first messages, half a kB for each further one is more than any of them may leave behind."""

    async def play() -> tuple[int, int]:
        async with Net.of("a", "b") as net:

            async def sends(me: Any) -> tuple[int, int]:
                await throw(me, "b", before)
                first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                await throw(me, "b", then)
                return first, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

            async def answers(me: Any) -> None:
                await catch(me, "a", before)
                await catch(me, "a", then)

            told = await net.run(a=sends, b=answers)
            for link in net.links.values():
                assert all(c.idle for c in link.channels.values())
                assert not link.mailbox._queues
            return told["a"]

    first, last = asyncio.run(play())
    assert last - first < then / 2 + 512  # kB


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Links that look for missing parties every 20 ms; a list of who looked."""
    found: list[str] = []
    original = Link._check_missing

    def check(self: Link, away: float) -> None:
        found.append(self.kit.name)
        original(self, away)

    monkeypatch.setattr(links, "TICK", 0.02)
    monkeypatch.setattr(Link, "_check_missing", check)
    return found


@pytest.mark.usefixtures("ticks")
def test_a_party_that_disconnected_is_not_awaited_forever() -> None:
    """Its absence is reported at once; it may return within `away` seconds, and is named with the expected message. A
    party that never connected is a different case.
    """

    async def play() -> None:
        async with Net.of("a", "b", "c") as net:

            async def says(me: Any) -> None:
                await me.send("a", NetBall(1))

            async def wants_more(me: Any) -> None:
                await me.recv("b", NetBall)
                await me.recv("b", NetSecret)

            waiting = asyncio.create_task(net.party("a", wants_more, away=0.1))
            never = asyncio.create_task(net.party("c", wants_more, away=0.1))
            await net.party("b", says)
            with pytest.raises(
                ProtocolError,
                match=r"party 'b' has been disconnected for \d+ s .* and party 'a' waits for NetSecret from "
                r"'b'\. "
                r"Check that party",
            ):
                await waiting
            assert not never.done()
            never.cancel()

    asyncio.run(_soon(play))


def test_a_party_that_reconnects_in_time_is_not_reported_absent(ticks: list[str]) -> None:
    async def play() -> int:
        async with Net.of("a", "b") as net:
            is_back = asyncio.Event()

            async def asks(me: Any) -> int:
                await me.send("b", NetBall(1))
                await me.recv("b", NetBall)
                waiting = asyncio.create_task(me.recv("b", NetBall))
                net.links["b"]._tasks[
                    0
                ].cancel()  # b's connection is lost, and made again when this was noticed
                await until(lambda: not net.links["a"].channels["b"].present)
                ticks.clear()
                await until(lambda: ticks.count("a") > 2)
                net.links["b"]._tasks[0] = asyncio.create_task(net.links["b"].relay.stay_connected())
                is_back.set()
                return (await waiting).x

            async def answers(me: Any) -> None:
                await me.send("a", await me.recv("a", NetBall))
                await is_back.wait()
                await me.send("a", NetBall(2))

            a = asyncio.create_task(net.party("a", asks, away=20.0))
            await net.party("b", answers)
            return await a

    assert asyncio.run(_soon(play)) == 2


@pytest.mark.usefixtures("ticks")
def test_a_restarted_party_is_distinguished_from_the_one_before() -> None:
    async def play() -> None:
        async with Net.of("a", "b") as net:

            async def says(me: Any) -> None:
                await me.send("a", NetBall(1))

            async def wants_more(me: Any) -> None:
                await me.recv("b", NetBall)
                await me.scope("later").recv("b", NetSecret)

            waiting = asyncio.create_task(net.party("a", wants_more, away=60.0))
            await net.party("b", says)
            await net.party("b", says)
            with pytest.raises(
                ProtocolError,
                match=r"party 'b' was restarted while party 'a' waited for NetSecret from 'b' in scope "
                r"'later'",
            ):
                await waiting

    asyncio.run(_soon(play))


@pytest.mark.usefixtures("ticks")
def test_one_that_is_not_there_to_read_ends_who_has_too_much_to_say() -> None:
    async def play() -> None:
        async with Net.of("a", "b") as net:

            async def hears(me: Any) -> None:
                await me.recv("a", NetSecret)

            waiting = asyncio.create_task(
                net.party("a", lambda me: counts(me, "b", 100, [1 << 20]), away=0.1)
            )
            await net.party("b", hears, linger=0.1)
            with pytest.raises(
                ProtocolError,
                match=r"party 'b' has been disconnected for \d+ s .* and party 'a' waits for a confirmation "
                r"that it reads",
            ):
                await waiting

    asyncio.run(_soon(play))


async def _soon(play: Any) -> Any:
    async with asyncio.timeout(DEADLINE):
        return await play()


def test_an_upload_resumes_where_it_was_confirmed_when_the_hub_is_replaced() -> None:
    """32 MiB, cut twice: at most a window of 8 MiB is sent again each time, never the whole."""
    size, sent, marks = 32 << 20, 0, [10 << 20, 22 << 20]
    cut = asyncio.Event()

    def count(sender: str, to: str, data: bytes) -> list[bytes]:
        nonlocal sent
        if sender == "a" and len(data) > 1000:
            sent += len(data)
            if marks and sent >= marks[0]:
                marks.pop(0)
                cut.set()
        return [data]

    async def main() -> str:
        async with Net.of("a", "b", tap=count) as net:

            async def a(me: Any) -> None:
                await me.send("b", NetSecret("x", bytes(size)))
                await me.recv("b", NetBall)

            async def b(me: Any) -> int:
                got = await me.recv("a", NetSecret)
                await me.send("a", NetBall(1))
                return len(got.blob)

            async def replace_hub() -> None:
                for _ in range(2):
                    await cut.wait()
                    cut.clear()
                    await net.restart()

            async with asyncio.TaskGroup() as group:
                group.create_task(replace_hub())
                result = group.create_task(net.run(a=a, b=b))
        return str(result.result()["b"])

    assert asyncio.run(main()) == str(size)
    assert not marks, "it was cut twice"
    assert size < sent < size + 2 * WINDOW + (1 << 20)  # and what records add
