"""A party's ids in the buckets of `psi_oprf` and `psi_many`: in memory, or in files for sets that are larger.

Which bucket an id belongs to follows from a key of the session, so nobody can choose ids that overfill one.
Both kinds give the same messages: what a party keeps where is not visible to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from ..crypto import ot
from ..crypto.spool import ArrayParts, Parts, Spool
from ..crypto.tags import sort_by_digest

DIGEST = 16  # bytes of an id's digest: one AES block, as the OPRF and the stores of `psi_many` need
RECORD = DIGEST + 8  # bytes of an id on disk: its digest, and the row of the table that it is in
VALUE = 8  # bytes of a value
PARTS = 64  # parts in which repeated ids are found: at 100 million ids, one takes 40 MB of memory
WORD = 2**64 - 1
AT_ONCE = 1 << 20  # ids whose buckets are computed at once


class IdBuckets(Protocol):
    """Distinct ids in buckets, and those of them that turn out to be shared.

    A place is how the owner refers to an id: an index of its digests, or a row of its table.
    """

    @property
    def buckets(self) -> int:
        """The number of buckets; 0 before the ids are dealt."""

    @property
    def fingerprint(self) -> int:
        """A number that depends on the dealt ids, their places and the key."""

    def __len__(self) -> int: ...

    def deal(self, buckets: int, key: bytes) -> None:
        """Put the ids into buckets, and forget which are shared."""

    def bucket(self, b: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (digests, places) of a bucket."""

    def add_shared(self, digests: np.ndarray, places: np.ndarray) -> None:
        """Keep the shared ids of the next bucket."""

    def shared(self, b: int) -> np.ndarray:
        """Return the digests of a bucket's shared ids, in order."""

    def shared_places(self) -> np.ndarray | SharedRows:
        """Return the places of all shared ids: bucket after bucket, in each sorted by digest."""

    def new_parts(self, parts: int, width: int) -> Parts:
        """Return a place for other records, where the ids are."""

    def forget_parts(self) -> None:
        """Remove all of these places; dealing does so, too."""

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (digests, places) of all ids, some at a time."""

    def chunks_with(self, values: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (digests, values): `values` of ids in memory, those in the files, or 0 without any."""

    def measure_values(self, values: Sequence[int], limit: int) -> tuple[int, int | None]:
        """Return (the number of values, one that is below 0 or above `limit`)."""


def bucket_numbers(
    digests: np.ndarray, places: np.ndarray, buckets: int, key: bytes
) -> tuple[np.ndarray, int]:
    """Return (the bucket of each id, a public function of the key; the fingerprint of these ids)."""
    if buckets == 1:
        return np.zeros(len(digests), np.uint16), 0
    numbers, total = np.empty(len(digests), np.uint16), 0
    for at in range(0, len(digests), AT_ONCE):
        blocks = ot.encrypt_blocks(digests[at : at + AT_ONCE], key)
        word = blocks.view(np.uint32)[:, 0]
        numbers[at : at + AT_ONCE] = word * np.uint64(buckets) >> np.uint64(32)
        odd = places[at : at + AT_ONCE].astype(np.uint64) * np.uint64(2) + np.uint64(1)
        total += int((blocks.view(np.uint64)[:, 1] * odd).sum())
    return numbers, total & WORD


class ArrayIds:
    """Ids in memory: rows of 16 bytes. A place is a row of this array."""

    def __init__(self, digests: np.ndarray):
        self.digests, self.buckets, self.fingerprint = digests, 0, 0
        self._numbers = np.zeros(0, np.uint16)
        self._shared: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.digests)

    def deal(self, buckets: int, key: bytes) -> None:
        self.buckets, self._shared = buckets, []
        self._numbers, self.fingerprint = bucket_numbers(
            self.digests, np.arange(len(self.digests)), buckets, key
        )

    def bucket(self, b: int) -> tuple[np.ndarray, np.ndarray]:
        if self.buckets == 1:
            return self.digests, np.arange(len(self.digests))
        # searching once a bucket takes less memory than sorting all rows
        places = np.flatnonzero(self._numbers == b)
        return self.digests[places], places

    def add_shared(self, digests: np.ndarray, places: np.ndarray) -> None:
        self._shared.append(places[sort_by_digest(digests, np.arange(len(digests)))])

    def shared(self, b: int) -> np.ndarray:
        return np.asarray(self.digests[self._shared[b]])

    def shared_places(self) -> np.ndarray:
        return np.concatenate(self._shared)

    def new_parts(self, parts: int, width: int) -> Parts:
        return ArrayParts(parts, width)

    def forget_parts(self) -> None:
        """Nothing refers to them here."""

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for at in range(0, max(1, len(self.digests)), AT_ONCE):
            some = self.digests[at : at + AT_ONCE]
            yield some, np.arange(at, at + len(some))

    def chunks_with(self, values: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for digests, places in self.chunks():
            if len(values) and len(places):
                yield digests, np.array(values[places[0] : places[-1] + 1], np.int64)
            else:
                yield digests, np.zeros(len(digests), np.int64)

    def measure_values(self, values: Sequence[int], limit: int) -> tuple[int, int | None]:
        return len(values), next((v for v in values if not 0 <= v <= limit), None)


class StoredIds:
    """Ids in encrypted files of a private folder; memory is that of a bucket. A place is a row of a table.

    Fill it with `add`, then call `finish`. `has_values`: with a whole number for each id. `repeated` is the
    number of rows with the id of an earlier row, `first_repeated` the first few of them.
    """

    def __init__(self, folder: Path, shown: int, has_values: bool = False):
        self._folder, self._shown, self._has_values = folder, shown, has_values
        self._ids = Spool(folder, "ids", PARTS, RECORD + VALUE * has_values)
        self._dealt: Spool | None = None
        self._found: Spool | None = None
        self._others: list[Spool] = []
        self._times = self._filled = self._made = 0
        self.buckets = self.fingerprint = 0
        self.repeated, self.first_repeated = 0, np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, digests: np.ndarray, rows: np.ndarray, values: np.ndarray | None = None) -> None:
        """Add the next rows of the table, with their values where it has any."""
        records = _records(digests, rows)
        if values is not None:
            records = np.concatenate([records, values.astype("<i8").view(np.uint8).reshape(-1, VALUE)], 1)
        self._ids.append(digests[:, 0] % PARTS, records)

    def finish(self, first_of_each: FirstOfEach) -> None:
        """Leave out rows whose id an earlier row has. `first_of_each`: finds the first of equal digests."""
        for part in range(PARTS):
            records = self._ids.read(part)
            digests, rows = _split(records)
            first = first_of_each(digests)
            if len(first) == len(records):
                continue
            again = np.delete(rows, first)
            self.repeated += len(again)
            self.first_repeated = np.sort(np.concatenate([self.first_repeated, again]))[: self._shown]
            self._ids.replace(part, records[first])

    def rows(self) -> Iterator[np.ndarray]:
        """Yield the rows of all distinct ids, some at a time, in no order."""
        for _, places in self.chunks():
            yield places

    def deal(self, buckets: int, key: bytes) -> None:
        self.forget_buckets()
        if self._found is not None:  # the matching begins again
            self._found.remove()
        self.forget_parts()
        self._times += 1
        self.buckets, self._filled = buckets, 0
        self._dealt = Spool(self._folder, f"dealt{self._times}", buckets, RECORD)
        self._found = Spool(self._folder, f"shared{self._times}", buckets, RECORD)
        self.fingerprint = 0
        for part in range(PARTS):
            records = self._ids.read(part)[:, :RECORD]
            numbers, total = bucket_numbers(*_split(records), buckets, key)
            self._dealt.append(numbers, records)
            self.fingerprint = self.fingerprint + total & WORD

    def bucket(self, b: int) -> tuple[np.ndarray, np.ndarray]:
        assert self._dealt is not None
        return _split(self._dealt.read(b))

    def add_shared(self, digests: np.ndarray, places: np.ndarray) -> None:
        assert self._found is not None
        order = sort_by_digest(digests, np.arange(len(digests)))
        number = np.full(len(order), self._filled, np.uint16)
        self._found.append(number, _records(digests[order], places[order]))
        self._filled += 1

    def shared(self, b: int) -> np.ndarray:
        assert self._found is not None
        return _split(self._found.read(b))[0]

    def shared_places(self) -> SharedRows:
        assert self._found is not None
        return SharedRows(self._found)

    def new_parts(self, parts: int, width: int) -> Parts:
        self._made += 1
        self._others.append(Spool(self._folder, f"parts{self._made}", parts, width))
        return self._others[-1]

    def forget_parts(self) -> None:
        for spool in self._others:
            spool.remove()
        self._others = []

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for part in range(PARTS):
            yield _split(self._ids.read(part))

    def chunks_with(self, values: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for part in range(PARTS):
            records = self._ids.read(part)
            digests, _ = _split(records)
            if self._has_values:
                yield digests, np.ascontiguousarray(records[:, RECORD:]).view("<i8")[:, 0].astype(np.int64)
            else:
                yield digests, np.zeros(len(digests), np.int64)

    def measure_values(self, values: Sequence[int], limit: int) -> tuple[int, int | None]:
        count, wrong = 0, None
        for _, some in self.chunks_with(()) if self._has_values else ():
            count += len(some)
            for value in some[(some < 0) | (some > limit)][:1].tolist():
                wrong = value
        return count, wrong

    def forget_buckets(self) -> None:
        """Remove the files of the buckets; what is shared stays."""
        if self._dealt is not None:
            self._dealt.remove()


class SharedRows:
    """The rows of the shared ids, in files: `len`, and iteration over arrays of rows in the common order."""

    def __init__(self, spool: Spool):
        self._spool = spool

    def __len__(self) -> int:
        return len(self._spool)

    def __iter__(self) -> Iterator[np.ndarray]:
        for b in range(len(self._spool.counts)):
            yield _split(self._spool.read(b))[1]


class FirstOfEach(Protocol):
    def __call__(self, digests: np.ndarray) -> np.ndarray: ...


def _records(digests: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.concatenate([digests, rows.astype("<i8").view(np.uint8).reshape(-1, 8)], 1)


def _split(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    digests = np.ascontiguousarray(records[:, :DIGEST])
    return digests, np.ascontiguousarray(records[:, DIGEST:RECORD]).view("<i8").reshape(-1).astype(np.int64)
