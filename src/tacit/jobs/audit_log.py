"""A party's audit log: every request, decision, answer and refusal, hash-chained and append-only.

    KIT/audit.jsonl   one JSON object a line: {"n", "time", "kind", …, "previous", "hash"}
    KIT/audit.head    {"n", "hash"} of the last entry

`hash` is the SHA-256 of the entry without it, and `previous` is the hash of the entry before, so an edited,
removed, inserted or moved line does not fit its neighbors. The file audit.head shows that lines are missing
at the end.

What a chain cannot show: whoever may write both files can remove the last entries from both, or compute a
whole new chain. Only a hash that is known elsewhere (on paper, at the coordinator, in a ticket) shows that:
`tacit party log --verify --head HASH` checks that the log still contains it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import BadRun
from ..files import write_atomic

NAME, HEAD = "audit.jsonl", "audit.head"
START = "0" * 64  # `previous` of the first entry
MOST_BYTES = 1 << 16  # of an entry: what a server sends is shortened before it is written
MOST_TEXT = 2000  # characters of a text in an entry
FIXED = ("n", "time", "kind", "previous", "hash")


def canonical(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)


def hash_of(entry: Mapping[str, Any]) -> str:
    """The hash of an entry: of everything in it except `hash`."""
    return hashlib.sha256(canonical({k: v for k, v in entry.items() if k != "hash"}).encode()).hexdigest()


@dataclass(frozen=True)
class Verification:
    """What checking a log found. `problems`: one line each; empty if the chain is complete."""

    entries: tuple[dict[str, Any], ...]
    head: str
    problems: tuple[str, ...]


class AuditLog:
    """The audit log in a party's kit. Several processes of the party may append to it."""

    def __init__(self, kit: Path):
        self.file, self.head_file = kit / NAME, kit / HEAD

    def append(self, kind: str, **content: Any) -> dict[str, Any]:
        """Add an entry; it is on disk when this returns.

        Raises BadRun, and adds nothing, if the last entry does not fit or entries are missing at the end.
        """
        from fcntl import LOCK_EX, flock

        short = {k: v[:MOST_TEXT] if isinstance(v, str) else v for k, v in content.items()}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "r+b") as file:
            flock(file, LOCK_EX)
            is_new = os.fstat(handle).st_size == 0
            last = self._last(handle)
            head = self._read_head()
            if head is not None and (last is None or last["n"] < head["n"]):
                raise BadRun(
                    f"entries are missing at the end of {self.file}: its last is number "
                    f"{0 if last is None else last['n']}, and {self.head_file.name} says {head['n']}. "
                    "Restore it from a copy. Nothing was sent."
                )
            entry: dict[str, Any] = {
                "n": 1 if last is None else last["n"] + 1,
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "kind": kind,
                **short,
                "previous": START if last is None else last["hash"],
            }
            entry["hash"] = hash_of(entry)
            line = canonical(entry).encode() + b"\n"
            if len(line) > MOST_BYTES:
                raise BadRun(f"an entry of {self.file} would have {len(line)} bytes; at most {MOST_BYTES}.")
            file.write(line)
            file.flush()
            os.fsync(handle)
            write_atomic(self.head_file, canonical({"n": entry["n"], "hash": entry["hash"]}), 0o600)
        if is_new:  # its directory entry, too
            folder = os.open(self.file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return entry

    def _last(self, handle: int) -> dict[str, Any] | None:
        """The last entry. A line that a crash cut off is removed: what it records was never done."""
        size = os.fstat(handle).st_size
        start = max(0, size - 2 * MOST_BYTES)
        tail = os.pread(handle, size - start, start)
        whole, _, torn = tail.rpartition(b"\n")
        if torn:
            os.ftruncate(handle, size - len(torn))
        line = whole.rpartition(b"\n")[2]
        if not line:
            return None
        try:
            entry: dict[str, Any] = json.loads(line)
            if entry["hash"] != hash_of(entry) or type(entry["n"]) is not int:
                raise ValueError("its hash is wrong")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadRun(
                f"the last entry of {self.file} was modified: {error}. See `tacit party log --verify`, and "
                "restore the file from a copy. Nothing was sent."
            ) from None
        return entry

    def _read_head(self) -> dict[str, Any] | None:
        try:
            head = json.loads(self.head_file.read_bytes())
            if type(head["n"]) is int and isinstance(head["hash"], str):
                return {"n": head["n"], "hash": head["hash"]}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise BadRun(f"{self.head_file} was modified. Restore it from a copy.")

    def _read_files(self) -> tuple[bytes, dict[str, Any] | None, str]:
        """Return the log, its head and what is wrong with the head.

        Both are read while no process appends: half of an entry, or a head of a later one, would look as if
        somebody had modified the log.
        """
        from fcntl import LOCK_SH, flock

        def read_head() -> tuple[dict[str, Any] | None, str]:
            try:
                return self._read_head(), ""
            except BadRun as error:
                return None, str(error)

        for _ in range(2):
            try:
                with open(self.file, "rb") as file:
                    flock(file, LOCK_SH)
                    return file.read(), *read_head()
            except FileNotFoundError:
                if not self.head_file.exists():
                    return b"", None, ""
                # the first entry may have been written since: its head comes after it
        return b"", *read_head()

    def read(self) -> list[dict[str, Any]]:
        """Return all entries, oldest first; raise BadRun if one was edited, removed, inserted or moved."""
        found = self.verify()
        if found.problems:
            raise BadRun(
                f"{self.file} was modified: {found.problems[0]} Nothing is decided by it. See `tacit party "
                "log --verify`, and restore the file from a copy."
            )
        return list(found.entries)

    def verify(self, known: str | None = None) -> Verification:
        """Check the whole chain. `known`: the hash of an entry, noted earlier, that must be in it."""
        data, head, head_problem = self._read_files()
        lines, torn = data.split(b"\n")[:-1], data.rpartition(b"\n")[2]
        problems: list[str] = []
        entries: list[dict[str, Any]] = []
        previous, number = START, 0
        for place, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if not isinstance(entry, dict) or any(key not in entry for key in FIXED):
                    raise ValueError("it is not an entry")
                if canonical(entry).encode() != line:
                    raise ValueError("it is not as it was written")
            except (ValueError, RecursionError) as error:
                problems.append(f"Line {place} cannot be read: {error}.")
                previous, number = "", number + 1
                continue
            if entry["hash"] != hash_of(entry):
                problems.append(f"Line {place} was edited: its hash is wrong.")
            if entry["n"] != number + 1 or (entry["previous"] != previous and previous):
                problems.append(
                    f"Line {place} does not follow the line before it: a line was removed, inserted or moved."
                )
            entries.append(entry)
            previous, number = entry["hash"], entry["n"] if type(entry["n"]) is int else number + 1
        if torn:
            problems.append(
                "The last line is incomplete: a process was stopped while it wrote it, or it was cut."
            )
        if head_problem:
            problems.append(head_problem)
        elif head is None and entries:
            problems.append(f"{self.head_file.name} is missing, so missing entries at the end do not show.")
        hashes = [entry["hash"] for entry in entries]
        if head is not None and head["n"] > len(entries):
            problems.append(
                f"Entries are missing at the end: there are {len(entries)}, and {self.head_file.name} says "
                f"{head['n']}."
            )
        elif head is not None and (head["n"] < 1 or hashes[head["n"] - 1] != head["hash"]):
            problems.append(f"Entry {head['n']} is not the one that {self.head_file.name} names.")
        if known is not None and not any(h == known for h in hashes):
            problems.append(
                f"No entry has the hash {known}: entries were removed, or the chain was rewritten."
            )
        return Verification(tuple(entries), hashes[-1] if hashes else START, tuple(problems))
