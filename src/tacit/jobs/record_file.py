"""A party's own record on disk, one JSON line per entry, written before what it allows is sent.

Another process of the party may write to the same file: an entry is added under the file's lock, and only if
what is on disk then allows it.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadRun
from ..files import append_line


class _NotAllowedError(Exception):
    """Raised inside the file's lock, so that nothing is written."""


class RecordFile(ABC):
    """What the entries of a file say; `reset` forgets it and `apply` adds one entry."""

    def __init__(self, file: Path):
        self.file = file
        self.reset()
        if file.exists():
            whole, _, torn = file.read_bytes().rpartition(b"\n")
            if torn:  # cut off by a crash: what it would have allowed was never sent
                os.truncate(file, len(whole) + bool(whole))
            self._read(whole.decode("utf-8", "replace").splitlines())

    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def apply(self, entry: dict[str, Any]) -> None:
        """Raise ValueError, KeyError or TypeError for an entry that is none."""

    def _read(self, lines: Sequence[str]) -> None:
        self.reset()
        try:
            for line in lines:
                self.apply(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise BadRun(
                f"{self.file} cannot be read: {error}. It records what this party has answered. Restore it "
                "from a copy; without it the party cannot know what it may still send."
            ) from None

    def write(self, allowed: Callable[[], bool], **entry: Any) -> bool:
        """Add an entry if what is on disk allows it; it is on disk when this returns."""

        def admit(lines: list[str]) -> None:
            self._read(lines)
            if not allowed():
                raise _NotAllowedError

        self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            append_line(self.file, json.dumps(entry), admit)
        except _NotAllowedError:
            return False
        self.apply(entry)
        return True
