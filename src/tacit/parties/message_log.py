"""A party's messages on its own disk: what it received, digests of what it sent, and local values.

    record = length of head, uint32 | head, JSON [type, party, kind] | length of body, uint64 | body |
             check, 16 bytes
    type   = "received" (body: the frame), "sent" (body: the frame's digest) or "kept" (body: the value)

Records are only added. A crash leaves at most one incomplete record at the end, which is cut off: nothing
that depended on it was sent. Frames are read by `codec.py`: there is no code in them.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

from ..errors import BadRun

CHECK, DIGEST = 16, 32
MOST_HEAD = 4096
RECEIVED, SENT, KEPT = "received", "sent", "kept"
_LENGTHS = struct.Struct("<I"), struct.Struct("<Q")


def digest_of(frame: bytes) -> bytes:
    return hashlib.blake2b(frame, digest_size=DIGEST).digest()


class MessageLog:
    """The records of one run. `add` writes, `flush` makes what was written durable."""

    def __init__(self, file: Path):
        self.file = file
        self._places: dict[tuple[str, str], list[tuple[int, int, str]]] = {}  # start, size, kind
        is_new = not file.exists()
        self._out = open(  # noqa: SIM115  # closed by `close`
            file, "a+b", buffering=1 << 16, opener=lambda path, flags: os.open(path, flags, 0o600)
        )
        try:
            self._end = self._scan()
        except BadRun:
            self._out.close()
            raise
        self._out.truncate(self._end)
        self._is_dirty = False
        if is_new:
            folder = os.open(file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _scan(self) -> int:
        """Find all complete records; return where the last one ends."""
        source, size, at = self._out, self.file.stat().st_size, 0
        while True:
            source.seek(at)
            start = source.read(_LENGTHS[0].size)
            if len(start) < _LENGTHS[0].size:
                return at
            (length,) = _LENGTHS[0].unpack(start)
            rest = source.read(length + _LENGTHS[1].size) if length <= MOST_HEAD else b""
            if length > MOST_HEAD:
                raise BadRun(f"{self.file} is damaged at byte {at}. Restore it from a copy.")
            if len(rest) < length + _LENGTHS[1].size:
                return at
            (body,) = _LENGTHS[1].unpack(rest[length:])
            begin = at + len(start) + len(rest)
            end = begin + body + CHECK
            if end > size:
                return at
            try:
                type_, party, kind = map(str, json.loads(rest[:length]))
            except (ValueError, TypeError):
                raise BadRun(f"{self.file} is damaged at byte {at}. Restore it from a copy.") from None
            if end == size and self._read(begin, body) is None:
                return at  # the last one: a crash may have left a hole in it
            self._places.setdefault((type_, party), []).append((begin, body, kind))
            at = end

    def _read(self, begin: int, size: int) -> bytes | None:
        self._out.seek(begin)
        content = self._out.read(size + CHECK)
        body, check = content[:size], content[size:]
        return body if hashlib.blake2b(body, digest_size=CHECK).digest() == check else None

    def count(self, type_: str, party: str) -> int:
        return len(self._places.get((type_, party), ()))

    def kinds(self, type_: str) -> set[str]:
        return {kind for (t, _), v in self._places.items() if t == type_ for _, _, kind in v}

    def read(self, type_: str, party: str, number: int) -> bytes | None:
        """The body of a record, or None if there are not so many."""
        places = self._places.get((type_, party), [])
        if number >= len(places):
            return None
        self._out.flush()
        body = self._read(*places[number][:2])
        if body is None:
            raise BadRun(f"{self.file} is damaged at byte {places[number][0]}. Restore it from a copy.")
        return body

    def add(self, type_: str, party: str, kind: str, body: bytes) -> None:
        head = json.dumps([type_, party, kind]).encode()
        begin = self._end + _LENGTHS[0].size + len(head) + _LENGTHS[1].size
        self._out.seek(0, os.SEEK_END)
        check = hashlib.blake2b(body, digest_size=CHECK).digest()
        for piece in (_LENGTHS[0].pack(len(head)), head, _LENGTHS[1].pack(len(body)), body, check):
            self._out.write(piece)
        self._places.setdefault((type_, party), []).append((begin, len(body), kind))
        self._end, self._is_dirty = begin + len(body) + CHECK, True

    def flush(self) -> None:
        """Return when all records are on disk."""
        if self._is_dirty:
            self._out.flush()
            os.fsync(self._out.fileno())
            self._is_dirty = False

    def close(self) -> None:
        if not self._out.closed:
            self.flush()
            self._out.close()

    def keep(self, number: int, make: Callable[[], bytes]) -> bytes:
        """The kept value with this number; the first time, `make()`."""
        body = self.read(KEPT, "", number)
        if body is None:
            body = make()
            self.add(KEPT, "", "", body)
        return body
