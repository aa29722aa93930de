"""Keys by which a NATS server that several federations share tells parties apart.

Such a server cannot map certificates to parties: it looks at a certificate's subject only, and each
federation's authority may write any subject into one. A party signs the server's nonce with an Ed25519 key
instead ("NKey", docs.nats.io), and the server's configuration lists its public half. The key is derived from
the party's private key with HKDF (RFC 5869), so that a kit has no second secret. It is another one for each
authority of servers: a server cannot pass on the nonce of another one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ..errors import NoHub
from .certificates import Key

USER = 20 << 3  # the first byte of a user's key: its text begins with U
NONCE = re.compile(r"[A-Za-z0-9_-]{8,64}")  # has no space, so that it is no PROOF
PROOF = b"tacit nats member 1 "


class NKey:
    """A party's key at the servers of one operator."""

    def __init__(self, party_key: Key, server_authority: bytes):
        """`server_authority`: the certificate (DER) of the authority of the operator's servers."""
        secret = party_key.private_numbers().private_value.to_bytes(32, "big")
        seed = HKDF(
            hashes.SHA256(), 32, None, b"tacit nats 1 " + hashlib.sha256(server_authority).digest()
        ).derive(secret)
        self._key = Ed25519PrivateKey.from_private_bytes(seed)

    @property
    def public(self) -> str:
        """The public key as text, as a server's configuration lists it."""
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return _encode(bytes((USER,)) + raw)

    def sign_nonce(self, nonce: str) -> str:
        """Sign what a server sent; it may be hostile, and signs nothing else with it."""
        if not NONCE.fullmatch(nonce):
            raise NoHub(f"the NATS server sent a nonce of an unknown form: {nonce[:80]!r}.")
        return base64.urlsafe_b64encode(self._key.sign(nonce.encode())).rstrip(b"=").decode()

    def prove(self, federation: bytes, party: str) -> bytes:
        """Sign that this key belongs to a party of the federation with this authority (its digest)."""
        return self._key.sign(PROOF + federation + b" " + party.encode())


def proves(public: str, federation: bytes, party: str, signature: bytes) -> bool:
    """Return whether the owner of a key signed that it belongs to this party; ValueError if it is no key."""
    key = Ed25519PublicKey.from_public_bytes(_decode(public))
    try:
        key.verify(signature, PROOF + federation + b" " + party.encode())
    except InvalidSignature:
        return False
    return True


def _encode(data: bytes) -> str:
    """Base32 of the data and its CRC-16 (XModem), least significant byte first."""
    checked = data + binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(checked).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Return the 32 bytes of a user's public key; raise ValueError if the text is not the one for them."""
    padded = text + "=" * (-len(text) % 8)
    data = base64.b32decode(padded)[:-2]
    if len(data) != 33 or data[0] != USER or _encode(data) != text:
        raise ValueError(f"{text[:80]!r} is not a public key of a NATS user")
    return data[1:]
