"""Looking before taking part: what `tacit party --check` can know, it says; and it disturbs nobody who is
connected.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tacit import __version__
from tacit.jobs.train.deployed import check_party
from tacit.runtimes.hub import Hub
from tacit.runtimes.kits import load, temporary
from tacit.runtimes.preflight import check_admission
from tacit.runtimes.provision import FederationFile, provision
from tests.runtimes.net import Net, catch, throw


def test_a_revoked_certificate_is_reported_before_a_run_starts(tmp_path: Path) -> None:
    """TLS alone would let it in: the hub knows the list."""
    federation = FederationFile("f", "127.0.0.1:1", "127.0.0.1:0", "server", ("a", "b"))
    provision(federation, tmp_path)
    kept = load(tmp_path / "b")
    provision(federation, tmp_path, revoke=("b",))

    async def play() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        hub = Hub(load(tmp_path / "hub"))
        at = f"127.0.0.1:{await hub.start()}"
        good, bad = [
            await asyncio.to_thread(check_party, kit.at(at), None, None)
            for kit in (load(tmp_path / "a"), kept)
        ]
        await hub.stop()
        return good, bad

    good, bad = asyncio.run(play())
    assert all(not why for _, why in good)
    ((what, why),) = [(what, why) for what, why in bad if why]
    assert what == "certificate of b"
    assert "refuses party 'b': the certificate of 'b' was revoked by the authority of federation 'f'" in why


def test_a_server_of_another_version_is_reported_before_a_run_starts() -> None:
    async def play(version: str) -> list[tuple[str, str]]:
        async with Net.of("server", "a") as net:
            waits = asyncio.create_task(net.party("server", lambda me: asyncio.sleep(3600), version=version))
            while "server" not in net.hub.connections:
                await asyncio.sleep(0.01)
            found = await asyncio.to_thread(check_party, net.kits["a"], None, None)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            return found

    assert ("server server, which is connected", "") in asyncio.run(play(__version__))
    (why,) = [why for _, why in asyncio.run(play("0.0.1")) if why]
    assert (
        why
        == f"it runs tacit 0.0.1, and this machine {__version__}. Install the same version at all parties."
    )


def test_looking_leaves_a_partys_own_connection_alone() -> None:
    async def play() -> tuple[list[int], int, dict[str, str]]:
        async with Net.of("a", "b") as net:
            game = asyncio.create_task(
                net.run(a=lambda me: throw(me, "b", 300), b=lambda me: catch(me, "a", 300))
            )
            while len(net.hub.connections) < 2:
                await asyncio.sleep(0.01)
            for _ in range(3):
                why, present = await asyncio.to_thread(check_admission, net.kits["a"])
                assert why == ""
            return (await game)["a"], net.links["a"].connections, present

    got, connections, present = asyncio.run(play())
    assert got == list(range(300))
    assert connections == 1
    assert set(present) <= {"a", "b"}


def test_an_absent_server_is_reported_too() -> None:
    _, kits = temporary("test", ("a",))
    assert (
        check_admission(kits["a"].at("127.0.0.1:9"), 60.0)[0]
        == "the hub at 127.0.0.1:9 does not answer: unavailable."
    )
