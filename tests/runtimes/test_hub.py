"""The hub over real sockets: who gets in, what it passes on, what it does with those who misbehave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tacit.errors import BadKit, NoHub
from tacit.parties import Party
from tacit.runtimes import hub as hubs
from tacit.runtimes import relay_connection
from tacit.runtimes.envelope import MAIL, MAX_ENVELOPE, METHOD, pack
from tacit.runtimes.hub import Hub
from tacit.runtimes.hub_relay import CLIENT_OPTIONS
from tacit.runtimes.kits import Kit, load, temporary
from tacit.runtimes.link import Link
from tacit.runtimes.preflight import reach
from tacit.runtimes.provision import FederationFile, provision

from .net import DEADLINE, Net, NetBall, catch, throw


@asynccontextmanager
async def connect(kit: Kit) -> AsyncIterator[Any]:
    """The stream of a party that reads and writes what it likes."""
    authority, key, certificate = kit.pems()
    options = [(k, v) for k, v in CLIENT_OPTIONS if "message_length" not in k] + [
        ("grpc.max_send_message_length", -1)
    ]
    async with grpc.aio.secure_channel(
        kit.address, grpc.ssl_channel_credentials(authority, key, certificate), options=options
    ) as channel:
        yield channel.stream_stream(METHOD)()


async def raw(kit: Kit, envelopes: list[bytes]) -> tuple[grpc.StatusCode, str]:
    """A party that writes these envelopes: how the hub ends it."""
    async with connect(kit) as call:
        try:
            await call.read()  # the welcome
            for envelope in envelopes:
                await call.write(envelope)
            async with asyncio.timeout(DEADLINE):
                while await call.read() is not grpc.aio.EOF:
                    pass
        except grpc.aio.AioRpcError:
            pass
        return await call.code(), await call.details()


def test_a_hub_needs_the_hubs_kit() -> None:
    _, kits = temporary("f", ("a",))
    with pytest.raises(BadKit, match=r"this is the kit of 'a' \(a client\); a hub needs the hub's own kit"):
        Hub(kits["a"])


def test_two_hubs_cannot_have_one_port() -> None:
    async def both() -> None:
        async with Net.of("a") as net:
            with pytest.raises(NoHub, match=r"the hub cannot listen on 127\.0\.0\.1:.*: the port is taken"):
                await Hub(replace(net.hub.kit, listen=f"127.0.0.1:{net.hub.port}")).start()

    asyncio.run(both())


def test_a_party_that_claims_anothers_name_is_cut_off_and_the_others_play_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        async with Net.of("a", "b", "mallory") as net:
            game = asyncio.create_task(
                net.run(a=lambda me: throw(me, "b", 50), b=lambda me: catch(me, "a", 50))
            )
            code, why = await raw(net.kits["mallory"], [pack(MAIL, "a", "b", b"R" + bytes(60))])
            assert code == grpc.StatusCode.PERMISSION_DENIED
            assert "the certificate is that of 'mallory', but an envelope is from 'a'" in why
            assert (await game)["a"] == list(range(50))

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    assert any("refused 'mallory'" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize(
    ("envelope", "status"),
    [
        (pack(MAIL, "mallory", "a", bytes(MAX_ENVELOPE)), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"", grpc.StatusCode.PERMISSION_DENIED),
        (b"\x09\x01\x01ab", grpc.StatusCode.PERMISSION_DENIED),
        (b"\x00\xff\xffab", grpc.StatusCode.PERMISSION_DENIED),
        (b"\x00\x01\x01\xff\xfe", grpc.StatusCode.PERMISSION_DENIED),
        (pack(1, "a", "b"), grpc.StatusCode.PERMISSION_DENIED),
    ],
    ids=["oversized", "empty", "kind", "lengths", "names", "poses as the hub"],
)
def test_invalid_envelope_bytes_end_only_their_own_connection(
    envelope: bytes, status: grpc.StatusCode
) -> None:
    async def play() -> None:
        async with Net.of("a", "b", "mallory") as net:
            game = asyncio.create_task(net.run(a=lambda me: throw(me, "b"), b=lambda me: catch(me, "a")))
            code, _ = await raw(net.kits["mallory"], [envelope])
            assert code == status
            assert (await game)["a"] == list(range(20))

    asyncio.run(play())


def test_a_stranger_gets_the_error_that_its_certificate_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_connection, "RESTART", 0.0)

    async def play() -> None:
        async with Net.of("a", "b") as net:
            _, others = temporary("another", ("a", "b"))
            stranger = replace(
                others["a"], address=net.kits["a"].address, trust=net.kits["a"].trust
            )  # its certificate is another's
            fatal, why = await asyncio.to_thread(reach, stranger)
            assert fatal
            assert "does not accept the certificate of 'a'" in why
            with pytest.raises(NoHub, match="does not accept the certificate of 'a'"):
                async with Link(stranger, patience=DEADLINE) as link:
                    await link.run(lambda me: throw(me, "b"))
            assert (await asyncio.to_thread(reach, net.kits["a"])) == (False, "")

    asyncio.run(play())


def test_a_party_of_another_federation_does_not_take_our_hub_for_its_own() -> None:
    async def play() -> None:
        async with Net.of("a") as net:
            _, others = temporary("another", ("a",))
            fatal, why = await asyncio.to_thread(reach, others["a"].at(net.kits["a"].address))
            assert fatal
            assert "is not the hub of federation 'another'" in why

    asyncio.run(play())


def test_a_client_cannot_impersonate_the_hub() -> None:
    """Same authority, but only the hub's certificate carries the hub's name."""

    async def play() -> None:
        _, kits = temporary("f", ("a", "mallory"))
        port = await (false := Hub(replace(kits["mallory"], role="hub"))).start()
        fatal, why = await asyncio.to_thread(reach, kits["a"].at(f"127.0.0.1:{port}"))
        assert fatal
        assert "is not the hub of federation 'f'" in why
        await false.stop()

    asyncio.run(play())


def test_an_unreachable_hub_gives_a_readable_error() -> None:
    _, kits = temporary("f", ("a",))
    fatal, why = reach(kits["a"].at("127.0.0.1:9"))
    assert not fatal
    assert (
        why
        == "nobody listens at 127.0.0.1:9. Start the hub (`tacit hub --kit …`), or check the port and the "
        "firewall."
    )
    assert "cannot be found" in reach(kits["a"].at("no-such-host.invalid:9"))[1]

    async def tries() -> None:
        async with Link(kits["a"].at("127.0.0.1:9"), patience=0.5) as link:
            await link.run(lambda me: me.recv("b", NetBall))

    with pytest.raises(NoHub, match=r"nobody listens at 127\.0\.0\.1:9.*Party 'a' tried for"):
        asyncio.run(tries())


def test_a_revoked_party_is_sent_away_while_connected_and_not_let_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "LOOK_AGAIN", 0.1)
    federation = FederationFile("f", "127.0.0.1:1", "127.0.0.1:0", "server", ("a", "b", "c"))
    provision(federation, tmp_path)

    async def play() -> None:
        hub = Hub(load(tmp_path / "hub"))
        at = f"127.0.0.1:{await hub.start()}"
        net = Net(hub, {name: load(tmp_path / name).at(at) for name in ("a", "b", "c")})
        out = asyncio.create_task(net.party("c", lambda me: me.recv("a", NetBall)))
        was_refused, heard = asyncio.Event(), 0

        async def throws(me: Party) -> None:
            nonlocal heard
            while not was_refused.is_set():
                await throw(me, "b", 20)
                heard += 1

        game = asyncio.create_task(net.party("a", throws))
        other = asyncio.create_task(net.party("b", lambda me: catch(me, "a", 1 << 30)))
        while "c" not in hub.connections:
            await asyncio.sleep(0.02)
        provision(federation, tmp_path, revoke=("c",))  # writes the hub's list anew
        with pytest.raises(NoHub, match="refused party 'c': the certificate of 'c' was revoked"):
            async with asyncio.timeout(DEADLINE):
                await out
        with pytest.raises(NoHub, match="was revoked"):
            async with asyncio.timeout(DEADLINE):
                await net.party("c", lambda me: me.recv("a", NetBall))
        until = heard + 2  # they play on
        while heard < until:
            await asyncio.sleep(0.01)
        was_refused.set()
        await game
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        await hub.stop()

    asyncio.run(play())


def test_a_slow_reader_delays_only_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """`slow` never reads, and `flooder` writes to it without end: the hub stops reading from the flooder when it
    holds QUOTA bytes of it, and others play on.
    """
    monkeypatch.setattr(hubs, "QUOTA", 1 << 20)
    envelope = pack(MAIL, "flooder", "slow", bytes(100_000))

    async def play() -> None:
        async with Net.of("a", "b", "flooder", "slow") as net, connect(net.kits["slow"]) as slow:
            await slow.read()  # the welcome
            async with connect(net.kits["flooder"]) as flooder:
                await flooder.read()

                async def floods() -> None:
                    while True:
                        await flooder.write(envelope)

                flood = asyncio.create_task(floods())
                while net.hub.held.get("flooder", 0) <= hubs.QUOTA:
                    await asyncio.sleep(0.01)
                told = await net.run(a=lambda me: throw(me, "b"), b=lambda me: catch(me, "a"))
                assert told["a"] == list(range(20))
                assert hubs.QUOTA // 2 < net.hub.held["flooder"] <= hubs.QUOTA + len(envelope) + hubs.ENTRY
                flood.cancel()
                await asyncio.gather(flood, return_exceptions=True)

    asyncio.run(play())
