"""Microsoft SEAL as TenSEAL brings it (`tenseal.sealapi`): contexts, and SEAL's objects as bytes.

That interface reads and writes files only. Residues of a ciphertext are read from, and written to, SEAL's
stream format; SEAL checks what it loads.
"""

from __future__ import annotations

import importlib.util
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingExtra, ProtocolError

DEGREE = 8192
PARTS = 2  # polynomials of a ciphertext
BODY = 97  # bytes of a ciphertext before its residues
SEED = 64  # bytes that the second polynomial of a ciphertext is expanded from

_HEADER = struct.Struct("<HBBBBHQ")
_MAGIC, _PLAIN, _ZSTD = 0xA15E, 0, 2
_SEED_HEAD = _HEADER.size + 1  # before a seed: a header, and which generator it is for

Draw = Callable[[int], bytes]


def is_installed() -> bool:
    """Whether the extra `he` is here."""
    return all(importlib.util.find_spec(name) is not None for name in ("tenseal", "zstandard"))


def load_seal(option: str) -> Any:
    """SEAL's interface; `option` is what asked for it."""
    try:
        import tenseal.sealapi as seal
        import zstandard  # noqa: F401
    except ImportError:
        raise MissingExtra(option, "he", "tenseal") from None
    return seal


@cache
def find_primes(option: str, bits: tuple[int, ...]) -> tuple[int, ...]:
    """Primes of these sizes that split X^8192 + 1; the last is for keys only."""
    return tuple(p.value() for p in load_seal(option).CoeffModulus.Create(DEGREE, list(bits)))


@cache
def open_context(option: str, bits: tuple[int, ...], word: int) -> Any:
    """Parameters for words modulo 2^word, within 128-bit security: SEAL refuses weaker ones."""
    seal = load_seal(option)
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(DEGREE, list(bits)))
    parameters.set_plain_modulus(1 << word)
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise ProtocolError(f"SEAL refuses the parameters: {context.parameters_error_message()}.")
    return context


class File:
    """A file in memory: SEAL's Python interface reads and writes paths only."""

    def __init__(self) -> None:
        self._fd = None
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("tacit", os.MFD_CLOEXEC)
            self.path = f"/proc/self/fd/{self._fd}"
        else:
            self._folder = tempfile.TemporaryDirectory()
            self.path = str(Path(self._folder.name) / "seal")

    def write(self, data: bytes) -> str:
        with open(self.path, "wb") as file:
            file.write(data)
        return self.path

    def read(self) -> bytes:
        return Path(self.path).read_bytes()

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            os.close(self._fd)  # type: ignore[arg-type]


def wrap(body: bytes) -> bytes:
    """A stream of SEAL's, without compression."""
    return _HEADER.pack(_MAGIC, _HEADER.size, 4, 3, _PLAIN, 0, _HEADER.size + len(body)) + body


def unwrap(stream: bytes, most: int) -> bytes:
    """The content of a stream that SEAL wrote here."""
    import zstandard

    magic, size, major, _, mode, _, length = _HEADER.unpack_from(stream)
    if (magic, size, major, length) != (_MAGIC, _HEADER.size, 4, len(stream)) or mode not in (_PLAIN, _ZSTD):
        raise ProtocolError("SEAL wrote a stream of another version; the extra he needs version 4.")
    if mode == _PLAIN:
        return stream[_HEADER.size :]
    return zstandard.ZstdDecompressor().decompress(stream[_HEADER.size :], max_output_size=most)


class Objects:
    """Reads and writes SEAL's objects of one context."""

    def __init__(self, option: str, bits: tuple[int, ...], word: int) -> None:
        self.seal, self.context = load_seal(option), open_context(option, bits, word)
        self.evaluator = self.seal.Evaluator(self.context)
        self.file = File()

    def write(self, thing: Any) -> bytes:
        thing.save(self.file.path)
        return self.file.read()

    def plaintext(self, words: np.ndarray) -> Any:
        """A polynomial with these coefficients below 2^word."""
        plain = self.seal.Plaintext()
        if not len(words):
            return plain
        data = np.ascontiguousarray(words, dtype="<u8").tobytes()
        inner = wrap(struct.pack("<Q", len(words)) + data)
        head = bytes(32) + struct.pack("<Qd", len(words), 1.0)
        plain.load(self.context, self.file.write(wrap(head + inner)))
        return plain

    def coefficients(self, plain: Any, places: Iterable[int]) -> np.ndarray:
        """The coefficients of a polynomial at these places."""
        known = plain.coeff_count()
        return np.array([plain[k] if k < known else 0 for k in places], np.uint64)

    def residues(self, thing: Any, levels: int) -> np.ndarray:
        """The residues of a ciphertext or of a public key: parts · levels × degree."""
        size = PARTS * levels * DEGREE * 8
        body = unwrap(self.write(thing), BODY + size)
        if len(body) != BODY + size:
            raise ProtocolError("SEAL wrote a ciphertext of another version; the extra he needs version 4.")
        return np.frombuffer(body, np.uint64, offset=BODY).reshape(PARTS * levels, DEGREE)

    def seeded(self, thing: Any, levels: int) -> tuple[np.ndarray, bytes]:
        """The first polynomial of a fresh ciphertext (levels × degree), and the seed of the second."""
        size = PARTS * levels * DEGREE * 8 // 2
        body = unwrap(self.write(thing), BODY + size + _SEED_HEAD + SEED)
        if len(body) != BODY + size + _SEED_HEAD + SEED or body[BODY + size : -SEED] != _seed_head():
            raise ProtocolError("SEAL wrote a seed of another version; the extra he needs version 4.")
        first = np.frombuffer(body, np.uint64, size // 8, BODY).reshape(levels, DEGREE)
        return first, body[-SEED:]

    def load(
        self,
        thing: Any,
        parms_id: Sequence[int],
        residues: np.ndarray,
        is_ntt: bool = False,
        seed: bytes = b"",
    ) -> Any:
        """Fill a ciphertext or a public key with residues (parts × levels × degree); one part, and a seed."""
        parts, levels, degree = residues.shape
        head = struct.pack("<4Q?QQQdQ", *parms_id, is_ntt, PARTS, degree, levels, 1.0, 1)
        data = wrap(struct.pack("<Q", parts * levels * degree) + residues.tobytes())
        thing.load(self.context, self.file.write(wrap(head + data + (_seed_head() + seed if seed else b""))))
        return thing


def _seed_head() -> bytes:
    """What precedes a seed in a stream: SEAL's default generator is Blake2xb, number 1."""
    return _HEADER.pack(_MAGIC, _HEADER.size, 4, 3, _PLAIN, 0, _SEED_HEAD + SEED) + b"\x01"


def draw_noise(draw: Draw, count: int, bits: int, primes: Sequence[int]) -> np.ndarray:
    """The residues of uniform integers from −2^(bits−1) to 2^(bits−1) − 1: primes × count.

    Σ 2^(16k) · limb_k modulo p, for primes just below 2^60 or a smaller power of two: the factors are split
    at bit 30, so that no sum reaches 2^64.
    """
    limbs = np.frombuffer(draw(2 * count * -(-bits // 16)), "<u2").astype(np.uint64).reshape(-1, count)
    limbs[-1] &= np.uint64((1 << (bits - 1) % 16 + 1) - 1)
    places = range(len(limbs))
    low, high = (
        np.array([[(pow(2, 16 * k, p) >> at) & (1 << 30) - 1 for k in places] for p in primes], np.uint64)
        @ limbs
        for at in (0, 30)
    )
    carry = np.array([[(1 << 60) % p] for p in primes], np.uint64)
    low += (high >> np.uint64(30)) * carry + ((high & np.uint64((1 << 30) - 1)) << np.uint64(30))
    middle = np.array([[-(1 << bits - 1) % p] for p in primes], np.uint64)
    return np.asarray((low + middle) % np.array(primes, np.uint64)[:, None])
