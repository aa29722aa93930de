"""Record ids: the rule by which they are compared, and their digests of 16 bytes.

The rule, in this order: Unicode NFKC (full-width and composed letters become one form), case folding, and no
white space at either end. Leading zeros, signs and inner white space stay: 007 is not 7. Integers become
their decimal digits. Floats, dates and booleans are refused, because programs write them in different ways.
An id that is a null token (`NULL_IDS`, such as an empty cell or NA) is missing: two such rows are not the
same record.
"""

from __future__ import annotations

import bisect
import codecs
import hashlib
import itertools
import math
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import BadData
from .table_files import NULLS, check_encoding

DIGEST = 16  # bytes: two of 10 million ids on each side collide by chance with probability 2^-81
_MARK = "\x00"
_ABOUT = b"tacit identifier 1|"
SHOWN = 6  # rows of a message: five, and one more that says whether there are others
_AT_ONCE = 1 << 16  # ids per step, so that ten million ids are never in memory as text


@dataclass(frozen=True)
class IdSet:
    """Distinct ids: `digests[k]` is the id of row `rows[k]`. Rows without an id are left out.

    `notes` say how many ids were missing or repeated.
    """

    digests: np.ndarray  # (ids, 16), uint8
    rows: np.ndarray  # (ids,), int64
    total: int  # rows of the table
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)


def normal(text: str) -> str:
    """Return the id in the form in which it is compared."""
    if text.isascii():  # NFKC changes no ASCII
        return text.lower().strip()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).strip()


NULL_IDS = frozenset(map(normal, NULLS))  # a table's null tokens, compared by the same rule as ids


def _normal_all(chunk: list[str]) -> list[str]:
    """Apply `normal` to each id; ASCII text takes one pass."""
    joined = _MARK.join(chunk)
    if joined.isascii():
        texts = joined.lower().split(_MARK)
        if len(texts) == len(chunk):  # no id contains the mark
            return [text.strip() for text in texts]
    return [normal(text) for text in chunk]


def identify(ids: Iterable[Any], where: str = "ids") -> IdSet:
    """Return the distinct ids.

    Duplicates, missing ids and mixed types are noted; other types are refused.
    """
    digests, read = _digests(ids, where)
    rows = np.delete(np.arange(read.total, dtype=np.int64), read.missing)
    first = first_of_each(digests[rows])
    again = rows[np.setdiff1d(np.arange(len(rows)), first)] if len(first) < len(rows) else rows[:0]
    rows = rows[first]
    return IdSet(
        digests if len(rows) == read.total else digests[rows],
        rows,
        read.total,
        read.notes(where, len(again), again[:SHOWN].tolist()),
    )


def identify_rows(ids: Iterable[Any], where: str = "ids") -> tuple[np.ndarray, np.ndarray]:
    """Return (digests, rows) of every row that has an id, including duplicates."""
    digests, read = _digests(ids, where)
    rows = np.delete(np.arange(read.total, dtype=np.int64), read.missing)
    return digests[rows], rows


@dataclass
class ReadIds:
    """What was found while ids were read: the number of rows, rows without an id, null tokens and types."""

    total: int = 0
    missing: list[int] = field(default_factory=list)
    missing_count: int = 0
    words: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)

    def notes(self, where: str, repeated: int, first_repeated: list[int]) -> tuple[str, ...]:
        """Return what the owner of the ids has to know; `first_repeated`: the first `SHOWN` of these rows."""
        notes = []
        if self.missing:
            how = ", ".join(
                ["empty"] * ("" in self.words) + [repr(word) for word in sorted(self.words - {""})]
            )
            notes.append(
                f"{where}: {self.missing_count} of {self.total} ids are missing ({how}; "
                f"{show_rows(self.missing)}); these rows are left out."
            )
        if repeated:
            notes.append(
                f"{where}: {repeated} of {self.total} rows have the id of an earlier row "
                f"({show_rows(first_repeated)}); "
                "the first row of each id is used."
            )
        if len(self.kinds) > 1:
            notes.append(
                f"{where}: text and integers are mixed; integers are compared by their digits, so 7 "
                "is '7' and not '007'."
            )
        return tuple(notes)


def _digests(ids: Iterable[Any], where: str) -> tuple[np.ndarray, ReadIds]:
    """Return (the digest of every row, what was found)."""
    out, read = bytearray(), ReadIds()
    for digests in _digest_chunks(ids, where, read):
        out += digests
    return np.frombuffer(out, np.uint8).reshape(-1, DIGEST), read


def identify_chunks(ids: Iterable[Any], where: str, read: ReadIds) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (digests, rows) of the rows that have an id, some at a time; fill `read` on the way."""
    for digests in _digest_chunks(ids, where, read):
        start = read.total - len(digests) // DIGEST
        rows = np.arange(start, read.total, dtype=np.int64)
        begin = bisect.bisect_left(read.missing, start)
        has_id = np.delete(np.arange(len(rows)), np.array(read.missing[begin:], np.int64) - start)
        del read.missing[SHOWN:]  # they may be as many as the rows
        yield np.frombuffer(digests, np.uint8).reshape(-1, DIGEST)[has_id], rows[has_id]


def _digest_chunks(ids: Iterable[Any], where: str, read: ReadIds) -> Iterator[bytes]:
    """Yield the digests of all rows, including those without an id."""
    if isinstance(ids, str | bytes | dict):
        raise BadData(
            f"{where}: {type(ids).__name__} is not a list of ids. Give a list, an array or a column of "
            "integers or text."
        )
    source = iter(ids)
    while chunk := list(itertools.islice(source, _AT_ONCE)):
        seen = set(map(type, chunk))
        if seen != {str}:
            chunk = [_text(value, read.total + k, where) for k, value in enumerate(chunk)]
        read.kinds |= {
            "text" if issubclass(kind, str) else "integers"
            for kind in seen
            if not issubclass(kind, float | type(None))
        }
        sha, texts = hashlib.sha256, _normal_all(chunk)
        if nulls := NULL_IDS.intersection(texts):
            read.words |= nulls
            before = len(read.missing)
            read.missing += [read.total + k for k, text in enumerate(texts) if text in nulls]
            read.missing_count += len(read.missing) - before
        read.total += len(chunk)
        yield b"".join(
            [sha(_ABOUT + text.encode("utf-8", "surrogatepass")).digest()[:DIGEST] for text in texts]
        )


def _text(value: Any, row: int, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float | np.floating) and math.isnan(value)):
        return ""
    if isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_):
        return str(int(value))
    raise BadData(
        f"{where}: row {row + 1} has {value!r:.80}, a {type(value).__name__}; an id must be text or an "
        "integer. "
        "Read the column as text, so that leading zeros stay and integers do not become floats."
    )


def first_of_each(digests: np.ndarray) -> np.ndarray:
    """Return the positions of the first of equal digests, in order."""
    begin = np.sort(np.ascontiguousarray(digests[:, :8]).view(np.uint64)[:, 0])
    if not (begin[1:] == begin[:-1]).any():
        return np.arange(len(digests))  # the first 8 bytes are distinct, so the digests are: the usual case
    seen: set[bytes] = set()
    flat, places = digests.tobytes(), []
    for k in range(len(digests)):
        one = flat[DIGEST * k : DIGEST * (k + 1)]
        if one not in seen:
            seen.add(one)
            places.append(k)
    return np.array(places, np.int64)


class MisreadIds:
    """Finds ids that are UTF-8 read in another encoding (Ã¼ for ü): they equal no id of others."""

    def __init__(self, encoding: str | None) -> None:
        check_encoding("read_table", encoding)
        names = [] if encoding is None or "," in encoding else [codecs.lookup(encoding.strip()).name]
        self._encoding = next((name for name in names if not name.startswith("utf")), None)
        self._given = encoding
        self._misread = self._read = 0

    def watch(self, ids: Iterable[str]) -> Iterator[str]:
        """Yield the ids, and count those that are not ASCII."""
        if self._encoding is None:
            yield from ids
            return
        for text in ids:
            if not text.isascii():
                try:
                    text.encode(self._encoding).decode("utf-8")
                    self._misread += 1
                except UnicodeError:
                    self._read += 1
            yield text

    def notes(self, where: str) -> tuple[str, ...]:
        """Return a note if all ids that are not ASCII are misread."""
        if not self._misread or self._read:
            return ()
        ids = "1 id is" if self._misread == 1 else f"{self._misread:,} ids are"
        return (
            f"{where}: {ids} UTF-8, and read as {self._given}: letters such as ü are wrong, and matches may "
            f"be lost. Give encoding 'utf-8', or 'utf-8, {self._given}' if only some files are UTF-8.",
        )


def show_rows(rows: list[int]) -> str:
    """Format the first few positions for a message: as their owner counts rows, from 1."""
    shown = ", ".join(str(row + 1) for row in rows[: SHOWN - 1])
    return f"row{'s' if len(rows) > 1 else ''} {shown}" + (", …" if len(rows) >= SHOWN else "")
