"""What a step of a program of sums is sent, without what the step before was sent already.

A long program repeats itself: every step of boosting is sent all trees so far. Within a session a party has
the vectors of its last step, so a step is sent only what was added to them:

    vectors[name] = the last step's vectors[name][: kept[name]], followed by what is sent, if anything is

A party digests, checks and uses the whole vectors, so what a step means does not depend on how it was sent.
A session begins with whole vectors: a party that was restarted needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..crypto.digest import Digests, Hashed
from ..errors import ProtocolError
from .sum_steps import Down, SharedVectors, SumProgram, bytes_of, count_words

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
        and np.array_equal(bytes_of(last), bytes_of(tensor[: len(last)]))
    )


def _join(first: Tensor, second: Tensor) -> Tensor:
    joined = np.concatenate([bytes_of(first), bytes_of(second)])
    return torch.from_numpy(joined).view(first.dtype)


class ReadStep:
    """A step as a party reads it: its whole vectors, their digest, and what a program asks in it.

    All of it follows from what was sent, from the vectors of the step before and from the program, so
    parties of one process that have these very objects share one (`LastStep`).
    """

    __slots__ = ("_words", "before", "digest", "down", "hashed", "kept", "sent", "step", "vectors")

    def __init__(
        self,
        step: int,
        before: Down,
        sent: Down,
        kept: Mapping[str, int],
        known: Mapping[str, Hashed],
        last: SharedVectors | None,
    ) -> None:
        self.step, self.before, self.sent, self.kept = step, before, sent, kept
        self.vectors, self.hashed = _restore(before, sent, kept, known)
        # what a program is given; the next step continues the vectors themselves
        self.down = SharedVectors(self.vectors, last)
        digests = Digests(self.vectors, self.hashed)
        self.digest = digests.of(None, "SumStep", str(step))
        # of these vectors only: a coordinator may give each step another name
        self.hashed = {name: entry for name, entry in digests.known.items() if name in self.vectors}
        self._words: tuple[object, int, int | None] | None = None

    def count_words(self, program: SumProgram[Any, Any], own: int, down: Down) -> int | None:
        """As sum_steps.count_words, once for each program."""
        known = self._words
        if known is None or known[0] is not program or known[1] != own:
            self._words = known = program, own, count_words(program, own, down)
        return known[2]


class LastStep:
    """The step that a party of this process read last."""

    def __init__(self) -> None:
        self.read: ReadStep | None = None


def _restore(
    before: Down, sent: Down, kept: Mapping[str, int], known: Mapping[str, Hashed]
) -> tuple[dict[str, Tensor], dict[str, Hashed]]:
    """Return the whole vectors of a step, and the hashes that are known of them."""
    whole, hashed = dict(sent), dict(known)
    for name, count in kept.items():
        last, added = before.get(name), sent.get(name)
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
    return whole, hashed


class StepVectors:
    """The vectors of the last step, whole, and their digests, as a party or a coordinator has them."""

    def __init__(self, shared: LastStep | None = None) -> None:
        self.vectors: Down = {}
        self._hashed: dict[str, Hashed] = {}
        self._down: SharedVectors | None = None
        self._shared = shared

    def read(self, step: int, sent: Down, kept: Mapping[str, int]) -> ReadStep:
        """Return a step that was sent so, and remember its vectors.

        With `shared`, take it over from a party that was sent this very message after the same vectors.
        """
        read = None if self._shared is None else self._shared.read
        if (
            read is None
            or read.sent is not sent
            or read.kept is not kept
            or read.step != step
            or (kept and read.before is not self.vectors)
        ):
            read = ReadStep(step, self.vectors, sent, kept, self._hashed, self._down)
            if self._shared is not None:
                self._shared.read = read
        self.vectors, self._hashed, self._down = read.vectors, read.hashed, read.down
        return read

    def digest(self, step: int, vectors: Down) -> bytes:
        """Return the digest of a step; a vector that is the last step's is not hashed again."""
        digests = Digests(vectors, self._hashed)
        found = digests.of(None, "SumStep", str(step))
        self._hashed = digests.known
        return found
