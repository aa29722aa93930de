"""Find out why the hub cannot be reached: name, port or certificate. gRPC only says "unavailable"."""

from __future__ import annotations

import json
import os
import socket
import ssl
import tempfile
from dataclasses import dataclass, field

from ..errors import NoHub
from .certificates import HUB_NAME, pem
from .kits import Kit

WAIT_FOR_ANSWERS = 1.0  # seconds: parties on NATS answer for themselves


def reach(kit: Kit, timeout: float = 5.0) -> tuple[bool, str]:
    """Return (whether the failure is permanent, reason); (False, "") if the hub accepts this party."""
    if kit.address.startswith("nats://"):
        return _reach_nats(kit, timeout)
    host, _, port = kit.address.rpartition(":")
    context = make_context(kit)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout) as plain,
            context.wrap_socket(plain, server_hostname=HUB_NAME) as secure,
        ):
            secure.sendall(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
            )  # the HTTP/2 preface: answered only if the certificate is accepted
            if secure.recv(9):
                return False, ""
            return True, _refused(kit, "it closed the connection")
    except ssl.SSLCertVerificationError as error:
        return True, (
            f"the server at {kit.address} is not the hub of federation {kit.federation!r}: "
            f"{error.verify_message}. Check the address. It may be another federation's hub, or a firewall "
            "that intercepts TLS."
        )
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or "") and "VERSION" not in (error.reason or ""):
            return True, _refused(kit, (error.reason or "").lower().replace("_", " "))
        return (
            True,
            f"the server at {kit.address} does not speak TLS as a hub does ({error.reason}). Check the port.",
        )
    except socket.gaierror:
        return (
            False,
            f"the hub's name {host!r} cannot be found. Check `hub` in party.toml and this machine's DNS.",
        )
    except ConnectionRefusedError:
        return (
            False,
            f"nobody listens at {kit.address}. Start the hub (`tacit hub --kit …`), or check the port and "
            "the firewall.",
        )
    except ConnectionResetError:
        return True, _refused(kit, "it reset the connection")
    except TimeoutError:
        return (
            False,
            f"{kit.address} does not answer. A firewall may drop the connection; allow outgoing TCP to this "
            "port.",
        )
    except OSError as error:
        return False, f"{kit.address} cannot be reached: {error.strerror or error}."


@dataclass(frozen=True)
class Presence:
    """What a hub says about its connections. `why`: why it refuses to, or "".

    `present`: {connected party: version}; `seconds`: since when each is; `left`: {party: seconds since its
    connection ended}. A party that was never connected since the hub's start is in none of them.
    """

    why: str
    present: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)


def check_admission(kit: Kit, timeout: float = 5.0) -> tuple[str, dict[str, str]]:
    """Return (why the hub refuses this party or "", {connected party: version}).

    Existing connections are not affected.
    """
    found = read_presence(kit, timeout)
    return found.why, found.present


def read_presence(kit: Kit, timeout: float = 5.0) -> Presence:
    """Ask the hub who is connected, and since when. Existing connections are not affected."""
    if kit.address.startswith("nats://"):
        return _read_presence_nats(kit)
    import grpc

    from .envelope import CHECK
    from .hub_relay import CLIENT_OPTIONS

    authority, key, certificate = kit.pems()
    with grpc.secure_channel(
        kit.address, grpc.ssl_channel_credentials(authority, key, certificate), options=CLIENT_OPTIONS
    ) as channel:
        try:
            answer = json.loads(channel.unary_unary(CHECK)(b"", timeout=timeout))
            return Presence(
                "",
                {str(name): str(version) for name, version in answer["present"].items()},
                *(
                    {str(name): float(value) for name, value in answer.get(key, {}).items()}
                    for key in ("seconds", "left")
                ),
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return Presence(
                    f"the hub at {kit.address} runs another version of tacit. Install the same version at "
                    "all parties."
                )
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return Presence(f"the hub at {kit.address} refuses party {kit.name!r}: {error.details()}")
            return Presence(
                f"the hub at {kit.address} does not answer: {error.code().name.lower().replace('_', ' ')}."
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return Presence(f"the server at {kit.address} is not a tacit hub of this version.")


def _reach_nats(kit: Kit, timeout: float) -> tuple[bool, str]:
    """As `reach`, of the first server of the address that answers."""
    import asyncio

    from .nats_client import NatsLost
    from .nats_relay import addresses_of, open_client

    async def connect() -> None:
        lost: list[NatsLost] = []
        for address in addresses_of(kit.address):
            try:
                await (await open_client(kit, address, timeout)).close()
                return
            except NatsLost as error:
                lost.append(error)
        raise lost[0]

    try:
        asyncio.run(connect())
    except NatsLost as error:
        return False, f"{error} Check that the NATS server runs, its port, and the firewall."
    except NoHub as error:
        return True, str(error)
    return False, ""


def _read_presence_nats(kit: Kit) -> Presence:
    import asyncio

    from .nats_client import NatsLost
    from .nats_relay import ask_who

    try:
        found = asyncio.run(ask_who(kit, WAIT_FOR_ANSWERS))
    except (NatsLost, NoHub) as error:
        return Presence(str(error))
    return Presence(
        "",
        {name: version for name, (version, _) in found.items()},
        {name: seconds for name, (_, seconds) in found.items()},
    )


def _refused(kit: Kit, reason: str) -> str:
    return (
        f"the hub at {kit.address} does not accept the certificate of {kit.name!r} ({reason}). It belongs to "
        "another federation or authority. Use a kit of this federation."
    )


def make_context(kit: Kit) -> ssl.SSLContext:
    """Return a TLS context with the party's certificate that trusts the federation's authority alone.

    For a NATS server that several federations share, it trusts that server's authority alone, and shows no
    certificate: the server knows the party by its key.
    """
    if kit.shared is not None:
        return ssl.create_default_context(cadata=pem(kit.shared).decode())
    authority, key, certificate = kit.pems()
    context = ssl.create_default_context(cadata=authority.decode())
    # the ssl module reads keys from files only: a private one, in memory where possible
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        path = os.path.join(folder, "both.pem")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key + certificate)
        context.load_cert_chain(path)
    return context
