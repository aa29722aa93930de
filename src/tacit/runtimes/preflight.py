"""Why the hub cannot be reached, in words: name, port, whose certificate is not believed. gRPC says only that
it is unavailable.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import tempfile

from .certificates import HUB_NAME
from .kits import Kit


def reach(kit: Kit, timeout: float = 5.0) -> tuple[bool, str]:
    """(whether trying again is useless, why it failed); (False, "") when the hub answers and takes this
    party's certificate.
    """
    host, _, port = kit.address.rpartition(":")
    context = _context(kit)
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout) as plain,
            context.wrap_socket(plain, server_hostname=HUB_NAME) as secure,
        ):
            secure.sendall(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
            )  # HTTP/2's opening: answered only if we are let in
            if secure.recv(9):
                return False, ""
            return True, _refused(kit, "it closed the connection")
    except ssl.SSLCertVerificationError as error:
        return True, (
            f"whoever answers at {kit.address} is not the hub of federation {kit.federation!r}: "
            f"{error.verify_message}. Check the address with "
            "whoever runs the hub; another federation's hub, or a firewall that opens TLS, looks like this."
        )
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or "") and "VERSION" not in (error.reason or ""):
            return True, _refused(kit, (error.reason or "").lower().replace("_", " "))
        return (
            True,
            f"what answers at {kit.address} does not speak TLS as a hub does ({error.reason}). Check the "
            "port.",
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
            f"{kit.address} does not answer. A firewall between here and there may drop the connection; "
            "outgoing TCP to this port must be allowed.",
        )
    except OSError as error:
        return False, f"{kit.address} cannot be reached: {error.strerror or error}."


def check_admission(kit: Kit, timeout: float = 5.0) -> tuple[str, dict[str, str]]:
    """(why the hub does not take this party's certificate or "", {party that is connected: its version}).
    Nobody's connection is touched by this.
    """
    import grpc

    from .envelope import CHECK
    from .link import CLIENT_OPTIONS

    authority, key, certificate = kit.pems()
    with grpc.secure_channel(
        kit.address, grpc.ssl_channel_credentials(authority, key, certificate), options=CLIENT_OPTIONS
    ) as channel:
        try:
            answer = json.loads(channel.unary_unary(CHECK)(b"", timeout=timeout))
            return "", {str(name): str(version) for name, version in answer["present"].items()}
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return (
                    f"the hub at {kit.address} is of another version of tacit. Install the same version at "
                    "all parties.",
                    {},
                )
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return f"the hub at {kit.address} turns party {kit.name!r} away: {error.details()}", {}
            return (
                f"the hub at {kit.address} does not answer: {error.code().name.lower().replace('_', ' ')}.",
                {},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"what answers at {kit.address} is no tacit hub of this version.", {}


def _refused(kit: Kit, reason: str) -> str:
    return (
        f"the hub at {kit.address} does not accept the certificate of {kit.name!r} ({reason}). It belongs to "
        "another federation, or was made by another "
        "authority; take a kit of this federation."
    )


def _context(kit: Kit) -> ssl.SSLContext:
    authority, key, certificate = kit.pems()
    context = ssl.create_default_context(cadata=authority.decode())
    context.set_alpn_protocols(["h2"])
    # the ssl module reads keys from files only; this one is in memory where there is such a place, and ours
    # alone in any case
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        path = os.path.join(folder, "both.pem")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key + certificate)
        context.load_cert_chain(path)
    return context
