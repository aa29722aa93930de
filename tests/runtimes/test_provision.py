"""Provisioning: kits that work, keys that are never written over, parties that are added and shut out."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tacit.errors import BadJob, BadKit, SealBroken
from tacit.runtimes.certificates import Authority, NameOID, Trust, attribute, party_of
from tacit.runtimes.kits import FILES, load, temporary
from tacit.runtimes.provision import FederationFile, provision, read_federation_file

CHARTER = FederationFile(
    "hearts", "hub.example.org:8443", "hub.example.org:8443", "server", ("hospital-a", "hospital-b")
)


def contents(root: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.name in names}


def test_every_party_gets_a_kit_that_loads_and_says_who_it_is(tmp_path: Path) -> None:
    made = provision(CHARTER, tmp_path)
    assert made["made"] == ["hub", "server", "hospital-a", "hospital-b"]
    for name, role in (
        ("hub", "hub"),
        ("server", "server"),
        ("hospital-a", "client"),
        ("hospital-b", "client"),
    ):
        assert sorted(p.name for p in (tmp_path / name).iterdir()) == sorted(FILES)
        kit = load(tmp_path / name)
        assert (kit.name, kit.role, kit.federation, kit.address) == (
            name,
            role,
            "hearts",
            "hub.example.org:8443",
        )
        assert (party_of(kit.certificate), attribute(kit.certificate, NameOID.ORGANIZATIONAL_UNIT_NAME)) == (
            name,
            role,
        )
        assert kit.parties == ("server", "hospital-a", "hospital-b")


def test_private_keys_can_be_read_by_their_owner_only(tmp_path: Path) -> None:
    provision(CHARTER, tmp_path)
    keys = list(tmp_path.rglob("*.key"))
    assert len(keys) == 5
    assert {stat.S_IMODE(k.stat().st_mode) for k in keys} == {0o600}


def test_no_kit_holds_the_authoritys_key_or_another_partys(tmp_path: Path) -> None:
    provision(CHARTER, tmp_path)
    for key in tmp_path.rglob("*.key"):
        others = [
            p for p in tmp_path.rglob("*") if p.is_file() and p != key and key.read_bytes() in p.read_bytes()
        ]
        assert not others


def test_provisioning_again_changes_no_key_and_no_certificate(tmp_path: Path) -> None:
    provision(CHARTER, tmp_path)
    before = contents(tmp_path, ("party.key", "party.crt", "authority.key", "authority.crt"))
    assert provision(CHARTER, tmp_path)["kept"] == ["hub", "server", "hospital-a", "hospital-b"]
    assert contents(tmp_path, ("party.key", "party.crt", "authority.key", "authority.crt")) == before


def test_a_party_can_be_added_later_and_the_others_learn_its_name(tmp_path: Path) -> None:
    provision(CHARTER, tmp_path)
    more = FederationFile(
        "hearts", "elsewhere:9", "0.0.0.0:9", "server", ("hospital-a", "hospital-b", "hospital-c")
    )
    assert provision(more, tmp_path)["made"] == ["hospital-c"]
    for name in ("server", "hospital-a", "hospital-c"):
        assert "hospital-c" in load(tmp_path / name).parties
        assert load(tmp_path / name).address == "elsewhere:9"


def test_a_revoked_party_is_on_the_signed_list_and_off_the_others(tmp_path: Path) -> None:
    provision(CHARTER, tmp_path)
    assert provision(CHARTER, tmp_path, revoke=("hospital-b",))["revoked"] == ["hospital-b"]
    assert load(tmp_path / "server").parties == ("server", "hospital-a")
    trust, out = (
        load(tmp_path / "server").trust,
        load(tmp_path / "hospital-b"),
    )  # its own old kit still loads: it was not told
    with pytest.raises(
        SealBroken,
        match="the certificate of 'hospital-b' was revoked by the authority of federation 'hearts'",
    ):
        trust.check(out.certificate)
    assert provision(CHARTER, tmp_path)["revoked"] == ["hospital-b"]  # it stays revoked


def test_a_list_of_revocations_must_be_the_authoritys_and_never_goes_back(tmp_path: Path) -> None:
    mine, other = Authority.new("hearts"), Authority.new("hearts")
    trust = Trust(mine.certificate, mine.revocations([7]))
    from tacit.runtimes.certificates import pem

    with pytest.raises(SealBroken, match="was not signed by the authority"):
        trust.update(pem(other.revocations([])))
    older = Trust(mine.certificate, mine.revocations([7, 8]))
    assert older.update(pem(trust.revoked)) is older or older.update(pem(trust.revoked)).revoked is not None  # type: ignore[arg-type]


def test_a_kit_with_parts_that_do_not_belong_together_is_refused(tmp_path: Path) -> None:
    provision(CHARTER, tmp_path)
    provision(FederationFile("lungs", "h:1", "h:1", "server", ("x",)), tmp_path / "lungs")
    a, b = tmp_path / "hospital-a", tmp_path / "hospital-b"
    good = {name: (a / name).read_bytes() for name in FILES}

    def with_file(name: str, content: bytes, words: str) -> None:
        (a / name).write_bytes(content)
        with pytest.raises(BadKit, match=words):
            load(a)
        (a / name).write_bytes(good[name])

    with_file("party.key", (b / "party.key").read_bytes(), "party.key and party.crt do not match")
    with_file(
        "party.toml",
        (b / "party.toml").read_bytes(),
        "the certificate is that of 'hospital-a', but party.toml says 'hospital-b'",
    )
    with_file(
        "authority.crt", (tmp_path / "lungs" / "server" / "authority.crt").read_bytes(), "cannot be used"
    )
    with_file("party.crt", b"nonsense", "is not a certificate")
    with_file("party.key", b"nonsense", "is not a private key")
    with_file("party.toml", b"name = ", "cannot be read")
    (a / "party.key").chmod(0o644)
    with pytest.raises(BadKit, match=r"is readable by other users \(mode 644\).*chmod 600"):
        load(a)
    (a / "party.key").chmod(0o600)
    (a / "revoked.crl").unlink()
    with pytest.raises(BadKit, match=r"lacks revoked\.crl"):
        load(a)
    with pytest.raises(BadKit, match="there is no kit at"):
        load(tmp_path / "nowhere")


def test_an_authority_is_not_used_for_another_federation(tmp_path: Path) -> None:
    provision(CHARTER, tmp_path)
    with pytest.raises(BadKit, match="is the authority of federation 'hearts', not of 'lungs'"):
        provision(FederationFile("lungs", "h:1", "h:1", "server", ("x",)), tmp_path)
    with pytest.raises(
        BadKit, match=r"'hospital-x' cannot be revoked: it is not in the federation\. Did you mean 'hospital-"
    ):
        provision(CHARTER, tmp_path, revoke=("hospital-x",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "is not TOML"),
        ("nam = 'x'", "unknown key 'nam'. Did you mean 'name'"),
        ("hub = 'h:1'\nclients = ['a']", "name is None"),
        ("name = 'f'\nhub = 'h'\nclients = ['a']", "it must be the host and port"),
        ("name = 'f'\nhub = 'h:1'", "at least one name"),
        ("name = 'f'\nhub = 'h:1'\nclients = ['../x']", "a party has the name '../x'"),
        ("name = 'f'\nhub = 'h:1'\nclients = ['hub']", "a party has the name 'hub'"),
        ("name = 'f'\nhub = 'h:1'\nclients = ['a', 'A']", "two parties have the same name"),
        (f"name = '{'x' * 60}'\nhub = 'h:1'\nclients = ['a']", "at most 48"),
    ],
)
def test_a_bad_federation_file_is_refused_in_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises(BadJob, match=words):
        read_federation_file(tmp_path / "federation.toml")


def test_a_federation_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(
        'name = "hearts"\nhub = "hub.example.org:8443"\nclients = ["hospital-a", "hospital-b"]'
    )
    assert read_federation_file(tmp_path / "f.toml") == CHARTER
    with pytest.raises(BadJob, match="there is no file"):
        read_federation_file(tmp_path / "g.toml")


def test_only_the_hubs_certificate_carries_the_hubs_name() -> None:
    from cryptography import x509

    hub, parties = temporary("f", ("server", "a"))
    names = hub.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["tacit-hub"]
    for kit in parties.values():
        with pytest.raises(x509.ExtensionNotFound):
            kit.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)


@pytest.mark.parametrize(
    ("hub", "listen"),
    [
        ("127.0.0.1:8443", "127.0.0.1:8443"),
        ("localhost:8443", "localhost:8443"),
        ("[::1]:8443", "[::1]:8443"),
        ("203.0.113.5:8443", "203.0.113.5:8443"),
        ("hub.example.org:8443", "hub.example.org:8443"),
    ],
)
def test_a_hub_listens_where_parties_find_it_unless_told_otherwise(
    hub: str, listen: str, tmp_path: Path
) -> None:
    (tmp_path / "federation.toml").write_text(f'name = "f"\nhub = "{hub}"\nclients = ["a"]\n')
    assert read_federation_file(tmp_path / "federation.toml").listen == listen
