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


class StoredSecret(Secret):
    """Bytes that follow from a random key which the party keeps on its own disk, in the order they are drawn.

    A run that is stopped and resumed draws the same again, so that nothing is masked in two ways. Whoever
    reads the key can undo every mask of the run: its file is the party's own.
    """

    def __init__(self, key: builtins.bytes):
        self._key = key
        self._drawn = 0

    def bytes(self, n: int) -> builtins.bytes:
        self._drawn += 1
        return hashlib.shake_256(b"tacit stored secret|%d|" % self._drawn + self._key).digest(n)
