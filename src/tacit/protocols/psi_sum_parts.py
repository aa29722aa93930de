"""What a party of `psi_sum` keeps of large sets: rows that are shuffled, sorted and compared part by part.

The parts are in memory or in files, wherever the ids are (`id_buckets.IdBuckets.new_parts`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..crypto import elgamal, group
from ..crypto.agree import bind
from ..crypto.spool import Parts
from ..crypto.tags import compute_tags, match, permutation, words
from ..errors import ProtocolError
from .id_buckets import IdBuckets
from .psi_oprf import capacity

CHUNK = 2048  # items in a message: 64 KiB of points, and about a tenth of a second of work on one core
PART = 1 << 18  # rows that are in memory at once: 80 MB with the values of a sum
BUFFER = 1 << 16  # rows that are dealt to parts at once
ROW = 8  # bytes of a row number or of the number of a decoy


def split_rows(data: bytes, each: int) -> np.ndarray:
    return np.frombuffer(data, np.uint8).reshape(-1, each)


def count_parts(rows: int) -> int:
    return max(1, math.ceil(rows / PART))


def spans(total: int) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of each message."""
    for first in range(0, total, CHUNK):
        yield first, min(CHUNK, total - first)


def ranges(total: int) -> Iterator[np.ndarray]:
    for first, count in spans(total):
        yield np.arange(first, first + count, dtype="<u8")


def rechunk(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield CHUNK rows at a time, whatever the blocks are: their sizes must not be seen."""
    left: np.ndarray | None = None
    for block in blocks:
        whole = block if left is None or not len(left) else np.concatenate([left, block])
        cut = len(whole) // CHUNK * CHUNK
        for first in range(0, cut, CHUNK):
            yield whole[first : first + CHUNK]
        left = whole[cut:]
    if left is not None and len(left):
        yield left


class Shuffled:
    """Rows in a random order: dealt to random parts, and each of these in a random order."""

    def __init__(self, parts: Parts, draw: Callable[[int], bytes]):
        self.parts, self._draw = parts, draw
        self._waiting: list[np.ndarray] = []

    def add(self, rows: np.ndarray) -> None:
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= BUFFER:
            self.finish()

    def finish(self) -> None:
        """Deal what waits."""
        if self._waiting:
            rows, self._waiting = np.concatenate(self._waiting), []
            word = np.frombuffer(self._draw(4 * len(rows)), np.uint32)
            numbers = word * np.uint64(len(self.parts.counts)) >> np.uint64(32)
            self.parts.append(numbers.astype(np.int64), rows)

    def chunks(self) -> Iterator[np.ndarray]:
        return rechunk(self._blocks())

    def _blocks(self) -> Iterator[np.ndarray]:
        for part in range(len(self.parts.counts)):
            rows = self.parts.read(part)
            yield rows[permutation(len(rows), self._draw)]


class Sorted:
    """Rows that begin with their number, by number."""

    def __init__(self, parts: Parts, total: int):
        self.parts, self._total = parts, max(1, total)

    def add(self, rows: np.ndarray) -> None:
        count = len(self.parts.counts)
        self.parts.append(rows[:, :ROW].copy().view("<i8")[:, 0] * count // self._total, rows)

    def chunks(self) -> Iterator[np.ndarray]:
        return rechunk(self.blocks())

    def blocks(self) -> Iterator[np.ndarray]:
        for part in range(len(self.parts.counts)):
            rows = self.parts.read(part)
            yield rows[np.argsort(rows[:, :ROW].copy().view("<i8")[:, 0])]


class Item:
    """A row of the sender before it is blinded: 1 byte (1: a decoy), an id's digest or a decoy's number, and
    a value of 8 bytes.
    """

    DIGEST, VALUE, WIDTH = 1, 17, 25


def mix(mixed: Shuffled, ids: IdBuckets, numbers: Sequence[int], m: int, hidden: int) -> None:
    for digests, values in ids.chunks_with(numbers):
        rows = np.zeros((len(digests), Item.WIDTH), np.uint8)
        rows[:, Item.DIGEST : Item.VALUE] = digests
        rows[:, Item.VALUE :] = values.astype("<i8").view(np.uint8).reshape(-1, 8)
        mixed.add(rows)
    for first in range(0, hidden, BUFFER):
        some = np.arange(first, min(first + BUFFER, hidden), dtype="<u8")
        rows = np.zeros((len(some), Item.WIDTH), np.uint8)
        rows[:, 0] = 1
        rows[:, Item.DIGEST : Item.DIGEST + 8] = some.view(np.uint8).reshape(-1, 8)
        mixed.add(rows)
    mixed.finish()


class Scalars:
    """Secret scalars by number, one for each limb: from a key, so that none has to be kept."""

    def __init__(self, use: bytes, key: bytes, each: int):
        self._use, self._key, self._limbs = use, key, each // elgamal.PAIR

    def of(self, numbers: Sequence[int]) -> list[list[bytes]]:
        return [[self._derive(k, limb) for limb in range(self._limbs)] for k in numbers]

    def _derive(self, number: int, limb: int) -> bytes:
        text = bind("tacit psi sum scalar 1", self._use, self._key, number, limb)
        return group.scalar(lambda _: hashlib.sha512(text).digest())


class Comparison:
    """What the sender compares: the receiver's tags, the returned rows and the decoys, in parts by tag."""

    def __init__(
        self,
        ids: IdBuckets,
        theirs: int,
        total: int,
        hidden: int,
        session: bytes,
        size: int,
        each: int,
        other: str,
    ):
        self._session, self._size, self._each, self._other = session, size, each, other
        self._theirs, self._total, self._hidden = theirs, total, hidden
        parts = count_parts(max(theirs, total))
        self.spread = 1  # a secret odd number, by which the receiver cannot choose tags for a part
        self._tags = ids.new_parts(parts, size)
        self._rows = ids.new_parts(parts, group.POINT + ROW + each)
        self._decoys = ids.new_parts(parts, group.POINT + ROW)
        self._decoy_rows = Sorted(ids.new_parts(count_parts(total), 2 * ROW + each), total)
        self._shared_rows = Sorted(ids.new_parts(count_parts(total), ROW + each), total)
        self.count = 0

    def _numbers(self, tags: np.ndarray) -> np.ndarray:
        spread = words(tags) * np.uint64(self.spread) >> np.uint64(32)
        return (spread * np.uint64(len(self._tags.counts)) >> np.uint64(32)).astype(np.int64)

    def _tags_of(self, points: np.ndarray) -> np.ndarray:
        return compute_tags(points.tobytes(), group.POINT, self._session, self._size)

    def _add(self, parts: Parts, tags: np.ndarray, rows: np.ndarray, total: int) -> None:
        parts.append(self._numbers(tags), rows)
        room = capacity(total, len(parts.counts))
        if int(parts.counts.max()) > room:  # of an honest party with probability below 2^-40
            raise ProtocolError(
                f"party {self._other!r} sent more than {room} rows for one of {len(parts.counts)} parts: "
                "it repeats rows, and does not follow the protocol. Nothing was opened."
            )

    def add_tags(self, tags: np.ndarray) -> None:
        self._add(self._tags, tags, tags, self._theirs)

    def add_rows(self, unblinded: bytes, first: int, ciphertexts: bytes) -> None:
        points = split_rows(unblinded, group.POINT)
        columns = [points, _numbered(first, len(points))]
        if self._each:
            columns.append(split_rows(ciphertexts, self._each))
        self._add(self._rows, self._tags_of(points), np.concatenate(columns, 1), self._total)

    def add_decoys(self, data: bytes, first: int) -> None:
        points = split_rows(data, group.POINT)
        rows = np.concatenate([points, _numbered(first, len(points))], 1)
        self._add(self._decoys, self._tags_of(points), rows, self._hidden)

    def finish(self) -> None:
        """Check the decoys, and find which rows are shared."""
        twice = lost = 0
        for part in range(len(self._rows.counts)):
            rows, decoy = self._rows.read(part), self._decoys.read(part)
            self._rows.clear(part)
            points, answers = rows[:, : group.POINT], decoy[:, : group.POINT]
            twice += count_repeats(points)
            at = find_decoys(points, answers)
            found = at >= 0
            # one row must not stand for two decoys: which of its rows are decoys, the receiver learns after
            # it has returned them, and could name one of them for all
            lost += len(at) - len(np.unique(at[found]))
            if twice or lost:
                continue
            numbered = [rows[at, group.POINT : group.POINT + ROW], decoy[:, group.POINT :][: len(at)]]
            self._decoy_rows.add(np.concatenate([*numbered, rows[at, group.POINT + ROW :]], 1))
            others = np.delete(rows, at, 0)
            tags = self._tags_of(np.ascontiguousarray(others[:, : group.POINT]))
            shared, _ = match(tags, self._tags.read(part))
            self.count += len(shared)
            self._shared_rows.add(others[shared, group.POINT :])
        if twice:
            raise ProtocolError(
                f"party {self._other!r} returned {twice} rows twice: it does not follow the protocol. "
                "Nothing was opened."
            )
        if lost:
            raise ProtocolError(
                f"party {self._other!r} did not return {lost} of {self._hidden} decoys: it does not follow "
                "the protocol. Nothing was opened."
            )

    def decoys_by_row(self) -> Iterator[np.ndarray]:
        """Yield row numbers, decoy numbers and ciphertexts."""
        return self._decoy_rows.chunks()

    def shared_by_row(self) -> Iterator[np.ndarray]:
        """Yield row numbers and ciphertexts."""
        return self._shared_rows.chunks()


def _numbered(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype="<i8").view(np.uint8).reshape(-1, ROW)


def count_repeats(points: np.ndarray) -> int:
    kinds = np.ascontiguousarray(points).view(f"V{group.POINT}")
    return len(points) - len(np.unique(kinds))


def find_decoys(points: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return the row of each decoy among the returned rows; −1 where it is none of them."""
    decoy, at = match(np.ascontiguousarray(answers), np.ascontiguousarray(points))
    rows = np.full(len(answers), -1, np.int64)
    rows[decoy] = at
    return rows


def decoy_numbers(items: np.ndarray) -> np.ndarray:
    return items[:, Item.DIGEST : Item.DIGEST + 8].copy().view("<u8")[:, 0]
