"""A party that fails tells the others of its run, who stop at once: over real sockets and a hub."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tacit.errors import BadData, PartyStopped, ProtocolError, QueryRefused
from tacit.parties import Message
from tacit.parties.codec import encode
from tacit.parties.party import Party
from tacit.runtimes import stopping
from tacit.runtimes.link import Link
from tests.runtimes.net import DEADLINE, OPTIONS, Net, NetBall

SECRET = "row 7 has the diagnosis F32"


async def play(net: Net, peers: tuple[str, ...], **programs: Any) -> dict[str, Any]:
    """Run programs to their ends; each party's result or error."""

    async def one(name: str, program: Any) -> Any:
        async with Link(net.kits[name], **OPTIONS) as link:
            net.links[name] = link
            return await link.run(program, peers)

    async with asyncio.timeout(DEADLINE):
        ends = await asyncio.gather(*(one(n, p) for n, p in programs.items()), return_exceptions=True)
    return dict(zip(programs, ends))


async def fail(me: Party) -> None:
    raise BadData(SECRET)


@pytest.mark.parametrize("within", [None, DEADLINE])
def test_who_waits_for_a_failed_party_is_told_at_once_and_learns_no_text(within: float | None) -> None:
    """b fails when it has heard from both: one that connects later may hear of it from the other one first."""

    async def wait(me: Party) -> None:
        await me.send("b", NetBall(1))
        await me.recv("b", NetBall, within=within)

    async def fail_later(me: Party) -> None:
        await me.gather(["a", "c"], NetBall)
        raise BadData(SECRET)

    async def main() -> tuple[dict[str, Any], Net]:
        async with Net.of("a", "b", "c") as net:
            return await play(net, ("a", "b", "c"), a=wait, b=fail_later, c=wait), net

    ends, net = asyncio.run(main())
    assert isinstance(ends["b"], BadData)
    for name in "ac":
        assert isinstance(ends[name], PartyStopped)
        assert "party 'b' stopped, because its data do not fit the job." in str(ends[name])
        assert "F32" not in str(ends[name])
        seen = [line for line in net.links[name].mailbox.ledger.seen if line.kind == "RunStopped"]
        assert any(line.sender == "b" for line in seen)


def test_an_answer_is_read_before_the_failure_although_a_listener_waits_for_its_sender() -> None:
    """As in a matching whose party may be started again: b refuses, and stops in the same moment."""

    async def a(me: Party) -> str:
        listener = asyncio.ensure_future(me.scope("again").first(NetBall, senders=["b"], background=True))
        await me.send("b", NetBall(1))
        await me.recv("b", NetBall)
        for _ in range(20):  # what a program does with an answer takes several turns of the loop
            await asyncio.sleep(0)
        listener.cancel()
        return "read"

    async def b(me: Party) -> None:
        await me.recv("a", NetBall)
        await me.send("a", NetBall(2))
        raise BadData(SECRET)

    async def main() -> dict[str, Any]:
        async with Net.of("a", "b", "c") as net:
            return await play(net, ("a", "b"), a=a, b=b)

    ends = asyncio.run(main())
    assert ends["a"] == "read"
    assert isinstance(ends["b"], BadData)


def test_a_chain_of_waiting_parties_ends_from_its_failed_end() -> None:
    """c waits for a, which waits for b: whoever fails because of another tells its own peers.

    b fails after c has heard from a: whoever waits for a party that never came is told by any that fails.
    """

    async def a(me: Party) -> None:
        await me.send("c", NetBall(1))
        await me.recv("b", NetBall)

    async def b(me: Party) -> None:
        await me.recv("c", NetBall)
        raise BadData(SECRET)

    async def c(me: Party) -> None:
        await me.recv("a", NetBall)
        await me.send("b", NetBall(2))
        await me.recv("a", NetBall)

    async def main() -> dict[str, Any]:
        async with Net.of("a", "b", "c") as net:
            return await play(net, ("a", "b", "c"), a=a, b=b, c=c)

    ends = asyncio.run(main())
    assert "'b' stopped" in str(ends["a"])
    assert "'a' stopped, because of a message, or a missing message, of a party" in str(ends["c"])


def test_who_waits_for_a_party_that_never_came_is_told_that_another_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a run whose third party was killed while it connected: the run cannot start any more."""
    monkeypatch.setitem(OPTIONS, "start_wait", 0.0)  # nobody waits for c in order to tell it

    async def wait(me: Party) -> None:
        await me.send("c", NetBall(1))
        await me.recv("c", NetBall)

    async def main() -> dict[str, Any]:
        async with Net.of("a", "b", "c") as net:
            return await play(net, ("a", "b", "c"), a=wait, b=fail)

    ends = asyncio.run(main())
    assert isinstance(ends["a"], PartyStopped)
    assert "party 'b' stopped" in str(ends["a"])


def test_messages_before_the_failure_are_read_first() -> None:
    """b sends an answer and fails: a, which needs no more, ends well, and c gets the reason b sent it."""

    async def b(me: Party) -> None:
        await me.send(["a", "c"], NetBall(3))
        link: Any = me.transport
        link.tell(["a", "c"], QueryRefused(SECRET))

    async def a(me: Party) -> int:
        return (await me.recv("b", NetBall)).x

    async def c(me: Party) -> None:
        raise ValueError(f"b said {(await me.recv('b', NetBall)).x}")

    async def main() -> dict[str, Any]:
        async with Net.of("a", "b", "c") as net:
            return await play(net, ("b",), a=a, b=b, c=c)

    ends = asyncio.run(main())
    assert ends["a"] == 3
    assert str(ends["c"]) == "b said 3"


def test_a_party_outside_the_run_cannot_end_it() -> None:
    told = asyncio.Event()

    async def a(me: Party) -> int:
        return (await me.recv("b", NetBall)).x

    async def b(me: Party) -> None:
        await told.wait()
        await me.send("a", NetBall(1))

    async def main() -> Any:
        async with (
            Net.of("a", "b", "stranger") as net,
            asyncio.timeout(DEADLINE),
            Link(net.kits["a"], **OPTIONS) as link,
            Link(net.kits["b"], **OPTIONS) as other,
        ):
            runs = [asyncio.create_task(x.run(p, ("a", "b"))) for x, p in ((link, a), (other, b))]
            async with Link(net.kits["stranger"], **OPTIONS) as liar:
                liar.tell(["a"], BadData("x"))
                await liar.drain()
            assert "stranger" in link._stopped
            told.set()
            return (await asyncio.gather(*runs))[0]

    assert asyncio.run(main()) == 1


class LongStory(Message, reveals="a text that a lying party wants to see printed"):
    text: str


@pytest.mark.parametrize(
    "frame",
    [
        bytes(encode(stopping.RunStopped("\x1b[2J pay 100 coins to …"))),
        bytes(encode(LongStory("pay 100 coins" * 1000))),
        b"no message at all",
    ],
)
def test_a_lying_party_ends_the_run_and_prints_nothing_of_its_own(frame: bytes) -> None:
    async def lie(me: Party) -> None:
        link: Any = me.transport
        link._channel("a").send(stopping.STOPPED, frame)
        await me.recv("a", NetBall)

    async def wait(me: Party) -> None:
        await me.recv("b", NetBall)

    async def main() -> dict[str, Any]:
        async with Net.of("a", "b") as net:
            return await play(net, ("a", "b"), a=wait, b=lie)

    ends = asyncio.run(main())
    assert isinstance(ends["a"], PartyStopped)
    assert str(ends["a"]).startswith("party 'b' stopped, because of an error there. Only its own output")


def test_a_cancelled_party_tells_the_others() -> None:
    started = asyncio.Event()

    async def a(me: Party) -> None:
        await me.recv("b", NetBall)

    async def b(me: Party) -> None:
        started.set()
        await me.recv("a", NetBall)

    async def main() -> str:
        async with (
            Net.of("a", "b") as net,
            asyncio.timeout(DEADLINE),
            Link(net.kits["a"], **OPTIONS) as link,
            Link(net.kits["b"], **OPTIONS) as other,
        ):
            waits, ends = (asyncio.create_task(x.run(p, ("a", "b"))) for x, p in ((link, a), (other, b)))
            await started.wait()
            ends.cancel()
            with pytest.raises(ProtocolError) as error:
                await waits
            with pytest.raises(asyncio.CancelledError):
                await ends
            return str(error.value)

    assert "'b' stopped, because its operator ended it" in asyncio.run(main())


# who connects later ------------------------------------------------------------------------------------------


def test_a_party_that_connects_after_another_failed_is_told_the_kind_and_no_text() -> None:
    async def main() -> tuple[dict[str, tuple[str, float]], dict[str, tuple[str, float]]]:
        async with Net.of("a", "b", "c") as net, asyncio.timeout(DEADLINE):
            await play(net, (), b=fail)
            async with Link(net.kits["a"], **OPTIONS) as late:
                await late.connected.wait()
                told = dict(late.earlier)
            async with Link(net.kits["b"], **OPTIONS) as again:
                await again.connected.wait()
            async with Link(net.kits["c"], **OPTIONS) as after:
                await after.connected.wait()
                return told, dict(after.earlier)

    told, after = asyncio.run(main())
    assert set(told) == {"b"}
    assert "s ago, because its data do not fit the job (by the hub's word" in told["b"][0]
    assert "F32" not in told["b"][0]
    assert after == {}  # b started again in between


def test_who_needs_a_failed_party_waits_for_it_no_longer_than_its_patience() -> None:
    async def wait(me: Party) -> None:
        await me.recv("b", NetBall)

    async def main() -> tuple[Any, Any]:
        async with Net.of("a", "b") as net, asyncio.timeout(DEADLINE):
            await play(net, (), b=fail)

            async def late() -> Any:
                async with Link(net.kits["a"], **{**OPTIONS, "patience": 0.1}, needs=("b",)) as link:
                    return await link.run(wait)

            async def throw(me: Party) -> None:
                await me.send("a", NetBall(1))

            (gone,) = await asyncio.gather(late(), return_exceptions=True)
            await play(net, (), b=fail)
            async with Link(net.kits["a"], **OPTIONS, needs=("b",)) as link:
                waiting = asyncio.create_task(link.run(wait))
                await play(net, (), b=throw)  # it starts again
                await waiting
                return gone, dict(link.earlier)

    gone, left = asyncio.run(main())
    assert isinstance(gone, PartyStopped)
    assert "It did not start again within 0 s." in str(gone)
    assert left == {}


@pytest.mark.parametrize(
    "failed",
    [
        None,
        [],
        "b",
        {"b": 1},
        {"b": ["data"]},
        {"b": ["data", "x"]},
        {"b": ["data", 10**400]},
        {"b": ["data", float("nan")]},
        {"b": ["data", -1.0]},
        {"zz": ["data", 1.0]},
        {"a": ["data", 1]},
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_a_hub_says_about_failures_must_be_about_parties(failed: Any) -> None:
    async def main() -> None:
        async with Net.of("a", "b") as net, Link(net.kits["a"], **OPTIONS) as link:
            link._learn_failures(failed)
            assert link.earlier == {}
            link._learn_failures({"b": ["<b>\x1b", 1.0]})
            assert "of an error there" in link.earlier["b"][0]  # never a text of the hub

    asyncio.run(main())


def test_what_a_party_tells_the_hub_is_one_of_the_known_kinds() -> None:
    assert stopping.to_reason(b"data") == "data"
    assert stopping.to_reason(b"row 7 \xff" * 1000) == "error"
    assert stopping.reason_of(KeyboardInterrupt()) == "operator"
