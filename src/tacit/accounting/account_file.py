"""The file of an account: one line for each release, or for several equal ones, on disk before they are made.

Lines are only appended, each by one write under a lock, so several processes may spend from one file. Each
line has a number (`begun`), so removed or inserted lines are detected. An incomplete line, from a crash, is
followed by a line break and counts as a release (`account.py` defines its price), although the release was
not made: `spend` had not returned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadRun, TacitError
from ..parameters import check
from .compose import Release
from .training import Training

KINDS: dict[str, type[Release]] = {"release": Release, "training": Training}


class AccountLine(NamedTuple):
    """One release, or several equal ones.

    `release` and `key` are None for an incomplete line, which belongs to every key.
    """

    key: str | None
    session: str
    release: Release | None
    times: int = 1


class AccountFile:
    """The lines of one file, kept up to date."""

    def __init__(self, path: Path):
        self.path = path
        self.lines: list[AccountLine] = []  # complete ones
        self.tail: AccountLine | None = None  # after the last line break
        self._read = 0  # bytes up to the last line break

    def refresh(self) -> list[AccountLine]:
        """Read what was appended since the last time; return the new complete lines."""
        if not self._read and not self.path.exists():
            return []
        with self._opened(os.O_RDONLY) as fd:
            return self.read(fd)

    @contextmanager
    def writing(self) -> Iterator[int]:
        """The open file under an exclusive lock."""
        # a file that was deleted is not created again: that would be a refund
        create = 0 if self.lines or self.tail else os.O_CREAT
        with self._opened(os.O_RDWR | os.O_APPEND | create) as fd:
            yield fd

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        import fcntl  # not available on Windows, where accounts have no files

        try:
            fd = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_SH if flags == os.O_RDONLY else fcntl.LOCK_EX)
            yield fd
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        finally:
            os.close(fd)

    def read(self, fd: int) -> list[AccountLine]:
        size = os.fstat(fd).st_size
        if size < self._read:
            raise self._unusable(f"it was truncated from {self._read} to {size} bytes")
        os.lseek(fd, self._read, os.SEEK_SET)
        data = b""
        while part := os.read(fd, 1 << 20):
            data += part
        *whole, rest = data.split(b"\n")
        self._read += len(data) - len(rest)
        new = []
        for text in whole:
            if text:
                new.append(self._parse(text, len(self.lines) + 1))
                self.lines.append(new[-1])
        self.tail = self._parse(rest, len(self.lines) + 1) if rest else None
        return new

    def append(
        self,
        fd: int,
        round: int,
        key: str,
        session: str,
        release: Release,
        delta: float,
        times: int = 1,
    ) -> None:
        """Append one line and sync it to disk, under the lock of `writing`."""
        begun = len(self.lines) + (self.tail is not None) + 1
        kind = next(name for name, cls in KINDS.items() if type(release) is cls)
        line = {
            "round": round,
            "begun": begun,
            "key": key,
            "session": session,
            "kind": kind,
            **{f.name: getattr(release, f.name) for f in fields(release)},
            "delta": delta,
            **({"times": times} if times > 1 else {}),
        }
        first = not self._read
        data = b"\n" * (self.tail is not None) + json.dumps(line).encode() + b"\n"
        if os.write(fd, data) != len(data):
            raise self._unusable("the disk is full")  # the incomplete line counts as a release
        os.fsync(fd)
        if first:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _parse(self, text: bytes, number: int) -> AccountLine:
        try:
            entry = json.loads(text)
        except ValueError:
            return AccountLine(None, "", None)  # incomplete; it counts in the numbers of the following lines
        try:
            if entry["begun"] != number:
                raise ValueError(f"line {number} has the number {entry['begun']}")
            if "kind" not in entry:
                return AccountLine("", "", _of_earlier_version(entry))
            cls = KINDS[entry["kind"]]
            key, session = entry["key"], entry["session"]
            if not isinstance(key, str) or not isinstance(session, str):
                raise ValueError(f"line {number} lacks a key or a session")
            times = entry.get("times", 1)
            if type(times) is not int or times < 1:
                raise ValueError(f"line {number} has {times!r} releases")
            release = check(cls(**{f.name: entry[f.name] for f in fields(cls)}))
            return AccountLine(key, session, release, times)
        except (ValueError, KeyError, TypeError, TacitError) as error:
            raise self._unusable(
                f"line {number} has no {error}" if isinstance(error, KeyError) else str(error)
            ) from error

    def _unusable(self, why: str) -> BadRun:
        return BadRun(
            f"{self.path} cannot be read: {why}. It records the privacy that was spent, and the run cannot "
            "continue without it. "
            "Restore it from a copy, or start a new run and add what this run spent by hand."
        )


def _of_earlier_version(line: dict[str, Any]) -> Release:
    """Parse a line of an earlier version, without `kind`, `key`, `distance`, `dimension` and `per_epoch`.

    If it is ambiguous, the most expensive reading is used.
    """
    z, rate, sampling, accountant = line["multiplier"], line["rate"], line["sampling"], line["accountant"]
    if accountant == "skellam":
        raise ValueError(
            "its lines are from an earlier version, which did not record the cost of Skellam noise"
        )
    # fixed: relative to the clipping norm, as in training, costs more than relative to the distance
    if sampling in ("fixed", "shuffle", "tree"):
        return check(Training(z, rate, sampling=sampling, accountant=accountant, per_epoch=1))
    return check(Release(z, rate, "everyone" if rate == 1 else sampling, accountant))
