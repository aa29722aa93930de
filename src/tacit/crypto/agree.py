"""Key agreement and authenticated encryption between two parties: X25519, HKDF-SHA256, ChaCha20-Poly1305 and
Ed25519, all from `cryptography`.

Every derived key is bound to its purpose: federation, round, both parties and their public keys. The same two
key pairs in another round, or in the other direction, give another key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..errors import MissingExtra, ProtocolError

PUBLIC = 32  # bytes of a public key, X25519 and Ed25519
SIGNATURE = 64
_NONCE = 12
SEALED = _NONCE + 16  # bytes that encryption adds: the nonce and Poly1305's tag

Draw = Callable[[int], bytes]


def _primitives() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError:
        raise MissingExtra("secure aggregation", "secagg", "cryptography") from None
    return x25519


def bind(*parts: str | bytes | int) -> bytes:
    """Encode values injectively as bytes: each is preceded by its type and its length."""
    return b"".join(
        [b"b" + len(p).to_bytes(8, "little") + p if isinstance(p, bytes) else _bind_word(p) for p in parts]
    )


@lru_cache(4096, typed=True)  # names, sizes and terms are those of every sum of a program
def _bind_word(part: str | int) -> bytes:
    data = str(part).encode()
    return type(part).__name__[:1].encode() + len(data).to_bytes(8, "little") + data


class KeyPair:
    """An X25519 key pair. Reading a private key costs as much as an exchange, so it is done once."""

    def __init__(self, private: bytes):
        self.private = private
        self._key = _primitives().X25519PrivateKey.from_private_bytes(private)
        self.public = bytes(self._key.public_key().public_bytes_raw())

    def exchange(self, public: bytes) -> bytes:
        """The secret that both parties share: not uniform, so it is only the input of `derive`."""
        try:
            return bytes(self._key.exchange(_primitives().X25519PublicKey.from_public_bytes(public)))
        except ValueError:  # wrong length, or a point of small order, which gives everyone the same key
            raise ProtocolError("a public key is not a valid Curve25519 point for key agreement.") from None

    def agree(self, public: bytes, about: bytes) -> bytes:
        """The 32-byte key that both parties derive, for this purpose only."""
        return derive(self.exchange(public), about)


def derive(shared: bytes, about: bytes) -> bytes:
    """A 32-byte key for one purpose; keys for other purposes say nothing about it."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=about).derive(shared)


def public_of(private: bytes) -> bytes:
    return KeyPair(private).public


def agree(private: bytes, public: bytes, about: bytes) -> bytes:
    """The 32-byte key that both parties derive, for this purpose only."""
    return KeyPair(private).agree(public, about)


def seal(key: bytes, plain: bytes, about: bytes, draw: Draw) -> bytes:
    """Encrypt, bound to `about`: `unseal` fails with any other value."""
    _primitives()
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = draw(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    _primitives()
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], about)
    except (InvalidTag, ValueError):
        raise ProtocolError(
            "a sealed message cannot be decrypted: it was modified, or sealed for another party, round or "
            "federation."
        ) from None


@dataclass(frozen=True)
class Identity:
    """A party's long-term signing key, and the public keys of all parties."""

    private: bytes = field(repr=False)
    known: Mapping[str, bytes]

    @classmethod
    def provision(cls, names: list[str], draw: Draw) -> dict[str, Identity]:
        """An identity for each name: in one process, in place of the organizations' certificates."""
        private = {name: draw(32) for name in names}
        known = {
            name: _ed25519().from_private_bytes(key).public_key().public_bytes_raw()
            for name, key in private.items()
        }
        return {name: cls(key, known) for name, key in private.items()}

    def sign(self, message: bytes) -> bytes:
        return bytes(_ed25519().from_private_bytes(self.private).sign(message))

    def verify(self, name: str, message: bytes, signature: bytes) -> bool:
        """Whether `name` signed this message; False for unknown names."""
        _primitives()
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        if name not in self.known:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.known[name]).verify(signature, message)
        except InvalidSignature:
            return False
        return True


def _ed25519() -> Any:
    _primitives()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey
