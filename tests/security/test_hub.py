"""A hub that spies or meddles, with real connections through it: it reads nothing, and whatever it does to a
frame is noticed.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import torch

from tacit.errors import SealBroken
from tacit.parties import Message
from tacit.runtimes import channel, link
from tests.runtimes.net import Net, NetSecret, catch, throw

SECRET = "the patient of row 17 has condition X"


class HubWeights(Message, reveals="weights"):
    w: torch.Tensor


class Spy:
    """Records every byte it handles, and manipulates them as instructed."""

    def __init__(self, act: Any = lambda n, data: [data]):
        self.saw: list[tuple[str, str, bytes]] = []
        self.act = act
        self.count = 0

    def __call__(self, sender: str, to: str, data: bytes) -> list[bytes]:
        self.saw.append((sender, to, data))
        if data[3 + data[1] + data[2] :][:1] == b"R":  # records; the handshake is tested without a network
            self.count += 1
            return list(self.act(self.count, data))
        return [data]


def test_a_known_plaintext_appears_nowhere_in_what_the_hub_handled() -> None:
    spy, weights = Spy(), torch.arange(50_000, dtype=torch.float32)

    async def play() -> None:
        async def sends(me: Any) -> None:
            await me.scope("a telling scope").send("b", NetSecret(SECRET, SECRET.encode() * 3000))
            await me.send("b", HubWeights(weights))

        async def reads(me: Any) -> None:
            got = await me.scope("a telling scope").recv("a", NetSecret)
            assert got.text == SECRET
            assert torch.equal((await me.recv("a", HubWeights)).w, weights)

        async with Net.of("a", "b", tap=spy) as net:
            await net.run(a=sends, b=reads)

    asyncio.run(play())
    handled = b"|".join(data for _, _, data in spy.saw)
    assert len(handled) > len(SECRET) * 3000 + weights.nbytes  # it did go through here
    raw = weights.numpy().tobytes()
    for known in (
        SECRET.encode(),
        SECRET.encode()[5:15],
        b"telling",
        b"NetSecret",
        b"HubWeights",
        b"TCT\x01",
        raw[4000:4016],
        raw[100_000:100_012],
    ):
        assert known not in handled
    assert {(sender, to) for sender, to, _ in spy.saw} == {("a", "b"), ("b", "a")}  # what it does know


def meddled(act: Any, count: int = 40) -> tuple[list[int], list[str]]:
    async def play() -> tuple[list[int], list[str]]:
        async with Net.of("a", "b", tap=Spy(act)) as net:
            told = await net.run(a=lambda me: throw(me, "b", count), b=lambda me: catch(me, "a", count))
            return told["a"], net.noticed()

    return asyncio.run(play())


def altered(n: int, data: bytes) -> list[bytes]:
    return [data[:-1] + bytes((data[-1] ^ 1,))] if n == 7 else [data]


def replayed(n: int, data: bytes) -> list[bytes]:
    return [data, data] if n == 7 else [data]


def dropped(n: int, data: bytes) -> list[bytes]:
    return [] if n in (7, 11) else [data]


def test_a_frame_that_is_altered_replayed_or_dropped_is_noticed_and_changes_nothing() -> None:
    for act, words in (
        (altered, ("was altered in transit",)),
        (replayed, ("was received twice; the second was dropped", "was repeated")),
    ):
        told, noticed = meddled(act)
        assert told == list(range(40))
        assert any(w in n for n in noticed for w in words), noticed
    told, _ = meddled(dropped)
    assert told == list(range(40))


def test_a_dropped_or_delayed_frame_in_a_stream_is_noticed() -> None:
    held: list[bytes] = []

    def late(n: int, data: bytes) -> list[bytes]:
        """Every fifth record to b waits and comes after the next."""
        if data[3:4] != b"a":
            return [data]
        if n % 5 == 0 and not held:
            held.append(data)
            return []
        return [data, held.pop()] if held else [data]

    async def play() -> tuple[list[int], list[str]]:
        async def sends(me: Any) -> None:
            for i in range(60):
                await me.send("b", NetSecret(str(i)))

        async def reads(me: Any) -> list[int]:
            return [int((await me.recv("a", NetSecret)).text) for _ in range(60)]

        async with Net.of("a", "b", tap=Spy(late)) as net:
            told = await net.run(a=sends, b=reads)
            return told["b"], net.noticed()

    told, noticed = asyncio.run(play())
    assert told == list(range(60))
    assert any("is missing: record" in n for n in noticed), noticed


def test_a_hub_that_alters_everything_is_named_and_the_party_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "QUIET", 0.05)  # repeat soon, so that the test is short
    monkeypatch.setattr(link, "TICK", 0.02)

    async def play() -> None:
        async with Net.of("a", "b", tap=Spy(lambda n, data: [data[:-1] + bytes((data[-1] ^ 1,))])) as net:
            await net.run(a=lambda me: throw(me, "b"), b=lambda me: catch(me, "a"))

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(play())
    assert caught.group_contains(SealBroken, match="Do not trust this hub")


def test_random_meddling_never_changes_what_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded: each record is, one time in eight, dropped or altered (at most four times, then a party would
    rightly give up).
    """
    monkeypatch.setattr(channel, "QUIET", 0.05)  # ask soon, so that the test is short
    monkeypatch.setattr(link, "TICK", 0.02)
    for seed in range(4):
        rng, changed = random.Random(seed), [0]

        def act(n: int, data: bytes, rng: random.Random = rng, changed: list[int] = changed) -> list[bytes]:
            roll = rng.random()
            if n > 120 or roll > 0.125:
                return [data]
            if roll < 0.03 and changed[0] < 4:
                changed[0] += 1
                return [data[:-1] + bytes((data[-1] ^ 1,))]
            return []

        told, _ = meddled(act, 30)
        assert told == list(range(30))
