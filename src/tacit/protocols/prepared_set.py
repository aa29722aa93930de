"""A large set of ids prepared for set intersection: a secret key, and a table of tags for receivers.

FOLDER/key.json     {"format": 1, "mark": …, "key": …}: the owner's; whoever has it can look up any id
FOLDER/table.psi    a header of 256 bytes, JSON {"format": 1, "mark": …, "count": …}, padded with spaces;
                    index, 65,537 words of 64 bits: how many tags are below each value of the first two bytes;
                    tags, 12 bytes each, sorted and distinct

A tag is h(id, k·H(id)), truncated to 96 bits: n·m tags are distinct except with probability n·m / 2^96, which
is 2^-40 for 100 million ids in the table and 500 million queried ones. Ids are read, tagged and sorted in
parts, so memory does not depend on how many there are.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..crypto import group
from ..crypto.manycore import PointPool
from ..crypto.tags import compute_tags
from ..errors import BadData
from ..files import open_atomic, write_atomic

FORMAT, HEAD, TAG, MARK = 1, 256, 12, 16
PARTS = 256  # files by the first byte of a tag: 100 million ids need 5 MB for each of them
STEPS = 1 << 16  # values of the first two bytes, by which tags are found
CHUNK = 1 << 14  # ids that are raised to the key at a time
KEY_FILE, TABLE_FILE = "key.json", "table.psi"


def about(mark: bytes) -> bytes:
    """Return what the hash to the group is bound to: one prepared set."""
    return b"tacit prepared set 1" + mark


def tag_ids(digests: np.ndarray, points: bytes, mark: bytes) -> np.ndarray:
    """Return h(id, point) of each id."""
    rows = np.concatenate([digests, np.frombuffer(points, np.uint8).reshape(-1, group.POINT)], 1)
    return compute_tags(rows.tobytes(), rows.shape[1], about(mark), TAG)


@dataclass(frozen=True)
class PreparedKey:
    """What the owner answers queries with."""

    mark: bytes
    key: bytes
    count: int

    @classmethod
    def read(cls, folder: str | Path) -> PreparedKey:
        table = PreparedTable.open(Path(folder) / TABLE_FILE)
        file = Path(folder) / KEY_FILE
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            mark, key = bytes.fromhex(content["mark"]), bytes.fromhex(content["key"])
            if content["format"] != FORMAT or len(key) != group.SCALAR:
                raise ValueError("it has another format")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadData(
                f"{file} cannot be read: {error!r:.200}. Restore it, or prepare the set again."
            ) from None
        if mark != table.mark:
            raise BadData(f"{file} and {table.path} are of different sets. Restore them, or prepare again.")
        return cls(mark, key, table.count)


@dataclass(frozen=True)
class PreparedTable:
    """The tags of a set, on disk. It may come from another party, so all that it says is checked."""

    path: Path
    mark: bytes
    count: int

    @classmethod
    def open(cls, path: str | Path) -> PreparedTable:
        path = Path(path)
        try:
            with path.open("rb") as file:
                head = json.loads(file.read(HEAD))
            mark, count = bytes.fromhex(head["mark"]), head["count"]
            if head["format"] != FORMAT or len(mark) != MARK or type(count) is not int or count < 0:
                raise ValueError("it has another format")
            expected = HEAD + 8 * (STEPS + 1) + TAG * count
            if path.stat().st_size != expected:
                raise ValueError(f"it has {path.stat().st_size} bytes, and {expected} for {count} ids")
            table = cls(path, mark, count)
            index = table._index()
            if index[0] != 0 or index[-1] != count or (index[1:] < index[:-1]).any():
                raise ValueError("its index is not in order")
            mean = count / STEPS
            if np.diff(index).max() > mean + 20 * mean**0.5 + 100:  # reading them would take memory
                raise ValueError("its tags are not random")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadData(
                f"{path} is not a table of a prepared set: {error!r:.200}. Get it again from its owner."
            ) from None
        return table

    def _index(self) -> np.ndarray:
        return np.fromfile(self.path, "<u8", STEPS + 1, offset=HEAD).astype(np.int64)

    def find(self, tags: np.ndarray) -> np.ndarray:
        """Return which of these tags are in the table; reads only what is beside them."""
        index = self._index()
        found = np.zeros(len(tags), bool)
        with self.path.open("rb") as file:
            for k, tag in enumerate(map(bytes, tags)):
                step = int.from_bytes(tag[:2], "big")
                file.seek(HEAD + 8 * (STEPS + 1) + TAG * int(index[step]))
                near = file.read(TAG * int(index[step + 1] - index[step]))
                found[k] = any(near[at : at + TAG] == tag for at in range(0, len(near), TAG))
        return found


def prepare(
    chunks: Iterable[np.ndarray],
    folder: str | Path,
    draw: Callable[[int], bytes] = os.urandom,
    progress: Callable[[int], None] = lambda ids: None,
) -> PreparedTable:
    """Write a new key and the table of these digests into a folder, which must not have one.

    `chunks`: digests of ids, any number at a time; repeated ids count once. `progress` gets the number of ids
    so far.
    """
    folder = Path(folder)
    for name in (KEY_FILE, TABLE_FILE):
        if (folder / name).exists():
            raise BadData(
                f"{folder / name} exists. A new key would make it useless for those who have the table: "
                "prepare into another folder, or remove it first."
            )
    folder.mkdir(parents=True, exist_ok=True)
    key, mark, total = group.scalar(draw), draw(MARK), 0
    with tempfile.TemporaryDirectory(prefix="parts-", dir=folder) as parts, PointPool(CHUNK) as pool:
        files = [Path(parts) / f"{k:02x}" for k in range(PARTS)]
        for chunk in chunks:
            for first in range(0, len(chunk), CHUNK):
                some = chunk[first : first + CHUNK]
                points = pool.lift(some.tobytes(), some.shape[1], about(mark), key)
                tags = tag_ids(some, points, mark)
                _append(tags[np.argsort(tags[:, 0], kind="stable")], files)
                total += len(some)
                progress(total)
        with open_atomic(folder / TABLE_FILE) as out:
            out.write(bytes(HEAD + 8 * (STEPS + 1)))
            steps = np.zeros(STEPS + 1, np.int64)
            for file in files:
                tags = _distinct(np.fromfile(file, np.uint8).reshape(-1, TAG) if file.exists() else None)
                first_two = tags[:, 0].astype(np.int64) << 8 | tags[:, 1]
                steps[1:] += np.bincount(first_two, minlength=STEPS)
                out.write(tags.tobytes())
            index = np.cumsum(steps)
            head = json.dumps({"format": FORMAT, "mark": mark.hex(), "count": int(index[-1])})
            out.seek(0)
            out.write(head.ljust(HEAD).encode() + index.astype("<u8").tobytes())
            # first, so that there is no table whose key is lost
            write_atomic(
                folder / KEY_FILE,
                json.dumps({"format": FORMAT, "mark": mark.hex(), "key": key.hex()}),
                mode=0o600,
            )
    return PreparedTable.open(folder / TABLE_FILE)


def _append(tags: np.ndarray, files: list[Path]) -> None:
    bounds = np.searchsorted(tags[:, 0], np.arange(PARTS + 1))
    for k in np.flatnonzero(np.diff(bounds)):
        with files[k].open("ab") as file:
            file.write(tags[bounds[k] : bounds[k + 1]].tobytes())


def _distinct(tags: np.ndarray | None) -> np.ndarray:
    """Return the rows in order, each once."""
    if tags is None or not len(tags):
        return np.zeros((0, TAG), np.uint8)
    high = np.ascontiguousarray(tags[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    low = np.ascontiguousarray(tags[:, 8:]).view(">u4")[:, 0].astype(np.uint32)
    order = np.lexsort((low, high))
    tags, high, low = tags[order], high[order], low[order]
    return np.asarray(tags[np.concatenate([[True], (high[1:] != high[:-1]) | (low[1:] != low[:-1])])])
