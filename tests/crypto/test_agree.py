"""Keys that two parties agree on: the published vector, and bound to what they are for."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto.agree import Identity, agree, bind, public_of, seal, unseal
from tacit.errors import ProtocolError

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")  # RFC 7748, 6.1
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")

PARTS = st.lists(st.one_of(st.text(max_size=4), st.binary(max_size=4), st.integers(0, 300)), max_size=4)


def test_public_keys_are_those_of_rfc_7748() -> None:
    assert public_of(ALICE).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert public_of(BOB).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"


def test_both_ends_come_to_the_same_key() -> None:
    assert agree(ALICE, public_of(BOB), b"x") == agree(BOB, public_of(ALICE), b"x")


@given(PARTS, PARTS)
def test_no_two_lists_of_parts_have_the_same_binding(
    a: list[str | bytes | int], b: list[str | bytes | int]
) -> None:
    assert (bind(*a) == bind(*b)) == ([(type(x), x) for x in a] == [(type(x), x) for x in b])


@settings(deadline=None)
@given(PARTS, PARTS)
def test_a_key_is_for_one_purpose(a: list[str | bytes | int], b: list[str | bytes | int]) -> None:
    assert (agree(ALICE, public_of(BOB), bind(*a)) == agree(ALICE, public_of(BOB), bind(*b))) == (
        bind(*a) == bind(*b)
    )


@pytest.mark.parametrize("public", [bytes(32), (1).to_bytes(32, "little"), bytes(31)])
def test_a_point_of_small_order_is_refused(public: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a valid Curve25519 point"):
        agree(ALICE, public, b"")


@given(st.binary(max_size=40), st.data())
def test_what_is_sealed_opens_whole_or_not_at_all(plain: bytes, data: st.DataObject) -> None:
    key = bytes(32)
    sealed = seal(key, plain, b"for b", os.urandom)
    assert unseal(key, sealed, b"for b") == plain
    with pytest.raises(ProtocolError, match="sealed for another party, round or federation"):
        unseal(key, sealed, b"for c")
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    changed = bytearray(sealed)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError, match="cannot be decrypted"):
        unseal(key, bytes(changed), b"for b")


def test_a_cut_off_box_does_not_open() -> None:
    with pytest.raises(ProtocolError, match="cannot be decrypted"):
        unseal(bytes(32), b"short", b"")


def test_a_signature_holds_for_its_signer_and_message_alone() -> None:
    ids = Identity.provision(["a", "b"], os.urandom)
    signature = ids["a"].sign(b"yes")
    assert ids["b"].verify("a", b"yes", signature)
    assert not ids["b"].verify("a", b"no", signature)
    assert not ids["b"].verify("b", b"yes", signature)
    assert not ids["b"].verify("stranger", b"yes", signature)
    assert ids["a"].private.hex() not in repr(ids["a"])
