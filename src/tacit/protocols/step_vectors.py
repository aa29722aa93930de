"""What a step of a program of sums is sent, without what the step before was sent already.

A long program repeats itself: every step of boosting is sent all trees so far. Within a session a party has
the vectors of its last step, so a step is sent only what was added to them:

    vectors[name] = the last step's vectors[name][: kept[name]], followed by what is sent, if anything is

A party digests, checks and uses the whole vectors, so what a step means does not depend on how it was sent.
A session begins with whole vectors: a party that was restarted needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..crypto.digest import Digests, Hashed
from ..errors import ProtocolError
from .sum_steps import Down

_SHORT = 256  # bytes: shorter vectors are sent whole


def shorten(before: Down, vectors: Down) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return what is sent of each vector, and how much of the last step's it follows."""
    sent, kept = dict(vectors), {}
    for name, tensor in vectors.items():
        last = before.get(name)
        if last is not None and tensor.nbytes >= _SHORT and _continues(last, tensor):
            count = last.numel()
            sent[name], kept[name] = tensor[count:], count
            if count == tensor.numel():
                del sent[name]
    return sent, kept


def _continues(last: Tensor, tensor: Tensor) -> bool:
    if last is tensor:
        return tensor.ndim == 1
    return (
        last.dtype == tensor.dtype
        and last.ndim == tensor.ndim == 1
        and 0 < len(last) <= len(tensor)
        and np.array_equal(_bytes_of(last), _bytes_of(tensor[: len(last)]))
    )


def _bytes_of(vector: Tensor) -> np.ndarray:
    """Return a vector's memory. numpy compares and joins it in this thread: torch starts others for more than
    32,768 numbers, which wait for each other longer than they work if the processor is busy.
    """
    found: np.ndarray = vector.contiguous().view(torch.uint8).numpy()
    return found


def _join(first: Tensor, second: Tensor) -> Tensor:
    joined = np.concatenate([_bytes_of(first), _bytes_of(second)])
    return torch.from_numpy(joined).view(first.dtype)


# the vectors before, what was sent and kept of them; whole vectors, and the hashes of their values
Restored = tuple[Down, Down, Mapping[str, int], dict[str, Tensor], dict[str, Hashed]]


class LastStep:
    """What parties of one process computed last of the same objects: whole vectors, and their digest.

    Nobody changes the vectors of a step, so what one party computed of them is what the others would.
    """

    def __init__(self) -> None:
        self.restored: Restored | None = None
        self.digested: tuple[int, Down, bytes, dict[str, Hashed]] | None = None


class StepVectors:
    """The vectors of the last step, whole, and their digests, as a party or a coordinator has them."""

    def __init__(self, shared: LastStep | None = None) -> None:
        self.vectors: Down = {}
        self._hashed: dict[str, Hashed] = {}
        self._shared = shared or LastStep()

    def forget(self) -> None:
        self.vectors = {}

    def restore(self, sent: Down, kept: Mapping[str, int]) -> dict[str, Tensor]:
        """Return the whole vectors of a step, and remember them."""
        known, before = self._shared.restored, self.vectors
        if known is not None and known[0] is before and known[1] is sent and known[2] is kept:
            self.vectors, self._hashed = known[3], known[4]
            return known[3]
        whole, hashed = dict(sent), dict(self._hashed)
        for name, count in kept.items():
            last, added = self.vectors.get(name), sent.get(name)
            if last is None or last.ndim != 1 or not 0 <= count <= last.numel():
                raise ProtocolError(f"a step continues {name!r:.80}, which the step before was not sent so.")
            if added is None:
                whole[name] = last if count == last.numel() else last[:count]
                continue
            if added.dtype != last.dtype or added.ndim != 1:
                raise ProtocolError(f"a step continues {name!r:.80} with another kind of numbers.")
            whole[name] = _join(last[:count], added)
            entry = hashed.get(name)
            if entry is not None and entry.tensor is last and count == last.numel():
                hashed[name] = Hashed(whole[name], entry)
        self.vectors, self._hashed = whole, hashed
        self._shared.restored = before, sent, kept, whole, hashed
        return whole

    def digest(self, step: int, vectors: Down) -> bytes:
        """Return the digest of a step; a vector that is the last step's is not hashed again."""
        known = self._shared.digested
        if known is not None and known[0] == step and known[1] is vectors and vectors is self.vectors:
            self._hashed = known[3]
            return known[2]
        digests = Digests(vectors, self._hashed)
        found = digests.of(None, "SumStep", str(step))
        self._hashed = digests.known
        if vectors is self.vectors:
            self._shared.digested = step, vectors, found, self._hashed
        return found
