"""A list of revocations only ever becomes newer, on disk and in memory, at parties and at the hub."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import SealBroken
from tacit.runtimes import hub as hubs
from tacit.runtimes.certificates import pem, read_certificate
from tacit.runtimes.hub import Hub
from tacit.runtimes.kits import load, temporary
from tacit.runtimes.link import Link
from tacit.runtimes.provision import FederationFile, provision
from tests.security.mail import until


@pytest.fixture
def revoked(tmp_path: Path) -> tuple[Path, bytes, bytes]:
    """Kits of a, b and mallory, with mallory revoked; only the hub has the new list. Returns (folder, old list, new list)."""
    federation = FederationFile("f", "127.0.0.1:1", "127.0.0.1:0", "server", ("a", "b", "mallory"))
    provision(federation, tmp_path)
    old = (tmp_path / "a" / "revoked.crl").read_bytes()
    provision(federation, tmp_path, revoke=("mallory",))  # within the same second, too, it is the newer one
    (tmp_path / "a" / "revoked.crl").write_bytes(old)
    return tmp_path, old, (tmp_path / "hub" / "revoked.crl").read_bytes()


async def visit(folder: Path, hub_list: bytes) -> Link:
    """Party a connects to a hub that has this list, and leaves again; as in a process of its own, with the
    kit as it is on disk.
    """
    (folder / "hub" / "revoked.crl").write_bytes(hub_list)
    hub = Hub(load(folder / "hub"))
    at = f"127.0.0.1:{await hub.start()}"
    async with Link(load(folder / "a").at(at), linger=0.1) as link:
        await until(lambda: link.connected.is_set())  # the hub's welcome, with its list, has been read
    await hub.stop()
    return link


def test_a_newer_list_of_revocations_survives_a_restart_and_is_never_rolled_back(
    revoked: tuple[Path, bytes, bytes],
) -> None:
    folder, old, new = revoked
    kit = load(folder / "mallory")
    serial = kit.certificate.serial_number

    def knows(trust: Any) -> bool:
        return trust.revoked.get_revoked_certificate_by_serial_number(serial) is not None

    assert not knows(load(folder / "a").trust)
    link = asyncio.run(visit(folder, new))
    assert knows(link.kit.trust)
    assert (folder / "a" / "revoked.crl").read_bytes() == new
    assert knows(load(folder / "a").trust)  # restarted

    link = asyncio.run(visit(folder, old))  # a hub that withholds the newer list, as one that was bribed to
    assert knows(link.kit.trust)
    assert (folder / "a" / "revoked.crl").read_bytes() == new
    assert link.notes == []


def test_a_list_another_authority_signed_is_not_written(revoked: tuple[Path, bytes, bytes]) -> None:
    folder, old, _ = revoked
    hub, _ = temporary("f", ("a",))  # the same name, another authority
    assert hub.trust.revoked is not None
    forged = json.dumps({"revoked": pem(hub.trust.revoked).decode()}).encode()

    async def told() -> list[str]:
        link = Link(load(folder / "a"))
        link._renew(memoryview(forged))
        return link.notes

    assert any("was not signed by the authority" in text for text in asyncio.run(told()))
    assert (folder / "a" / "revoked.crl").read_bytes() == old


def test_a_list_that_cannot_be_written_is_used_with_a_warning(
    revoked: tuple[Path, bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, new = revoked

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tacit.files.write_atomic", full)

    async def told() -> Link:
        link = Link(load(folder / "a"))
        link._renew(memoryview(json.dumps({"revoked": new.decode()}).encode()))
        return link

    link = asyncio.run(told())
    with pytest.raises(SealBroken, match="was revoked"):
        link.kit.trust.check(load_certificate(folder / "mallory"))
    assert link.notes == [
        f"the hub's newer revocation list is in use, but cannot be written to {folder / 'a'}: No space "
        "left on device. After a restart the hub must send it again."
    ]


def test_a_hub_writes_its_newer_list_back_over_an_older_one_and_tells_those_who_are_connected(
    revoked: tuple[Path, bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "LOOK_AGAIN", 0.05)
    folder, old, new = revoked
    file = folder / "hub" / "revoked.crl"

    async def play() -> None:
        file.write_bytes(old)
        hub = Hub(load(folder / "hub"))
        at = f"127.0.0.1:{await hub.start()}"
        async with Link(load(folder / "a").at(at)) as link:
            await until(lambda: link.connected.is_set())
            file.write_bytes(new)
            await until(
                lambda: (folder / "a" / "revoked.crl").read_bytes() == new
            )  # sent to those who are connected, and kept there
            file.write_bytes(old)
            await until(lambda: file.read_bytes() == new)
        await hub.stop()

    asyncio.run(play())
    with pytest.raises(SealBroken, match="was revoked"):
        load(folder / "hub").trust.check(load_certificate(folder / "mallory"))


def load_certificate(folder: Path) -> Any:
    return read_certificate((folder / "party.crt").read_bytes(), "")
