"""Blocks: only records that agree on a blocking key are compared.

A key is a list of fields; its value is the sound of a name (the whole of a name without letters from a to z,
as in other scripts) and the whole of any other field. A record has at
most one value of each key, and none if a part is missing. Two records that agree on several keys are compared
in several blocks. By default the keys are all pairs of names, dates and codes, the most selective ones: a
shared value then is two properties that a person of the other party has, seldom one that many people have.

Of a block the other party learns how many rows it is padded to: the least power of two, at most `max_block`.
Blocks with more rows at one party are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ProtocolError
from ..parameters import bad, nearest
from .fields import Field, Records
from .normalize import to_sound

STRONG = ("name", "date", "code")  # kinds that default keys are made of
MOST_KEYS = 15
MARK = "\x1f"  # between the parts of a value: no normalized text contains it
Keys = tuple[tuple[str, ...], ...]


def read_keys(blocks: Any, fields: Sequence[Field], where: str = "link") -> Keys:
    """Read [["surname", "born"], …]; None: all pairs of names, dates and codes, at most 15."""
    names = [f.name for f in fields]
    if blocks is None or (isinstance(blocks, list | tuple) and not blocks):
        strong = [f.name for f in fields if f.kind in STRONG]
        if not strong:
            hint = 'Give the fields that a block shares, like blocks=[["surname", "born"]].'
            raise bad(where, "blocks", None, "given where no field is a name, a date or a code", hint)
        pairs = tuple(itertools.combinations(strong, 2))
        return pairs[:MOST_KEYS] or ((strong[0],),)
    keys = []
    for key in blocks if isinstance(blocks, list | tuple) else [None]:
        parts = [key] if isinstance(key, str) else key
        if not isinstance(parts, list | tuple) or not parts or not all(isinstance(p, str) for p in parts):
            raise bad(where, "blocks", blocks, 'lists of fields, like [["surname", "born"], ["phone"]]')
        unknown = [p for p in parts if p not in names]
        if unknown:
            raise bad(where, "blocks", unknown[0], "one of the fields", nearest(unknown[0], names))
        keys.append(tuple(parts))
    if len(set(keys)) < len(keys) or len(keys) > MOST_KEYS:
        raise bad(where, "blocks", blocks, f"different keys, at most {MOST_KEYS}")
    return tuple(keys)


@dataclass(frozen=True)
class Blocks:
    """A party's distinct blocking values, and the rows that have each."""

    values: tuple[str, ...]
    members: tuple[np.ndarray, ...]


def make_blocks(records: Records, keys: Keys) -> Blocks:
    """Compute the blocking values of a table."""
    kinds = {f.name: f.kind for f in records.fields}
    parts: dict[str, list[str]] = {}
    for name in {part for key in keys for part in key}:
        values = records.values(name)
        parts[name] = [to_sound(v) or v for v in values] if kinds[name] == "name" else values
    members: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        for row, value in enumerate(zip(*(parts[name] for name in key))):
            if all(value):
                members.setdefault(MARK.join([str(number), *value]), []).append(row)
    return Blocks(tuple(members), tuple(np.array(rows, np.int64) for rows in members.values()))


def pad_size(rows: int, most: int) -> int:
    """The size that the other party learns: the least power of two; 0 for a block that is left out."""
    return 0 if rows > most else 1 << (rows - 1).bit_length()


def check_sizes(sizes: Sequence[int], count: int, most: int, who: str) -> None:
    """Refuse sizes that a party that follows the protocol does not send."""
    allowed = {0, *(1 << k for k in range(9) if 1 << k <= pad_size(most, most))}
    if len(sizes) != count or any(s not in allowed for s in sizes):
        raise ProtocolError(
            f"{who!r} sent sizes of {len(sizes)} blocks; expected {count} powers of two of at most "
            f"{max(allowed)}. All parties must run the same version on the same job."
        )


@dataclass(frozen=True)
class Shapes:
    """The blocks that are compared by their padded sizes; `blocks` are their numbers in the common order."""

    sizes: tuple[tuple[int, int], ...]
    blocks: tuple[np.ndarray, ...]

    @property
    def pairs(self) -> int:
        return sum(n * m * len(b) for (n, m), b in zip(self.sizes, self.blocks))


def make_shapes(left: Sequence[int], right: Sequence[int]) -> Shapes:
    """Group blocks by the padded sizes at both parties, without those that one of them leaves out."""
    a, b = np.asarray(left, np.int64), np.asarray(right, np.int64)
    found = sorted({(int(n), int(m)) for n, m in zip(a, b) if n and m})
    return Shapes(tuple(found), tuple(np.flatnonzero((a == n) & (b == m)) for n, m in found))


def make_slots(
    shapes: Shapes, side: int, members: Sequence[np.ndarray], secret: Callable[[int], bytes]
) -> list[np.ndarray]:
    """For each shape, this party's rows of each block in random order; −1 pads."""
    slots = []
    for size, numbers in zip(shapes.sizes, shapes.blocks):
        rows = np.full((len(numbers), size[side]), -1, np.int64)
        for k, number in enumerate(numbers):
            rows[k, : len(members[number])] = members[number]
        order = np.frombuffer(secret(8 * rows.size), np.int64).reshape(rows.shape).argsort(axis=1)
        slots.append(np.take_along_axis(rows, order, axis=1))
    return slots
