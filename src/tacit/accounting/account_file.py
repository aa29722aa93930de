"""The file of an account: one line for each release, written and on the disk before the release is made.

Lines are only ever appended, each by one write under a lock, so several processes may spend from one file.
Each line has its own number (`begun`), so a line that was removed or inserted is noticed. A line that was cut
short by a crash is followed by a line break and counts as a release (`account.py` says at which price),
although it never happened: whoever wrote it had not returned from `spend` yet.
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


class Line(NamedTuple):
    """One release, or several alike. `release` and `key` are None where the line was cut short: it belongs to
    every key.
    """

    key: str | None
    session: str
    release: Release | None
    times: int = 1


class AccountFile:
    """What the lines of one file say, kept up to date."""

    def __init__(self, path: Path):
        self.path = path
        self.lines: list[Line] = []  # complete ones
        self.tail: Line | None = None  # what follows the last line break
        self._read = 0  # bytes up to the last line break

    def refresh(self) -> list[Line]:
        """Read what was appended since the last time; the new complete lines."""
        if not self._read and not self.path.exists():
            return []
        with self._opened(os.O_RDONLY) as fd:
            return self.read(fd)

    @contextmanager
    def writing(self) -> Iterator[int]:
        """The open file under an exclusive lock: nobody else appends until this ends."""
        create = (
            0 if self.lines or self.tail else os.O_CREAT
        )  # a file that was there and is gone is not made again: that would be a refund
        with self._opened(os.O_RDWR | os.O_APPEND | create) as fd:
            yield fd

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        import fcntl  # not on Windows, where accounts have no files

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

    def read(self, fd: int) -> list[Line]:
        size = os.fstat(fd).st_size
        if size < self._read:
            raise self._unusable(f"it has {size} bytes and had {self._read}")
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

    def append(self, fd: int, round: int, key: str, session: str, release: Release, delta: float) -> None:
        """Write one line and wait until the disk has it, under the lock of `writing`."""
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
        }
        first = not self._read
        data = b"\n" * (self.tail is not None) + json.dumps(line).encode() + b"\n"
        if os.write(fd, data) != len(data):
            raise self._unusable("the disk is full")  # the part that was written counts as a release
        os.fsync(fd)
        if first:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _parse(self, text: bytes, number: int) -> Line:
        try:
            found = json.loads(text)
        except ValueError:
            return Line(None, "", None)  # cut short; the lines behind it have numbers that count it
        try:
            if found["begun"] != number:
                raise ValueError(f"line {number} says that it is line {found['begun']}")
            if "kind" not in found:
                return Line("", "", _of_earlier_version(found))
            cls = KINDS[found["kind"]]
            key, session = found["key"], found["session"]
            if not isinstance(key, str) or not isinstance(session, str):
                raise ValueError(f"line {number} has no key and session")
            return Line(key, session, check(cls(**{f.name: found[f.name] for f in fields(cls)})))
        except (ValueError, KeyError, TypeError, TacitError) as error:
            what = f"line {number} has no {error}" if isinstance(error, KeyError) else str(error)
            raise self._unusable(what) from error

    def _unusable(self, why: str) -> BadRun:
        return BadRun(
            f"{self.path} cannot be read: {why}. It says what privacy was spent, so the run cannot go on "
            "without it. "
            "Put it back from a copy, or start anew and add what this run spent by hand."
        )


def _of_earlier_version(line: dict[str, Any]) -> Release:
    """Lines of earlier versions lack `kind`, `key`, `distance`, `dimension` and `per_epoch`; of what they may
    mean, the most expensive is taken.
    """
    z, rate, sampling, accountant = line["multiplier"], line["rate"], line["sampling"], line["accountant"]
    if accountant == "skellam":
        raise ValueError(
            "its lines are of an earlier version, which did not write down what Skellam noise costs"
        )
    if sampling == "fixed" or sampling in (
        "shuffle",
        "tree",
    ):  # fixed: over the clipping norm, as in training, costs more than over the distance
        return check(Training(z, rate, sampling=sampling, accountant=accountant, per_epoch=1))
    return check(Release(z, rate, "everyone" if rate == 1 else sampling, accountant))
