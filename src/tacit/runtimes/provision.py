"""`tacit provision`: create a start kit for each party of a federation file.

    federation.toml                        kits/
      name = "hearts"                        authority/   the federation's key: keep it secret
      hub = "hub.example.org:8443"           hub/         for whoever runs the hub
      server = "server"                      server/      for whoever coordinates
      clients = ["hospital-a", "b"]          hospital-a/ b/
      above = "country"                    of an edge: the federation to which its server sends the model
      shared = "authority.crt"             of a NATS server that several federations share: its authority

Running it again keeps existing keys and certificates, creates missing ones, and rewrites the lists of parties
and revocations.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from ..errors import BadJob, BadKit
from ..files import write_atomic
from ..parameters import nearest
from .certificates import Authority, Trust, key_pem, pem, read_certificate, read_key
from .kits import NAME, SHARED, Kit, load, save
from .nats_relay import addresses_of, write_config
from .nats_sharing import MEMBERS, write_members

RESERVED = ("authority", "hub")
KNOWN = ("name", "hub", "listen", "server", "clients", "above", "shared")


@dataclass(frozen=True)
class FederationFile:
    """federation.toml, checked."""

    name: str
    hub: str
    listen: str
    server: str
    clients: tuple[str, ...]
    above: str | None = None
    shared: x509.Certificate | None = None


def read_federation_file(path: str | os.PathLike[str]) -> FederationFile:
    file = Path(path)
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadJob(
            f'there is no file {file}. Write one: name = "hearts", hub = "hub.example.org:8443", clients = '
            '["hospital-a", "hospital-b"].'
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadJob(f"{file} is not TOML: {error}. Put text in quotes and lists in [brackets].") from None
    for key in table:
        if key not in KNOWN:
            raise BadJob(f"{file}: unknown key {key!r}. {nearest(key, list(KNOWN))}")

    def text(key: str, default: str | None = None) -> str:
        value = table.get(key, default)
        if not isinstance(value, str) or not value:
            raise BadJob(f"{file}: {key} is {value!r}; it must be text in quotes.")
        return value

    name, hub, server = text("name"), text("hub"), text("server", "server")
    if len(name) > 48:  # "authority of NAME" must fit in a certificate field of 64 characters
        raise BadJob(f"{file}: name has {len(name)} characters; it must have at most 48.")
    listen = _check_address(file, hub)
    clients = table.get("clients")
    if not isinstance(clients, list) or not clients or not all(isinstance(c, str) for c in clients):
        raise BadJob(f"{file}: clients is {clients!r}; it must be a list of at least one name in quotes.")
    for party in (server, *clients):
        if not NAME.fullmatch(party) or party in RESERVED:
            raise BadJob(
                f"{file}: a party has the name {party!r}; use at most 63 letters, digits, '.', '_' and "
                f"'-', and not {' or '.join(map(repr, RESERVED))}."
            )
    if len({p.lower() for p in (server, *clients)}) < 1 + len(clients):
        raise BadJob(
            f"{file}: two parties have the same name (case is ignored). Give each party its own name."
        )
    above = text("above") if "above" in table else None
    if above == name:
        raise BadJob(
            f"{file}: above is {above!r}, this federation itself. Give the name of the one above it."
        )
    shared = _read_shared(file, hub, text("shared")) if "shared" in table else None
    return FederationFile(name, hub, text("listen", listen), server, tuple(clients), above, shared)


def _read_shared(file: Path, hub: str, name: str) -> x509.Certificate:
    """Read the certificate of a shared server's authority; a path is relative to the federation file."""
    if not hub.startswith("nats://"):
        raise BadJob(
            f"{file}: shared is {name!r}, but hub is {hub!r}. Only a NATS server may be shared: give its "
            'address, like "nats://nats.example.org:4222", or leave `shared` out.'
        )
    path = file.parent / name
    advice = "Ask the operator of the NATS server for authority.crt, which `tacit nats` writes."
    try:
        return read_certificate(path.read_bytes(), str(path), advice)
    except OSError as error:
        raise BadJob(
            f"{file}: shared is {name!r}, and {path} cannot be read: {error.strerror}. {advice}"
        ) from None


def _check_address(file: Path, hub: str) -> str:
    """Return where a hub, or a NATS server, at this address listens by default."""
    if hub.startswith("nats://"):
        try:
            return f"0.0.0.0:{addresses_of(hub)[0][1]}"
        except ValueError:
            raise BadJob(
                f"{file}: hub is {hub!r}; it must be the host and port of a NATS server, like "
                '"nats://nats.example.org:4222", or several with commas.'
            ) from None
    host, _, port = hub.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "://" in hub:
        raise BadJob(
            f"{file}: hub is {hub!r}; it must be the host and port at which parties reach the hub, like "
            '"hub.example.org:8443"; or a NATS server, like "nats://nats.example.org:4222".'
        )
    return hub


def provision(
    federation: FederationFile, out: str | os.PathLike[str], revoke: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Create or update the kits in `out`; return {"made": [...], "kept": [...], "revoked": [...]}.

    `revoke` excludes parties: their certificates are invalid from then on.
    """
    root = Path(out)
    authority = _authority(federation, root / "authority")
    everyone = {federation.server: "server", **{c: "client" for c in federation.clients}}
    if federation.shared is None:  # else its operator runs the server, with a certificate of its own
        everyone = {"hub": "hub", **everyone}
    serials = _read_revoked(root / "authority" / "revoked.toml")
    for name in revoke:
        if name not in everyone:
            raise BadKit(
                f"{name!r} cannot be revoked: it is not in the federation. {nearest(name, list(everyone))}"
            )
        if name not in serials and not (root / name / "party.crt").is_file():
            raise BadKit(f"{name!r} cannot be revoked: {root / name} contains no certificate.")
    for name in revoke:
        if name not in serials:
            serials[name] = [
                read_certificate(
                    (root / name / "party.crt").read_bytes(), str(root / name / "party.crt")
                ).serial_number
            ]
    _write_revoked(root / "authority" / "revoked.toml", serials)
    trust = Trust(
        authority.certificate, authority.revocations(s for several in serials.values() for s in several)
    )
    parties = tuple(p for p in (federation.server, *federation.clients) if p not in serials)
    new, existing = [], []
    for name, role in everyone.items():
        folder = root / name
        if name in serials:
            continue
        if (folder / "party.key").exists():
            _refresh(folder, federation, trust, parties)
            existing.append(name)
        else:
            save(
                Kit(
                    name,
                    role,
                    federation.hub,
                    *authority.issue(name, role),
                    trust,
                    parties,
                    federation.server,
                    folder,
                    federation.listen if role == "hub" else "",
                    federation.above,
                    federation.shared,
                ),
                folder,
            )
            new.append(name)
    if federation.shared is not None:
        members = write_members(authority, federation.shared, (load(root / name) for name in parties))
        write_atomic(root / MEMBERS, members)
    elif federation.hub.startswith("nats://"):
        roles = [(name, everyone[name]) for name in parties]
        write_atomic(root / "hub" / "nats.conf", write_config(trust, federation.listen, roles))
    return {
        "federation": federation.name,
        "kits": str(root),
        "made": new,
        "kept": existing,
        "revoked": sorted(serials),
        "nats": federation.hub.startswith("nats://"),
        "shared": federation.shared is not None,
    }


def _authority(federation: FederationFile, folder: Path) -> Authority:
    if (folder / "authority.key").exists():
        certificate = read_certificate((folder / "authority.crt").read_bytes(), str(folder / "authority.crt"))
        existing = Authority(
            certificate, read_key((folder / "authority.key").read_bytes(), str(folder / "authority.key"))
        )
        if existing.federation != federation.name:
            raise BadKit(
                f"{folder} is the authority of federation {existing.federation!r}, not of "
                f"{federation.name!r}. Use another folder (-o), or correct `name`."
            )
        return existing
    authority = Authority.new(federation.name)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_atomic(folder / "authority.crt", pem(authority.certificate))
    write_atomic(folder / "authority.key", key_pem(authority.key), mode=0o600, replace=False)
    return authority


def _refresh(folder: Path, federation: FederationFile, trust: Trust, parties: tuple[str, ...]) -> None:
    """Update the hub's address, parties and revocations of an existing kit; its key stays the same."""
    import tomli_w

    write_atomic(folder / "authority.crt", pem(trust.authority))
    assert trust.revoked is not None
    write_atomic(folder / "revoked.crl", pem(trust.revoked))
    role = load(folder).role
    table = tomllib.loads((folder / "party.toml").read_text(encoding="utf-8"))
    table |= {  # other keys in the file stay
        "hub": federation.hub,
        "server": federation.server,
        "parties": list(parties),
        **({"listen": federation.listen} if role == "hub" else {}),
        **({"above": federation.above} if federation.above is not None else {}),
    }
    if federation.above is None:
        table.pop("above", None)
    if federation.shared is None:
        table.pop("shared", None)
    else:
        write_atomic(folder / SHARED, pem(federation.shared))
        table["shared"] = SHARED
    write_atomic(folder / "party.toml", tomli_w.dumps(table))


def _read_revoked(file: Path) -> dict[str, list[int]]:
    if not file.exists():
        return {}
    return {
        name: [int(s, 16) for s in serials]
        for name, serials in tomllib.loads(file.read_text(encoding="utf-8")).items()
    }


def _write_revoked(file: Path, serials: dict[str, list[int]]) -> None:
    import tomli_w

    # serial numbers have up to 160 bits, TOML's integers 64
    write_atomic(
        file, tomli_w.dumps({name: [f"{s:x}" for s in several] for name, several in serials.items()})
    )
