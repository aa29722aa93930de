"""Records of a fixed width, in numbered parts on disk, encrypted under a key that is only in memory.

For sets that do not fit into memory: records are appended in any order and read one part at a time. Digests
of ids can be guessed, so what is left on a disk after a crash must not contain them: each part is AES-256 in
counter mode under a key of its own, which is lost with the process. Nothing here detects that somebody with
access to the folder changed a part, only that one is too short or too long.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import BadData
from .agree import bind
from .ot import EXTRA
from .prg import aes

KEY = 32  # bytes


class Parts(Protocol):
    """Records of one width in numbered parts: in memory or in files."""

    counts: np.ndarray  # the number of records of each part

    def __len__(self) -> int: ...

    def append(self, numbers: np.ndarray, records: np.ndarray) -> None:
        """Add each record to the part with its number; in a part they stay in order."""

    def extend(self, part: int, records: np.ndarray) -> None:
        """Add records to one part."""

    def read(self, part: int) -> np.ndarray:
        """Return the records of a part, in the order in which they were added."""

    def clear(self, part: int) -> None:
        """Forget the records of one part."""

    def remove(self) -> None:
        """Forget all records."""


class ArrayParts:
    """Parts in memory. `width`: bytes of a record."""

    def __init__(self, parts: int, width: int):
        self.width = width
        self._parts: list[list[np.ndarray]] = [[] for _ in range(parts)]
        self.counts = np.zeros(parts, np.int64)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def append(self, numbers: np.ndarray, records: np.ndarray) -> None:
        for part, some in _by_part(numbers, records, len(self._parts)):
            self.extend(part, some)

    def extend(self, part: int, records: np.ndarray) -> None:
        if len(records):
            self._parts[part].append(records)
            self.counts[part] += len(records)

    def read(self, part: int) -> np.ndarray:
        if not self._parts[part]:
            return np.zeros((0, self.width), np.uint8)
        self._parts[part] = [np.concatenate(self._parts[part])]
        return self._parts[part][0]

    def clear(self, part: int) -> None:
        self._parts[part], self.counts[part] = [], 0

    def remove(self) -> None:
        for part in range(len(self._parts)):
            self.clear(part)


def _by_part(numbers: np.ndarray, records: np.ndarray, parts: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (part, its records) of the parts that have any."""
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(parts + 1))
    sorted_records = records[order]
    for part in np.flatnonzero(np.diff(bounds)).tolist():
        yield part, sorted_records[bounds[part] : bounds[part + 1]]


class Spool:
    """`parts` files in an existing folder. `width`: bytes of a record."""

    def __init__(
        self, folder: Path, name: str, parts: int, width: int, draw: Callable[[int], bytes] = os.urandom
    ):
        self.width, self._key = width, draw(KEY)
        self._files = [folder / f"{name}-{part:05d}" for part in range(parts)]
        self._versions = [0] * parts  # a part that is replaced gets another key: no keystream is used twice
        self._streams: list[Any] = [None] * parts
        self.counts = np.zeros(parts, np.int64)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def append(self, numbers: np.ndarray, records: np.ndarray) -> None:
        """Add each record to the part with its number; in a part they stay in order."""
        for part, some in _by_part(numbers, records, len(self._files)):
            self.extend(part, some)

    def extend(self, part: int, records: np.ndarray) -> None:
        """Add records to one part."""
        if not len(records):
            return
        if self._streams[part] is None:
            self._streams[part] = self._cipher(part)
        try:
            handle = os.open(self._files[part], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(self._streams[part].update(np.ascontiguousarray(records).data))
        except OSError as error:
            raise BadData(f"{self._files[part]} cannot be written: {error.strerror}. {_ADVICE}") from None
        self.counts[part] += len(records)

    def read(self, part: int) -> np.ndarray:
        """Return the records of a part, in the order in which they were added."""
        if not self.counts[part]:
            return np.zeros((0, self.width), np.uint8)
        try:
            data = self._files[part].read_bytes()
        except OSError as error:
            raise BadData(f"{self._files[part]} cannot be read: {error.strerror}. {_ADVICE}") from None
        if len(data) != self.counts[part] * self.width:
            raise BadData(
                f"{self._files[part]} has {len(data)} bytes, and {self.counts[part] * self.width} were "
                f"written. {_ADVICE}"
            )
        return np.frombuffer(self._cipher(part).update(data), np.uint8).reshape(-1, self.width)

    def replace(self, part: int, records: np.ndarray) -> None:
        """Let a part contain these records only."""
        self._files[part].unlink(missing_ok=True)
        self._versions[part] += 1
        self._streams[part], self.counts[part] = None, 0
        self.extend(part, records)

    def clear(self, part: int) -> None:
        """Forget the records of one part."""
        self.replace(part, np.zeros((0, self.width), np.uint8))

    def remove(self) -> None:
        for part in range(len(self._files)):
            self.clear(part)

    def _cipher(self, part: int) -> Any:
        key = hashlib.sha256(bind("tacit spool 1", self._key, part, self._versions[part])).digest()
        return aes(key, *EXTRA)


_ADVICE = "Check the disk of the scratch folder (--scratch), and start again."
