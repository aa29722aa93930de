"""What one member can make the hub keep in memory, and do to the runs of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tacit.errors import SealBroken
from tacit.runtimes import hub as hubs
from tacit.runtimes.envelope import FAILED, MAIL, METHOD, pack
from tacit.runtimes.hub import Hub
from tacit.runtimes.hub_relay import CLIENT_OPTIONS
from tacit.runtimes.kits import Kit, load
from tacit.runtimes.provision import FederationFile, provision
from tests.runtimes.net import Net, NetBall, catch, throw
from tests.security.mail import until


@asynccontextmanager
async def deaf(kit: Kit) -> AsyncIterator[Any]:
    """A party that writes what it likes and never reads after the hub's welcome. Its window is small, so that
    the hub's writes wait soon.
    """
    authority, key, certificate = kit.pems()
    options = [*CLIENT_OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    async with grpc.aio.secure_channel(
        kit.address, grpc.ssl_channel_credentials(authority, key, certificate), options=options
    ) as channel:
        call = channel.stream_stream(METHOD)()
        await call.read()
        yield call


def test_notes_about_absent_parties_wait_once_for_each_party() -> None:
    async def play() -> None:
        read = 0

        def tap(sender: str, to: str, data: bytes) -> list[bytes]:
            nonlocal read
            read += sender == "mallory"
            return [data]

        absent = [
            "x" * 63,
            "y" * 63,
        ]  # 5,000 notes about them are more than what is under way to a party that does not read
        async with Net.of("mallory", *absent, tap=tap) as net, deaf(net.kits["mallory"]) as call:
            for i in range(5000):
                await call.write(pack(MAIL, "mallory", absent[i % 2]))
            await until(lambda: read == 5000)
            assert len(net.hub.connections["mallory"].waiting) <= 2

    asyncio.run(play())


def test_garbage_from_one_member_does_not_end_the_run_of_others() -> None:
    """Mallory sends neither a handshake nor a record; b and c do not need it, and continue. A party that waits for
    mallory gets an error.
    """

    async def play() -> None:
        async with Net.of("mallory", "b", "c", "d") as net, deaf(net.kits["mallory"]) as call:

            async def plays(me: Any) -> list[int]:
                got = await throw(me, "c", 5)
                for _ in range(10):
                    await call.write(pack(MAIL, "mallory", "b", b"garbage"))
                await until(
                    lambda: (
                        "mallory" in net.links["b"].channels
                        and net.links["b"].channels["mallory"].failure is not None
                    )
                )
                return got + await throw(me, "c", 5)

            assert (await net.run(b=plays, c=lambda me: catch(me, "b", 10)))["b"] == [*range(5), *range(5)]
            waits = asyncio.create_task(net.party("d", lambda me: me.recv("mallory", NetBall)))
            await until(lambda: "d" in net.hub.connections)
            for _ in range(10):
                await call.write(pack(MAIL, "mallory", "d", b"garbage"))
            with pytest.raises(
                SealBroken,
                match=r"in the name of 'mallory' were not authentic.*Do not trust this hub, or this party",
            ):
                await waits

    async def bounded() -> None:
        async with asyncio.timeout(300):
            await play()

    asyncio.run(bounded())


def test_notes_about_parties_that_do_not_exist_count_against_whoever_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every name is another: each note waits, and when they make up the sender's quota the hub reads no more
    from it.
    """
    monkeypatch.setattr(hubs, "QUOTA", 64 << 10)

    async def play() -> None:
        async with Net.of("mallory", "b", "c") as net, deaf(net.kits["mallory"]) as call:
            for i in range(
                2000
            ):  # 8 quotas; what the hub does not read waits in the connection, at its sender's cost
                await call.write(pack(MAIL, "mallory", f"{i:0250}"))
            await until(lambda: net.hub.held["mallory"] > hubs.QUOTA)
            assert (await net.run(b=lambda me: throw(me, "c", 5), c=lambda me: catch(me, "b", 5)))[
                "b"
            ] == list(range(5))
            assert net.hub.held["mallory"] <= hubs.QUOTA + hubs.ENTRY + 250
            assert len(net.hub.connections["mallory"].waiting) <= hubs.QUOTA // (hubs.ENTRY + 250) + 1

    asyncio.run(play())


def test_receipts_of_failures_count_against_whoever_reports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that reports its failure again and again, and does not read the receipts, is not read from."""
    monkeypatch.setattr(hubs, "QUOTA", 64 << 10)

    async def play() -> None:
        async with Net.of("mallory", "b", "c") as net, deaf(net.kits["mallory"]) as call:
            for _ in range(2000):  # 8 quotas of receipts
                await call.write(pack(FAILED, "mallory", "", b"error"))
            await until(lambda: net.hub.held.get("mallory", 0) > hubs.QUOTA)
            assert (await net.run(b=lambda me: throw(me, "c", 5), c=lambda me: catch(me, "b", 5)))[
                "b"
            ] == list(range(5))
            assert net.hub.held["mallory"] <= hubs.QUOTA + hubs.ENTRY + 250

    asyncio.run(play())


def test_a_revoked_party_that_does_not_read_is_cut_off_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection cannot be ended in order while the hub waits to write to it. Nothing more of it is
    passed on, and what waited for it is forgotten.
    """
    monkeypatch.setattr(hubs, "LOOK_AGAIN", 0.05)
    federation = FederationFile("f", "127.0.0.1:1", "127.0.0.1:0", "server", ("a", "mallory"))
    provision(federation, tmp_path)

    async def play() -> None:
        hub = Hub(load(tmp_path / "hub"))
        at = f"127.0.0.1:{await hub.start()}"
        async with (
            deaf(load(tmp_path / "mallory").at(at)) as call,
            deaf(load(tmp_path / "a").at(at)) as other,
        ):
            for _ in range(400):
                await other.write(pack(MAIL, "a", "mallory", bytes(4096)))
            await until(lambda: hub.relayed == 400)
            assert hub.held["a"] > 0
            provision(federation, tmp_path, revoke=("mallory",))
            await until(lambda: "mallory" not in hub.connections)
            await until(lambda: hub.held["a"] == 0)
            try:
                for _ in range(50):
                    await asyncio.wait_for(call.write(pack(MAIL, "mallory", "a", b"after")), 1.0)
            except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            assert hub.relayed == 400
        await hub.stop()

    asyncio.run(play())
