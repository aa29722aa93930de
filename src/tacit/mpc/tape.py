"""A random tape: the words of a key's AES-256 stream in counter mode, read once from front to back.

Dealer and party read the same tape in the same order, so a share on the tape costs no traffic. A tape is
never rewound and a key has one tape: no word is used twice. (`crypto/prg.py` expands a key in one call; here
it is read in pieces.)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..crypto.prg import aes

BLOCK = bytes(1 << 18)  # zeros to encrypt: fits in a core's cache


class Tape:
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
