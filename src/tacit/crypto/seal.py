"""End-to-end encryption between two parties: the hub can neither read nor modify the messages.

The handshake is SIGMA (Krawczyk, CRYPTO 2003) with ephemeral keys: both sides sign the whole transcript, each
under its own role, which prevents man-in-the-middle and replay attacks.

    initiator                                        responder
      |--- life_i, X_i, certificate_i ---------------->|
      |<-- life_r, X_r, certificate_r, sign_r(r, T) ---|
      |--- sign_i(i, T) ------------------------------>|
    T = SHA-256(federation, both names, lives, X and certificates)

The keys are HKDF-SHA256(X25519(x_i, X_r); salt T), one for each direction, for AES-256-GCM. x_i and x_r are
deleted once the keys are derived, so a certificate key that is stolen later decrypts no recorded traffic
(forward secrecy). A nonce is (space, counter) and is used for one plaintext only; a record that is sent again
after a lost connection is the same record, byte for byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ..errors import SealBroken

VERSION = b"tacit seal 1"  # in every transcript, so that handshakes of different versions do not match
TAG = 16  # bytes AES-GCM adds
DATA, CONTROL = 0, 1  # two nonce spaces under one key

Sign = Callable[[bytes], bytes]
Buffer = bytes | bytearray | memoryview


class Ephemeral:
    """A key pair for one handshake. `public` is sent; the private half never leaves this object."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def agree(self, theirs: bytes) -> bytes:
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(theirs))
        except ValueError:  # a point of small order gives the shared secret 0, which is public
            raise SealBroken("the other side's handshake key is invalid.") from None


def transcript(
    federation: str, initiator: tuple[str, bytes, bytes, bytes], responder: tuple[str, bytes, bytes, bytes]
) -> bytes:
    """T: a digest of all parts of the handshake, each with its length, so that the encoding is injective."""
    digest = hashlib.sha256()
    for part in (
        VERSION,
        federation.encode(),
        *(p.encode() if isinstance(p, str) else p for side in (initiator, responder) for p in side),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def sign_transcript(role: bytes, transcript: bytes, sign: Sign) -> bytes:
    return sign(VERSION + b" " + role + b" " + transcript)


def verify_transcript(
    role: bytes, transcript: bytes, signature: bytes, public: ec.EllipticCurvePublicKey
) -> bool:
    """Whether this is the key's signature of the handshake, in this role."""
    try:
        public.verify(signature, VERSION + b" " + role + b" " + transcript, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


class Seal:
    """The two keys of a session. `close` encrypts a record; `open` decrypts it, or raises SealBroken."""

    def __init__(self, secret: bytes, transcript: bytes, initiator: bool):
        both = HKDF(hashes.SHA256(), 64, transcript, VERSION + b" keys").derive(secret)
        there, back = AESGCM(both[:32]), AESGCM(both[32:])
        self._out, self._in = (there, back) if initiator else (back, there)
        self.session = transcript[:8]

    def close(self, space: int, counter: int, plaintext: Buffer) -> bytes:
        return self._out.encrypt(_nonce(space, counter), plaintext, self.session)

    def open(self, space: int, counter: int, sealed: Buffer) -> bytes:
        try:
            return self._in.decrypt(_nonce(space, counter), sealed, self.session)
        except (InvalidTag, ValueError):  # ValueError: shorter than a tag
            raise SealBroken("a sealed record was modified in transit.") from None


def _nonce(space: int, counter: int) -> bytes:
    return space.to_bytes(4, "big") + counter.to_bytes(8, "big")
