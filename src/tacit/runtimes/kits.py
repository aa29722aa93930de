"""Start kits: a folder for each party with all it needs to take part.

party.key         its private key (readable by its owner only)
party.crt         its certificate
authority.crt     the certificate of the federation's authority
revoked.crl       revoked certificates, signed by the authority
party.toml        the federation, its name and role, the hub's address, the other parties
nats.crt          only with a NATS server that several federations share: the authority of its certificate
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from ..errors import BadKit, SealBroken
from .certificates import Authority, Key, Trust, key_pem, party_of, pem, read_certificate, read_key

# separates signatures in protocols from those in handshakes
SIGNED = b"tacit signed 1 "
FILES = ("party.key", "party.crt", "authority.crt", "revoked.crl", "party.toml")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # of a party: a folder and a certificate's name at once
SHARED = "nats.crt"  # also the value of `shared` in party.toml


@dataclass(frozen=True)
class Kit:
    """A party's identity and where it connects."""

    name: str
    role: str
    address: str  # host:port of the hub; for the hub itself, where parties find it
    certificate: x509.Certificate
    key: Key
    trust: Trust
    parties: tuple[str, ...]  # everyone but the hub
    server: str = "server"
    directory: Path | None = None
    listen: str = ""  # the hub only: where to accept connections
    above: str | None = None  # the federation that this one is under: its server sends the model there
    shared: x509.Certificate | None = None  # the authority of a NATS server that several federations share

    @property
    def federation(self) -> str:
        return self.trust.federation

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def sign(self, text: bytes) -> bytes:
        return self.key.sign(text, ec.ECDSA(hashes.SHA256()))

    def pems(self) -> tuple[bytes, bytes, bytes]:
        """(authority, own key, own certificate) as TLS libraries take them."""
        return pem(self.trust.authority), key_pem(self.key), pem(self.certificate)

    def at(self, address: str) -> Kit:
        return replace(self, address=address)


class CertificateIdentity:
    """Signatures of a party with its certificate, which is part of the signature.

    A verifier needs only the federation's authority. A signature is the certificate's length (two bytes), the
    certificate (DER) and ECDSA P-256 over SIGNED and the message.
    """

    def __init__(self, kit: Callable[[], Kit]):
        self.kit = kit  # called every time: its revocation list may have grown

    def sign(self, message: bytes) -> bytes:
        kit = self.kit()
        return len(kit.der).to_bytes(2, "big") + kit.der + kit.sign(SIGNED + message)

    def verify(self, name: str, message: bytes, signature: bytes) -> bool:
        """Return whether party `name` signed this with a valid certificate of this federation.

        The server's certificate never verifies as a client's.
        """
        kit, size = self.kit(), int.from_bytes(signature[:2], "big")
        if name not in kit.parties or name == kit.server:
            return False
        try:
            kit.trust.party(signature[2 : 2 + size], name).verify(
                signature[2 + size :], SIGNED + message, ec.ECDSA(hashes.SHA256())
            )
        except (SealBroken, InvalidSignature):
            return False
        return True


def temporary(federation: str, names: tuple[str, ...]) -> tuple[Kit, dict[str, Kit]]:
    """Return (hub's kit, parties' kits) of an in-memory federation, for one run on one machine."""
    authority = Authority.new(federation)
    trust = Trust(authority.certificate, authority.revocations(()))

    def make_kit(name: str, role: str) -> Kit:
        return Kit(
            name, role, "127.0.0.1:0", *authority.issue(name, role), trust, names, listen="127.0.0.1:0"
        )

    return make_kit("hub", "hub"), {
        name: make_kit(name, "server" if name == "server" else "client") for name in names
    }


def save(kit: Kit, directory: Path, extra: dict[str, Any] | None = None) -> None:
    """Write a kit into its folder; an existing key is never overwritten."""
    import tomli_w

    from ..files import write_atomic

    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    write_atomic(directory / "party.key", key_pem(kit.key), mode=0o600, replace=False)
    write_atomic(directory / "party.crt", pem(kit.certificate))
    write_atomic(directory / "authority.crt", pem(kit.trust.authority))
    assert kit.trust.revoked is not None
    write_atomic(directory / "revoked.crl", pem(kit.trust.revoked))
    table = {
        "federation": kit.federation,
        "name": kit.name,
        "role": kit.role,
        "hub": kit.address,
        "server": kit.server,
        "parties": list(kit.parties),
        **({"listen": kit.listen} if kit.role == "hub" else {}),
        **({"above": kit.above} if kit.above is not None else {}),
        **({"shared": SHARED} if kit.shared is not None else {}),
        **(extra or {}),
    }
    if kit.shared is not None:
        write_atomic(directory / SHARED, pem(kit.shared))
    write_atomic(directory / "party.toml", tomli_w.dumps(table))


def keep_revocations(kit: Kit) -> bool:
    """Write the kit's revocation list into its folder if it is newer than the stored one.

    So a restarted party still knows it. Returns whether it was written. Raises OSError if the folder is not
    writable.
    """
    from fcntl import LOCK_EX, flock

    from ..files import write_atomic

    if kit.directory is None or kit.trust.revoked is None:
        return False
    file, nothing = kit.directory / "revoked.crl", Trust(kit.trust.authority)
    folder = os.open(kit.directory, os.O_RDONLY)
    try:
        flock(folder, LOCK_EX)  # several processes may use one kit
        try:
            stored = nothing.update(file.read_bytes())
        except (FileNotFoundError, SealBroken):
            stored = nothing
        newest = stored.update(pem(kit.trust.revoked))
        if newest is stored or newest.revoked is None:
            return False
        write_atomic(file, pem(newest.revoked))
        return True
    finally:
        os.close(folder)


def load(directory: str | os.PathLike[str]) -> Kit:
    """Load the kit in a folder and check its parts against each other."""
    folder = Path(directory)
    if not folder.is_dir():
        raise BadKit(f"there is no kit at {folder}. Give the folder that contains party.toml.")
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        raise BadKit(
            f"the kit {folder} lacks {', '.join(absent)}. Get it again from the person who provisioned the "
            "federation."
        )
    mode = stat.S_IMODE((folder / "party.key").stat().st_mode)
    if mode & 0o077:
        raise BadKit(
            f"{folder / 'party.key'} is readable by other users (mode {mode:03o}). Fix it with: chmod 600 "
            f"{folder / 'party.key'}. If someone may have copied it, revoke this party and provision it "
            "again."
        )
    try:
        table = tomllib.loads((folder / "party.toml").read_text(encoding="utf-8"))
        name, role, address = str(table["name"]), str(table["role"]), str(table["hub"])
        parties, server = tuple(str(p) for p in table["parties"]), str(table["server"])
        above = str(table["above"]) if "above" in table else None
        is_shared = "shared" in table
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise BadKit(
            f"{folder / 'party.toml'} cannot be read: {type(error).__name__}: {error}. Get the kit again "
            "from the person who provisioned the federation."
        ) from None
    certificate = read_certificate((folder / "party.crt").read_bytes(), str(folder / "party.crt"))
    authority = read_certificate((folder / "authority.crt").read_bytes(), str(folder / "authority.crt"))
    key = read_key((folder / "party.key").read_bytes(), str(folder / "party.key"))
    if is_shared and not (folder / SHARED).is_file():
        raise BadKit(
            f"the kit {folder} lacks {SHARED}. Get it again from the person who provisioned the federation."
        )
    shared = read_certificate((folder / SHARED).read_bytes(), str(folder / SHARED)) if is_shared else None
    if key.public_key() != certificate.public_key():
        raise BadKit(
            f"in {folder}, party.key and party.crt do not match. Get the kit again from the person who "
            "provisioned the federation."
        )
    if party_of(certificate) != name:
        raise BadKit(
            f"in {folder}, the certificate is that of {party_of(certificate)!r}, but party.toml says "
            f"{name!r}. The name must be the certificate's."
        )
    try:
        trust = Trust(authority).update((folder / "revoked.crl").read_bytes())
        trust.check(certificate)
    except SealBroken as error:
        raise BadKit(f"the kit {folder} cannot be used: {error}") from None
    listen = str(table.get("listen", ""))
    return Kit(name, role, address, certificate, key, trust, parties, server, folder, listen, above, shared)
