"""The keystream of ChaCha20 (Bernstein 2008, with his 64-bit counter, and nonce 0; RFC 8439 for the rest).

On the CPU OpenSSL computes it. No library computes it on a GPU, so a Triton kernel does: additions, exclusive
ors and rotations of 32-bit words. (AES needs tables there, or instructions that a GPU does not have.) Without
Triton the CPU's keystream is copied to the card. `tests/crypto/test_chacha.py` compares OpenSSL with the
definition, and `tests/on_a_gpu.py` the kernel with OpenSSL.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import MissingExtra
from ..parameters import bad
from . import gpu_kernels
from .prg import KEY

BLOCK = 64  # bytes of the cipher's output


class ChaCha20:
    """Keystream blocks of a key, from any block on."""

    def __init__(self, key: bytes, device: str = "cpu"):
        if len(key) != KEY:
            raise bad("ChaCha20", "the length of a key", len(key), f"{KEY} bytes")
        self._key, self.device = key, torch.device(device)
        self._words: Tensor | None = None
        if self.device.type == "cuda" and gpu_kernels.has_triton():
            self._words = torch.from_numpy(np.frombuffer(key, np.int32).copy()).to(self.device)

    def blocks(self, first: int, count: int) -> Tensor:
        """Blocks `first` to `first + count` as bytes, on the device."""
        if self._words is not None:
            return gpu_kernels.chacha_blocks(self._words, first, count)
        return torch.from_numpy(_on_cpu(self._key, first, count)).to(self.device)


def _on_cpu(key: bytes, first: int, count: int) -> np.ndarray:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError:
        raise MissingExtra("secret sharing", "mpc", "cryptography") from None
    out, at = np.zeros(count * BLOCK, np.uint8), 0
    while at < count:  # OpenSSL counts in 32 bits; the upper half of the counter is part of its nonce
        some = min(count - at, (1 << 32) - (first + at) % (1 << 32))
        part = out[at * BLOCK : (at + some) * BLOCK].data
        start = (first + at).to_bytes(8, "little") + bytes(8)
        Cipher(algorithms.ChaCha20(key, start), None).encryptor().update_into(part, part)
        at += some
    return out
