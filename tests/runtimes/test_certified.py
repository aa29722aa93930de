"""Signatures by certificate: the party's own, of this federation, in force; and nobody else's."""

from __future__ import annotations

import pytest

from tacit.runtimes.certificates import Authority, Trust
from tacit.runtimes.kits import CertificateIdentity, Kit, temporary

SAID = b"the survivors are a, b"


def federation(name: str = "f") -> dict[str, Kit]:
    return temporary(name, ("server", "a", "b"))[1]


def test_what_a_party_signs_every_other_can_check_and_only_in_its_name() -> None:
    kits = federation()
    a, b = (CertificateIdentity(lambda kit=kits[name]: kit) for name in "ab")
    signature = a.sign(SAID)
    assert b.verify("a", SAID, signature)
    assert not b.verify("b", SAID, signature)  # a certificate of a in the name of b
    assert not b.verify("a", SAID + b"!", signature)
    assert not b.verify("stranger", SAID, signature)


def test_a_server_cannot_sign_as_a_client_nor_count_as_one() -> None:
    kits = federation()
    server, b = CertificateIdentity(lambda: kits["server"]), CertificateIdentity(lambda: kits["b"])
    assert not b.verify("a", SAID, server.sign(SAID))
    assert not b.verify("server", SAID, server.sign(SAID))


def test_another_federations_certificate_of_the_same_name_counts_for_nothing() -> None:
    ours, theirs = federation(), federation()
    assert not CertificateIdentity(lambda: ours["b"]).verify(
        "a", SAID, CertificateIdentity(lambda: theirs["a"]).sign(SAID)
    )


def test_a_revoked_certificate_signs_no_more_as_soon_as_the_list_is_there() -> None:
    authority = Authority.new("f")
    names = ("server", "a", "b")

    def kit(name: str, trust: Trust) -> Kit:
        return Kit(name, "client", "127.0.0.1:0", *authority.issue(name, "client"), trust, names)

    a = kit("a", Trust(authority.certificate))
    held = [kit("b", Trust(authority.certificate))]
    b = CertificateIdentity(lambda: held[0])
    signature = CertificateIdentity(lambda: a).sign(SAID)
    assert b.verify("a", SAID, signature)
    held[0] = kit("b", Trust(authority.certificate, authority.revocations([a.certificate.serial_number])))
    assert not b.verify("a", SAID, signature)


def test_a_signature_of_a_protocol_is_not_a_handshake() -> None:
    """The same key signs both; a signature of one may never pass for the other."""
    from tacit.crypto.seal import verify_transcript

    kits = federation()
    signature = CertificateIdentity(lambda: kits["a"]).sign(b"r " + SAID)
    size = int.from_bytes(signature[:2], "big")
    assert not verify_transcript(b"r", SAID, signature[2 + size :], kits["a"].certificate.public_key())  # type: ignore[arg-type]


@pytest.mark.parametrize("signature", [b"", b"\x00", b"\xff\xff", bytes(600), b"\x00\x03abc"])
def test_invalid_signature_bytes_are_not_accepted(signature: bytes) -> None:
    mine = federation()["b"]
    assert not CertificateIdentity(lambda: mine).verify("a", SAID, signature)
