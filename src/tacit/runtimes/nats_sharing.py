"""A NATS server that several federations share: `tacit nats` writes its configuration.

    operator                       federation                         written
    tacit nats --host …                                               nats/authority/authority.crt
                            ──►    shared = "authority.crt"
                                   tacit provision federation.toml    kits/members.json
                            ◄──
    tacit nats members.json                                           nats/server/federations.conf

Each federation is a NATS account of its own, named by the digest of its authority: subjects of two accounts
never meet. A party is known by its key (nkeys.py), never by the subject of a certificate, which another
federation's authority could forge. A members file is data, from which the configuration is written; no text
of it is included. It has each party's public key, and that key's signature for this federation: nobody can
list another federation's key. All is signed by the federation's authority: nobody can replace its list.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from ..errors import BadKit
from ..files import write_atomic
from .certificates import Authority, Trust, is_address, key_pem, pem, read_certificate, read_key
from .kits import NAME, Kit
from .nats_relay import PENDING_SHARED, limits, permissions_of, prefix_of, quote
from .nkeys import NKey, proves

FORMAT = "tacit members 1"
MEMBERS = "members.json"
ASK = f"Ask the federation for the {MEMBERS} that `tacit provision` writes."
OPERATOR = "NATS servers"  # the name of an operator's authority
CONNECTIONS = 4  # of a party, and SPARE for all: it may check or ask while lost connections have not ended
SPARE = 16
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")  # also of all hosts of a domain, as in *.example.org


def digest(certificate: x509.Certificate) -> str:
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


# --- the federation -----------------------------------------------------------------------------------------


def write_members(authority: Authority, shared: x509.Certificate, kits: Iterable[Kit]) -> str:
    """Return the members file of a federation, for the operator of the servers of an authority."""
    federation = digest(authority.certificate)
    members = []
    for kit in kits:
        nkey = NKey(kit.key, shared.public_bytes(Encoding.DER))
        proof = base64.b64encode(nkey.prove(federation.encode(), kit.name)).decode()
        members.append({"name": kit.name, "key": nkey.public, "proof": proof})
    body = {
        "format": FORMAT,
        "authority": pem(authority.certificate).decode(),
        "server": digest(shared),
        "issued": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "members": members,
    }
    signature = authority.key.sign(_to_sign(body), ec.ECDSA(hashes.SHA256()))
    return json.dumps(body | {"signature": base64.b64encode(signature).decode()}, indent=1) + "\n"


def _to_sign(body: dict[str, Any]) -> bytes:
    return b"tacit members " + json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


# --- the operator -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Members:
    """A members file, checked."""

    file: str
    trust: Trust
    issued: datetime.datetime
    text: str
    keys: dict[str, str]  # party: its public key

    @property
    def account(self) -> str:
        return f"TACIT_{digest(self.trust.authority)[:32]}"


def read_members(path: str | os.PathLike[str], shared: x509.Certificate) -> Members:
    """Read a members file and check all its signatures; raise BadKit."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadKit(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise _malformed(path, "not UTF-8") from None
    try:
        body = json.loads(text)
        signature = base64.b64decode(body.pop("signature"), validate=True)
        if body["format"] != FORMAT or set(body) != {"format", "authority", "server", "issued", "members"}:
            raise ValueError("an unknown format")
        authority = read_certificate(body["authority"].encode(), f"`authority` in {path}", ASK)
        authority.subject  # noqa: B018  # parsed only now: a name that cannot be read is refused here
        public = authority.public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("the authority has no ECDSA key")
        public.verify(signature, _to_sign(body), ec.ECDSA(hashes.SHA256()))
        issued = datetime.datetime.fromisoformat(body["issued"]).astimezone(datetime.UTC)
        members = [
            (m["name"], m["key"], base64.b64decode(m["proof"], validate=True)) for m in body["members"]
        ]
        federation = digest(authority).encode()
        for name, key, proof in members:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ValueError(f"a party has the name {str(name)[:80]!r}")
            if not proves(key, federation, name, proof):
                raise ValueError(f"the key of party {name!r} is not its own")
        if len({key for _, key, _ in members}) < len(members):
            raise ValueError("two parties have the same key")
        if not members or len({name for name, _, _ in members}) < len(members):
            raise ValueError("it has no party, or two of one name")
        if body["server"] != digest(shared):
            raise ValueError(
                "it was made for the servers of another operator: `shared` is another certificate"
            )
    except InvalidSignature:
        raise _malformed(path, "its authority did not sign it") from None
    except (
        *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
        *(OverflowError, UnsupportedAlgorithm),  # a time before the year 1 or after 9999; an unknown curve
    ) as error:
        raise _malformed(path, f"{type(error).__name__}: {error}") from None
    return Members(str(path), Trust(authority), issued, text, {name: key for name, key, _ in members})


def _malformed(path: str | os.PathLike[str], why: str) -> BadKit:
    return BadKit(f"{path} cannot be used: {why}. {ASK}")


def write_server(
    out: str | os.PathLike[str], files: Iterable[str], hosts: tuple[str, ...] = (), listen: str | None = None
) -> dict[str, Any]:
    """Add federations to a server's folder, and write its configuration for all that are in the folder.

    `files`: members files of federations that are new, or newer than those in the folder. `hosts`: the names
    of the server, for a certificate that is made now; without it the one in the folder stays.
    """
    root = Path(out)
    check_hosts(hosts)
    certificate, key = _read_authority(root / "authority")
    if certificate is None:
        if not hosts:
            raise BadKit(
                f"{root} contains no certificate yet. Give the names of the server: --host nats.example.org"
            )
        made = Authority.new(OPERATOR)
        certificate, key = made.certificate, made.key
    elif hosts and key is None:
        raise BadKit(
            f"{root / 'authority'} has no authority.key, so that no certificate can be made for --host. "
            "Leave --host out, and put server.crt and server.key of your own authority into "
            f"{root / 'server'}."
        )
    kept = [read_members(file, certificate) for file in sorted((root / "federations").glob("*.json"))]
    check_apart(kept)  # of two files of one federation, the older one would admit whom it has revoked
    federations = {each.account: each for each in kept}
    given = [read_members(file, certificate) for file in files]
    check_apart(given)
    for each in given:
        known = federations.get(each.account)
        if known is not None and known.issued > each.issued:
            raise BadKit(
                f"{each.file} of {each.issued:%Y-%m-%d %H:%M:%S} is older than the one in place, of "
                f"{known.issued:%Y-%m-%d %H:%M:%S}: parties may have been revoked since. To use it, delete "
                f"{known.file}."
            )
        federations[each.account] = each
    check_apart(federations.values())
    included = root / "server" / "federations.conf"
    if not federations and included.exists():
        included.unlink()  # an empty one would admit anybody
        raise BadKit(
            f"no members file is left in {root / 'federations'}, so {included} was deleted. Stop the NATS "
            "server: it admits the parties of the removed federation until then."
        )
    if hosts:
        assert key is not None
        _save_certificates(root, Authority(certificate, key), hosts)
    for each in given:
        (root / "federations").mkdir(parents=True, exist_ok=True)
        write_atomic(root / "federations" / f"{each.account}.json", each.text)
    if federations:
        (root / "server").mkdir(parents=True, exist_ok=True)
        write_atomic(included, write_accounts(federations.values()))
        if listen is not None or not (root / "server" / "nats.conf").exists():
            write_atomic(root / "server" / "nats.conf", _write_config(listen or "0.0.0.0:4222"))
    return {
        "hosts": list(hosts),
        "federations": [
            {
                "name": each.trust.federation,
                "account": each.account,
                "parties": len(each.keys),
                "issued": f"{each.issued:%Y-%m-%d %H:%M:%S}",
            }
            for each in sorted(federations.values(), key=lambda each: (each.trust.federation, each.account))
        ],
    }


def check_hosts(hosts: Iterable[str]) -> None:
    """Raise BadKit if a certificate for one of these would not be accepted at any address."""
    wrong = [host for host in hosts if not (is_address(host) or HOST.fullmatch(host))]
    if wrong:
        raise BadKit(
            f"--host is {', '.join(map(repr, wrong))}; expected names or addresses without scheme and port, "
            "like nats.example.org or 192.0.2.7."
        )


def check_apart(federations: Iterable[Members]) -> None:
    """Raise BadKit if two federations would have one account, one subject, or one party's key."""
    seen: dict[str, str] = {}
    for each in federations:
        for what in (each.account, prefix_of(each.trust), *each.keys.values()):
            if what in seen:
                raise BadKit(
                    f"{seen[what]} and {each.file} are of one federation, or of two that cannot share a "
                    "server. Give the newest members file of each federation once."
                )
            seen[what] = each.file


def write_accounts(federations: Iterable[Members]) -> str:
    """Return the accounts of these federations, to be included in `accounts` of a server's configuration."""
    lines = ["# Written by `tacit nats`, which overwrites it."]
    for each in federations:
        lines += [
            # a name from outside: json escapes the end of a line
            f"{each.account} {{  # {json.dumps(each.trust.federation)}",
            f"  limits {{max_connections: {CONNECTIONS * len(each.keys) + SPARE}, "
            f"max_subscriptions: {len(each.keys) + SPARE}}}  # of all parties; of a connection",
            "  users: [",
            ",\n".join(
                f"    {{nkey: {quote(key)}, {permissions_of(each.trust, name)}}}"
                for name, key in each.keys.items()
            ),
            "  ]",
            "}",
        ]
    return "\n".join((*lines, ""))


def _write_config(listen: str) -> str:
    return "\n".join(
        (
            "# Written once by `tacit nats`: yours to change. Run in this folder: nats-server -c nats.conf",
            f"listen: {quote(listen)}",
            *limits(PENDING_SHARED),
            "tls {",
            '  cert_file: "./server.crt"',
            '  key_file: "./server.key"',
            "  timeout: 30  # seconds of a handshake: all parties may connect at once",
            "}",
            "authorization { timeout: 30 }",
            'accounts { include "federations.conf" }',
            "",
        )
    )


def _read_authority(folder: Path) -> tuple[x509.Certificate | None, ec.EllipticCurvePrivateKey | None]:
    certificate, key = folder / "authority.crt", folder / "authority.key"
    if not certificate.exists():
        return None, None
    return (
        read_certificate(certificate.read_bytes(), str(certificate), "Restore it from a backup."),
        read_key(key.read_bytes(), str(key)) if key.exists() else None,
    )


def _save_certificates(root: Path, authority: Authority, hosts: tuple[str, ...]) -> None:
    for folder in (root / "authority", root / "server"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    if not (root / "authority" / "authority.key").exists():
        write_atomic(root / "authority" / "authority.crt", pem(authority.certificate))
        write_atomic(root / "authority" / "authority.key", key_pem(authority.key), mode=0o600, replace=False)
    certificate, key = authority.issue("nats", "hub", hosts)
    write_atomic(root / "server" / "server.key", key_pem(key), mode=0o600)
    write_atomic(root / "server" / "server.crt", pem(certificate))
