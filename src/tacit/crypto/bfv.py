"""Homomorphic encryption of words modulo 2^59, for sums that hide which ciphertexts were added. Fan,
Vercauteren: Somewhat Practical Fully Homomorphic Encryption (BFV), 2012, through TenSEAL (Microsoft SEAL).

Words are coefficients of a polynomial modulo X^8192 + 1, so a ciphertext has 8192 of them, and multiplying it
by a power of X moves them without noise. Ring dimension 8192 with a modulus of 4 × 50 bits: the
HomomorphicEncryption.org standard (2018, Table 1) allows 218 at 128-bit security; SEAL refuses weaker ones.
The holder of the key encrypts with it, so that half of a ciphertext is a seed.

Whoever adds ciphertexts knows the public key only, and returns sums from which the key's holder learns the
word sums and nothing else, not even which ciphertexts were added:

    sum + Enc(mask) + e,    mask uniform modulo 2^59, e uniform in ±2^87

Enc(mask) makes both parts of the ciphertext pseudorandom (RLWE), and e hides the errors of what was added
(noise flooding; Gentry: Fully Homomorphic Encryption Using Ideal Lattices, 2009): errors of 2^20 ciphertexts
are below 2^26, so a coefficient is within 2^-61 of one that does not depend on them. Sums stay exact: an
error below 2^90 is removed by decryption.

SEAL's Python interface has no arithmetic on many ciphertexts at once, so numpy or numba adds the residues,
which SEAL reads from and writes to its own format.
"""

from __future__ import annotations

import importlib.util
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingExtra, ProtocolError

DEGREE = 8192
PRIMES = (50, 50, 50, 50)  # bits; the last is for keys only
WORD = 59  # bits of a word: SEAL allows a plaintext modulus below 2^60
PARTS, LEVELS = 2, len(PRIMES) - 1  # polynomials of a ciphertext, residues of a coefficient
MASK = (1 << WORD) - 1
FLOOD = 88  # bits of the noise: 2^88 values
LAZY = 1 << 13  # residues of 50 bits that are added in 64 bits before they are reduced
CIPHERTEXT_BYTES, SUM_BYTES = 177_000, 236_000  # as SEAL compresses them: measured
MOST_BYTES = 1 << 20  # of a ciphertext or a public key that is read

_HEADER = struct.Struct("<HBBBBHQ")
_MAGIC, _PLAIN = 0xA15E, 0
_BODY = 97  # bytes of a ciphertext before its residues
_LIMB, _LIMBS = 11, FLOOD // 11

Draw = Callable[[int], bytes]


def _seal() -> Any:
    try:
        import tenseal.sealapi as seal
        import zstandard  # noqa: F401
    except ImportError:
        raise MissingExtra("backend='he'", "he", "tenseal") from None
    return seal


@cache
def _context() -> Any:
    seal = _seal()
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(_primes())
    parameters.set_plain_modulus(1 << WORD)
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise ProtocolError(f"SEAL refuses the parameters: {context.parameters_error_message()}.")
    return context


@cache
def _primes() -> Any:
    seal = _seal()
    return seal.CoeffModulus.Create(DEGREE, list(PRIMES))


@cache
def moduli() -> np.ndarray:
    """The primes of residues."""
    return np.array([p.value() for p in _primes()[:LEVELS]], dtype=np.uint64)


class _File:
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


def _wrap(body: bytes) -> bytes:
    """A stream of SEAL's, without compression."""
    return _HEADER.pack(_MAGIC, _HEADER.size, 4, 3, _PLAIN, 0, _HEADER.size + len(body)) + body


def _unwrap(stream: bytes, most: int) -> bytes:
    import zstandard

    magic, size, major, _, mode, _, length = _HEADER.unpack_from(stream)
    if (magic, size, major, length) != (_MAGIC, _HEADER.size, 4, len(stream)) or mode not in (0, 2):
        raise ProtocolError("SEAL wrote a stream of another version; backend='he' needs version 4.")
    if mode == _PLAIN:
        return stream[_HEADER.size :]
    return zstandard.ZstdDecompressor().decompress(stream[_HEADER.size :], max_output_size=most)


class _Seal:
    """What both sides need: reading and writing of SEAL's objects."""

    def __init__(self) -> None:
        self.seal, self.context = _seal(), _context()
        self.evaluator = self.seal.Evaluator(self.context)
        self._file = _File()

    def read(self, data: bytes, what: str, is_switched: bool = False) -> Any:
        """Read a ciphertext that another party sent; SEAL checks its residues."""
        if len(data) > MOST_BYTES:
            raise ProtocolError(f"{what} has {len(data)} bytes; a ciphertext has at most {MOST_BYTES}.")
        ciphertext = self.seal.Ciphertext()
        try:
            ciphertext.load(self.context, self._file.write(data))
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"{what} cannot be read: {error}.") from None
        levels = LEVELS - 1 if is_switched else LEVELS
        if (ciphertext.size(), ciphertext.coeff_modulus_size()) != (
            PARTS,
            levels,
        ) or ciphertext.is_ntt_form():
            raise ProtocolError(f"{what} has another form than the agreed ciphertexts.")
        return ciphertext

    def write(self, thing: Any) -> bytes:
        thing.save(self._file.path)
        return self._file.read()

    def residues(self, ciphertext: Any) -> np.ndarray:
        """The residues of a ciphertext: parts · levels × degree."""
        size = PARTS * LEVELS * DEGREE * 8
        body = _unwrap(self.write(ciphertext), _BODY + size)
        if len(body) != _BODY + size:
            raise ProtocolError("SEAL wrote a ciphertext of another version; backend='he' needs version 4.")
        return np.frombuffer(body, np.uint64, offset=_BODY).reshape(PARTS * LEVELS, DEGREE)

    def plaintext(self, words: np.ndarray) -> Any:
        """A polynomial with these coefficients below 2^59."""
        plain = self.seal.Plaintext()
        if not len(words):
            return plain
        data = np.ascontiguousarray(words, dtype="<u8").tobytes()
        inner = _wrap(struct.pack("<Q", len(words)) + data)
        head = bytes(32) + struct.pack("<Qd", len(words), 1.0)
        plain.load(self.context, self._file.write(_wrap(head + inner)))
        return plain


class KeyHolder(_Seal):
    """Encrypts, and decrypts sums. `secret`: a key of `new_secret`, for a run that can be resumed."""

    def __init__(self, secret: bytes | None = None) -> None:
        super().__init__()
        if secret is None:
            generator = self.seal.KeyGenerator(self.context)  # SEAL draws keys from the operating system
        else:
            own = self.seal.SecretKey()
            own.load(self.context, self._file.write(secret))
            generator = self.seal.KeyGenerator(self.context, own)
        secret_key = generator.secret_key()
        self._public = self.seal.PublicKey()
        generator.create_public_key(self._public)
        self._encryptor = self.seal.Encryptor(self.context, self._public, secret_key)
        self._decryptor = self.seal.Decryptor(self.context, secret_key)

    def public(self) -> bytes:
        return self.write(self._public)

    def encrypt(self, words: np.ndarray) -> bytes:
        """Encrypt up to 8192 words below 2^59."""
        return self.write(self._encryptor.encrypt_symmetric(self.plaintext(words)))

    def decrypt(self, data: bytes, count: int, what: str = "a sum") -> np.ndarray:
        """The first words of a sum that `SumMaker.close` returned."""
        plain = self.seal.Plaintext()
        self._decryptor.decrypt(self.read(data, what, is_switched=True), plain)
        known = min(count, plain.coeff_count())
        out = np.zeros(count, np.int64)
        out[:known] = [plain[k] for k in range(known)]
        return out

    def noise_budget(self, data: bytes) -> int:
        """The bits of noise that a sum could still take."""
        return int(self._decryptor.invariant_noise_budget(self.read(data, "a sum", is_switched=True)))


def new_secret() -> bytes:
    """A fresh secret key, as bytes."""
    seal = _Seal()
    return seal.write(seal.seal.KeyGenerator(seal.context).secret_key())


class SumMaker(_Seal):
    """Adds ciphertexts without the key, and hides which ones."""

    def __init__(self, public: bytes):
        super().__init__()
        if len(public) > MOST_BYTES:
            raise ProtocolError(f"the public key has {len(public)} bytes; it has at most {MOST_BYTES}.")
        key = self.seal.PublicKey()
        try:
            key.load(self.context, self._file.write(public))
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"the public key cannot be read: {error}.") from None
        self._encryptor = self.seal.Encryptor(self.context, key)

    def open(self, ciphertexts: Sequence[bytes], what: str) -> np.ndarray:
        """The residues of several ciphertexts."""
        out = np.empty((len(ciphertexts), PARTS * LEVELS, DEGREE), np.uint64)
        for place, data in enumerate(ciphertexts):
            out[place] = self.residues(self.read(data, what))
        return out

    def close(self, total: np.ndarray, mask: np.ndarray, draw: Draw) -> bytes:
        """The ciphertext of a sum of residues plus 8192 mask words, independent of what was added."""
        cipher = self.hide(total, mask, draw)
        self.evaluator.mod_switch_to_next_inplace(cipher)  # one residue fewer to send
        return self.write(cipher)

    def hide(self, total: np.ndarray, mask: np.ndarray, draw: Draw) -> Any:
        """Add a fresh encryption of the mask, and noise."""
        cipher = self.seal.Ciphertext()
        self._encryptor.encrypt(self.plaintext(mask), cipher)
        body = _unwrap(self.write(cipher), _BODY + total.nbytes)
        fresh = np.frombuffer(body, np.uint64, offset=_BODY).reshape(total.shape)
        limits = np.tile(moduli(), PARTS)[:, None]
        hidden = (total + fresh) % limits
        hidden[:LEVELS] = (hidden[:LEVELS] + _flood(draw)) % limits[:LEVELS]
        cipher.load(self.context, self._file.write(_wrap(body[:_BODY] + hidden.tobytes())))
        return cipher


def _flood(draw: Draw) -> np.ndarray:
    """The residues of 8192 uniform integers in ±2^87: levels × degree."""
    limbs = np.frombuffer(draw(2 * _LIMBS * DEGREE), np.uint16).reshape(_LIMBS, DEGREE) & ((1 << _LIMB) - 1)
    primes = moduli()[:, None]
    out = np.zeros((LEVELS, DEGREE), np.uint64)
    for limb in limbs.astype(np.uint64):
        out = ((out << np.uint64(_LIMB)) + limb) % primes
    middle = np.array([[pow(2, FLOOD - 1, int(p))] for p in moduli()], np.uint64)
    return np.asarray((out + primes - middle) % primes)


def add_rows_numpy(
    total: np.ndarray, block: np.ndarray, cells: np.ndarray, words: int, primes: np.ndarray
) -> None:
    """Add each row's words to its cells: total[cell] += X^(−place · words) · ciphertext, residues unreduced.

    total   cells × (parts · levels) × degree;  block: ciphertexts × (parts · levels) × degree
    cells   rows × columns, the cell of each; row r is in ciphertext r // (degree // words)
    """
    each = DEGREE // words
    limits = np.tile(primes, PARTS)[:, None]
    for place, source in enumerate(block):
        turned = limits - source
        for at, row in enumerate(cells[place * each : (place + 1) * each]):
            shift = at * words
            for cell in row:
                total[cell, :, : DEGREE - shift] += source[:, shift:]
                if shift:
                    total[cell, :, DEGREE - shift :] += turned[:, :shift]


def is_installed() -> bool:
    """Whether the extra `he` is here."""
    return all(importlib.util.find_spec(name) is not None for name in ("tenseal", "zstandard"))
