"""A key's random words, read once from front to back: AES-256 in counter mode.

Dealer and party read the same tape in the same order, so a share that is on the tape costs no traffic.
Nothing rewinds a tape and a key makes one tape: no word is used twice. (`crypto/prg.py` gives a key's whole
stream at once; here it is read in pieces.)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..errors import MissingExtra
from ..parameters import bad

KEY = 32  # bytes: 256 bits, from the operating system
BLOCK = bytes(1 << 18)  # zeros to encrypt: stays in a core's cache


class Tape:
    def __init__(self, key: bytes):
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError:
            raise MissingExtra("secret sharing", "mpc", "cryptography") from None
        if len(key) != KEY:
            raise bad("Tape", "the length of a key", len(key), f"{KEY} bytes")
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def draw(self, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
        """The next uniform words of this dtype."""
        room = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
        view = room.data
        for start in range(0, len(room), len(BLOCK)):
            part = view[start : start + len(BLOCK)]
            self._stream.update_into(BLOCK if len(part) == len(BLOCK) else BLOCK[: len(part)], part)
        return torch.from_numpy(room).view(dtype).reshape(shape)
