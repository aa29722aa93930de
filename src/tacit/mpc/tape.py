"""A random tape: the words of a key's stream, read once from front to back.

Dealer and party read the same tape in the same order, so a share on the tape costs no traffic. A tape is
never rewound and a key has one tape: no word is used twice. (`crypto/prg.py` expands a key in one call; here
it is read in pieces.)

The stream is that of AES-256 in counter mode, or of ChaCha20, which a GPU can compute itself. The dealer
says which one it is (`TapeKey.cipher`). Both have keys of 256 bits and no known weakness, so a party takes
either.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..crypto import chacha
from ..crypto.prg import aes
from ..errors import ProtocolError

BLOCK = bytes(1 << 18)  # zeros to encrypt: fits in a core's cache
AES, CHACHA = "aes-256-ctr", "chacha20"
Parts = dict[str, tuple[tuple[int, ...], torch.dtype]]  # shape and dtype by name


class Tape:
    """The stream of AES-256 in counter mode."""

    cipher = AES

    def __init__(self, key: bytes):
        self._stream = aes(key, "secret sharing", "mpc")

    def draw(self, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
        """The next uniform words of this dtype."""
        buffer = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
        view = buffer.data
        for start in range(0, len(buffer), len(BLOCK)):
            part = view[start : start + len(BLOCK)]
            self._stream.update_into(BLOCK if len(part) == len(BLOCK) else BLOCK[: len(part)], part)
        return torch.from_numpy(buffer).view(dtype).reshape(shape)

    def draw_parts(self, parts: Parts) -> dict[str, Tensor]:
        """The next uniform words of each part."""
        return {name: self.draw(shape, dtype) for name, (shape, dtype) in parts.items()}


class ChaChaTape(Tape):
    """The stream of ChaCha20, on a device; each part begins at a block."""

    cipher = CHACHA

    def __init__(self, key: bytes, device: str = "cpu"):
        self._blocks, self._at = chacha.ChaCha20(key, device), 0

    def draw(self, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
        return self.draw_parts({"": (shape, dtype)})[""]

    def draw_parts(self, parts: Parts) -> dict[str, Tensor]:
        """The next uniform words of each part, computed in one call."""
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in parts.values()]
        counts = [-(-size // chacha.BLOCK) for size in sizes]
        drawn = self._blocks.blocks(self._at, sum(counts))
        self._at += sum(counts)
        found, start = {}, 0
        for (name, (shape, dtype)), size, count in zip(parts.items(), sizes, counts):
            found[name] = drawn[start : start + size].view(dtype).reshape(shape)
            start += count * chacha.BLOCK
        return found


def open_tape(key: bytes, cipher: str, device: str) -> Tape:
    """The tape of a dealer's key."""
    if cipher not in (AES, CHACHA):
        raise ProtocolError(
            f"the dealer's tape has the cipher {cipher!r:.40}; known are {AES!r} and {CHACHA!r}. Use the "
            "same version of tacit at all parties."
        )
    return ChaChaTape(key, device) if cipher == CHACHA else Tape(key)
