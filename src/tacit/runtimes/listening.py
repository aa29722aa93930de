"""Where a hub accepts connections: exactly the addresses it was asked for.

An address is bound as it is written, IPv4 or IPv6 in brackets. A name is bound at those of its addresses that
this machine has. `0.0.0.0` and `[::]` are all interfaces, of both families.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from ..errors import NoHub

FORM = '"hub.example.org:8443", "192.0.2.7:8443", "[2001:db8::7]:8443", or "0.0.0.0:8443" for all interfaces'


def find_addresses(listen: str) -> list[str]:
    """Return the addresses to bind, "ADDRESS:PORT" each; raise NoHub that says why none can be bound."""
    host, port = split_address(listen)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise NoHub(
            f"the hub cannot listen on {listen}: the name {host!r} cannot be found ({error}). {_advise(port)}"
        ) from None
    addresses, elsewhere = [], []
    for family, _, _, _, place in dict.fromkeys(found):
        shown = f"[{place[0]}]" if family == socket.AF_INET6 else str(place[0])
        problem = _try_to_bind(family, place)
        if problem in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            elsewhere.append(shown)
        elif problem == errno.EADDRINUSE:
            raise NoHub(
                f"the hub cannot listen on {listen}: the port is taken. Stop whoever uses it, or set another "
                "`listen` in the hub's party.toml (or --listen)."
            )
        elif problem == errno.EACCES:
            raise NoHub(
                f"the hub cannot listen on {listen}: this user may not open port {port}. Use a port from "
                "1024 on."
            )
        else:
            addresses.append(f"{shown}:{port}")
    if not addresses:
        what = "" if _is_address(host) else f" ({host} is {', '.join(elsewhere)})"
        raise NoHub(
            f"the hub cannot listen on {listen}: this machine has no such address{what}. {_advise(port)}"
        )
    return addresses


def split_address(listen: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of "HOST:PORT"."""
    host, _, port = listen.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    if (
        not bare
        or not port.isascii()
        or not port.isdigit()
        or int(port) > 65535
        or (not is_bracketed and ":" in host)
    ):
        raise NoHub(f"the hub cannot listen on {listen!r}: an address and a port are needed, like {FORM}.")
    return bare, int(port)


def _try_to_bind(family: int, place: tuple[object, ...]) -> int:
    """Return the error number of binding this address; 0 if it can be bound."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the hub does
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            trial.bind(place)  # without listening: a party that tries to connect is not accepted here
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
    return 0


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _advise(port: int) -> str:
    return (
        "If a router or a cloud provider forwards that address to this machine, set `listen` in the hub's "
        f"party.toml (or --listen) to an address of this machine, or to 0.0.0.0:{port} for all interfaces."
    )
