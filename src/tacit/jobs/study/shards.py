"""Parts of a study that several processes or machines compute side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...errors import BadParameter
from ...parameters import bad

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`, counted from 1.

    Which cells are in it depends on the study's file and on `count` only, so that shards need not know of
    each other. All shards together are all cells.
    """

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "2/8"."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise BadParameter(
                str(bad("study", "shard", text, "I/N with 1 ≤ I ≤ N, as 2/8 for the second of eight parts"))
            )
        return cls(int(found[1]), int(found[2]))

    def of(self, stacks: Sequence[Sequence[T]]) -> list[list[T]]:
        """Return this shard's part of each stack; the shards' numbers of runs differ by at most one."""
        before, parts = 0, []
        for stack in stacks:
            parts.append([run for i, run in enumerate(stack, before) if i % self.count == self.index - 1])
            before += len(stack)
        return [part for part in parts if part]


WHOLE = Shard()


def split(stack: Sequence[T], parts: int) -> Iterator[list[T]]:
    """Yield at most so many parts of a stack, of almost the same size."""
    for i in range(min(parts, len(stack))):
        yield list(stack[i::parts])
