"""A federation's certificates: one authority, one certificate per party, and a revocation list.

Keys are ECDSA P-256, which every TLS library supports. The common name is the party, the organization the
federation, the organizational unit the role (hub, server, client). Only the hub's certificate has the name
`tacit-hub`, so no other party can impersonate the hub.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..errors import BadKit, SealBroken

HUB_NAME = "tacit-hub"  # the name in the hub's certificate, independent of its address
YEARS = 2  # validity of a certificate
_EARLY = datetime.timedelta(minutes=5)  # allows for clock differences between organizations
# what parsing or verifying raises for bytes that somebody altered; InvalidVersion is not a ValueError
_UNREADABLE = (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm)

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Authority:
    """The key that admits and revokes parties. It cannot read their messages."""

    certificate: x509.Certificate
    key: Key

    @classmethod
    def new(cls, federation: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"authority of {federation}"[:64], federation, "authority")
        builder = (
            _builder(name, name, key.public_key(), 5 * YEARS)
            .add_extension(x509.BasicConstraints(True, 0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @property
    def federation(self) -> str:
        return attribute(self.certificate, NameOID.ORGANIZATION_NAME)

    def issue(
        self, party: str, role: str, hosts: Iterable[str] = (HUB_NAME,)
    ) -> tuple[x509.Certificate, Key]:
        """Return a certificate and its key; `hosts`: the names of the server in that of a hub."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(party, self.federation, role)
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if role == "hub" else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(name, self.certificate.subject, key.public_key(), YEARS)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(_usage(), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if role == "hub":
            names = x509.SubjectAlternativeName([_to_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256()), key

    def revocations(self, serials: Iterable[int]) -> x509.CertificateRevocationList:
        """Return a signed revocation list."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - _EARLY)
            .next_update(now + datetime.timedelta(days=3650))
            # two lists of the same second differ in their number: microseconds since 1970
            .add_extension(x509.CRLNumber(int(now.timestamp() * 1_000_000)), critical=False)
        )
        for serial in sorted(set(serials)):
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            )
        return builder.sign(self.key, hashes.SHA256())


def is_address(host: str) -> bool:
    """Return whether this is an IP address, and no name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _to_general_name(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host.strip("[]"))) if is_address(host) else x509.DNSName(host)


def _name(common: str, federation: str, role: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def subject_of(party: str, federation: str, role: str) -> str:
    """Return the subject of a party's certificate as text (RFC 4514)."""
    return _name(party, federation, role).rfc4514_string()


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, years: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + datetime.timedelta(days=365 * years))
    )


def _usage(signs_certificates: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def attribute(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    values = certificate.subject.get_attributes_for_oid(oid)
    return str(values[0].value) if values else ""


def party_of(certificate: x509.Certificate) -> str:
    return attribute(certificate, NameOID.COMMON_NAME)


@dataclass(frozen=True)
class Trust:
    """The trust root of a federation: the authority's certificate and its latest revocation list."""

    authority: x509.Certificate
    revoked: x509.CertificateRevocationList | None = None

    @property
    def federation(self) -> str:
        return attribute(self.authority, NameOID.ORGANIZATION_NAME)

    def check(self, certificate: x509.Certificate) -> None:
        """Raise SealBroken unless the authority issued the certificate, it is valid and not revoked."""
        party = party_of(certificate)
        try:
            certificate.verify_directly_issued_by(self.authority)
        except (*_UNREADABLE, InvalidSignature):
            raise SealBroken(
                f"the certificate of {party!r} was not issued by the authority of federation "
                f"{self.federation!r}. It belongs to another federation, or was forged."
            ) from None
        now = datetime.datetime.now(datetime.UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise SealBroken(
                f"the certificate of {party!r} is valid from "
                f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to "
                f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M}. Set "
                "the clock, or provision again."
            )
        if (
            self.revoked is not None
            and self.revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None
        ):
            raise SealBroken(
                f"the certificate of {party!r} was revoked by the authority of federation "
                f"{self.federation!r}."
            )

    def party(self, der: bytes, name: str) -> ec.EllipticCurvePublicKey:
        """Return the public key of party `name` from its certificate, or raise SealBroken."""
        try:
            certificate = x509.load_der_x509_certificate(der)
            owner = party_of(certificate)
        except _UNREADABLE:
            raise SealBroken(f"{name!r} presented an invalid certificate.") from None
        if owner != name:
            raise SealBroken(f"{name!r} presented the certificate of {owner!r}.")
        self.check(certificate)
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise SealBroken(f"the certificate of {name!r} has no ECDSA key.")
        return key

    def update(self, pem: bytes) -> Trust:
        """Return the trust with a newer revocation list, or this object if the list is not newer.

        Raises SealBroken if the authority did not sign it.
        """
        try:
            revoked = x509.load_pem_x509_crl(pem)
        except _UNREADABLE:
            raise SealBroken("the list of revocations cannot be read.") from None
        if not revoked.is_signature_valid(self.authority.public_key()):  # type: ignore[arg-type]
            raise SealBroken(
                f"the list of revocations was not signed by the authority of federation {self.federation!r}."
            )
        if self.revoked is not None:
            new, current = _issue_order(revoked), _issue_order(self.revoked)
            if new < current or (new == current and not _serials(revoked) > _serials(self.revoked)):
                return self
        return Trust(self.authority, revoked)


def _issue_order(revoked: x509.CertificateRevocationList) -> tuple[datetime.datetime, int]:
    """Return the key that orders two lists: time of signature, to the second, and number.

    Lists of earlier versions have no number.
    """
    try:
        number = revoked.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        number = 0
    return revoked.last_update_utc, number


def _serials(revoked: x509.CertificateRevocationList) -> set[int]:
    return {entry.serial_number for entry in revoked}


def pem(thing: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return thing.public_bytes(Encoding.PEM)


def key_pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_certificate(
    data: bytes, where: str, advice: str = "Get the kit again from the person who provisioned the federation."
) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except _UNREADABLE:
        raise BadKit(f"{where} is not a certificate. {advice}") from None


def read_key(data: bytes, where: str) -> Key:
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError):
        raise BadKit(
            f"{where} is not a private key. Get the kit again from the person who provisioned the federation."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadKit(
            f"{where} is not an ECDSA key. Get the kit again from the person who provisioned the federation."
        )
    return key
