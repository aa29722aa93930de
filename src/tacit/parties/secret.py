"""Cryptographic randomness from the operating system, never from numpy's or torch's generators."""

from __future__ import annotations

import builtins
import hashlib
import secrets

NOT_PRIVATE = (
    "NOT PRIVATE: secrets came from a seed that can be replayed; whoever knows it can undo every "
    "mask, share and noise."
)


class Secret:
    """The operating system's randomness."""

    replayable = False

    def bytes(self, n: int) -> builtins.bytes:
        return secrets.token_bytes(n)


class SeededSecret(Secret):
    """Replayable bytes for tests only; a party that uses it stamps its ledger NOT PRIVATE."""

    replayable = True

    def __init__(self, seed: int | str):
        self._seed = repr(seed).encode()
        self._drawn = 0

    def bytes(self, n: int) -> builtins.bytes:
        self._drawn += 1
        return hashlib.shake_256(b"tacit seeded secret|%d|%s" % (self._drawn, self._seed)).digest(n)
