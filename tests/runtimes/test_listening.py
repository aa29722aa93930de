"""A hub accepts connections exactly where it was asked to."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from tacit.errors import NoHub
from tacit.runtimes.hub import Hub
from tacit.runtimes.kits import temporary
from tacit.runtimes.listening import find_addresses, split_address
from tests.ports import free_port


def reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=30).close()
    except OSError:
        return False
    return True


def who_reaches(listen: str, hosts: tuple[str, ...]) -> tuple[str, ...]:
    async def serve() -> tuple[str, ...]:
        hub = Hub(replace(temporary("f", ("a",))[0], listen=listen))
        port = await hub.start()
        try:
            return tuple([h for h in hosts if await asyncio.to_thread(reaches, h, port)])
        finally:
            await hub.stop()

    return asyncio.run(serve())


@pytest.mark.parametrize(
    ("listen", "reached"),
    [
        ("127.0.0.1:0", ("127.0.0.1",)),
        ("127.0.0.3:0", ("127.0.0.3",)),  # neither the first loopback address nor all of them
        ("0.0.0.0:0", ("127.0.0.1", "127.0.0.3")),
    ],
)
def test_a_hub_is_reached_where_it_was_asked_to_listen_and_nowhere_else(
    listen: str, reached: tuple[str, ...]
) -> None:
    assert who_reaches(listen, ("127.0.0.1", "127.0.0.3")) == reached


def test_an_ipv6_address_is_bound_where_the_machine_has_it_and_named_where_it_has_not() -> None:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        with pytest.raises(NoHub, match="this machine has no such address"):
            find_addresses("[::1]:0")
    else:
        # not port 0: another process may listen on that port of 127.0.0.1
        assert who_reaches(f"[::1]:{free_port()}", ("::1", "127.0.0.1")) == ("::1",)


def answer_with(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name have these addresses."""

    def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (a, port, 0, 0))
            if ":" in a
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port))
            for a in addresses
        ]

    monkeypatch.setattr("tacit.runtimes.listening.socket.getaddrinfo", look_up)


def test_a_name_is_bound_at_those_of_its_addresses_that_this_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer_with(monkeypatch, "203.0.113.5", "127.0.0.4", "2001:db8::7")
    assert find_addresses("hub.example.org:0") == ["127.0.0.4:0"]
    assert who_reaches("hub.example.org:0", ()) == ()


def test_an_address_that_this_machine_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoHub, match=r"this machine has no such address\. .* or to 0\.0\.0\.0:8443 for all"):
        find_addresses("203.0.113.5:8443")
    with pytest.raises(NoHub, match=r"listen on \[2001:db8::7\]:8443: this machine has no such address\."):
        find_addresses("[2001:db8::7]:8443")
    answer_with(monkeypatch, "203.0.113.5", "2001:db8::7")
    with pytest.raises(NoHub, match=r"\(hub\.example\.org is 203\.0\.113\.5, \[2001:db8::7\]\)"):
        find_addresses("hub.example.org:8443")


def test_a_name_that_nobody_knows_is_named() -> None:
    with pytest.raises(NoHub, match=r"the name 'no such name' cannot be found"):
        find_addresses("no such name:8443")


def test_ipv6_addresses_are_written_in_brackets() -> None:
    assert split_address("[::1]:8443") == ("::1", 8443)
    for wrong in ("::1:8443", "127.0.0.1", "hub:", ":80", "hub:99999", "hub:x", "[]:1", ""):
        with pytest.raises(NoHub, match="an address and a port are needed"):
            split_address(wrong)


def test_a_taken_port_is_an_error_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(NoHub, match=r"the port is taken"):
            find_addresses(f"127.0.0.1:{port}")
