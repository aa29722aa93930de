"""Rows in memory once a machine: the ranks of a machine map one file instead of keeping a copy each.

Every rank has read the same rows. The first rank of each machine writes those of large tensors to a file in
shared memory; all its ranks then replace the memory of their tensors by a private mapping of that file, which
the kernel keeps once. The file is deleted as soon as all have mapped it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.federation import Federation
from ..data.inputs import Stored, tensors_of
from ..errors import BadRun
from .ranks import MEET, RankGroup

LEAST = 1 << 20  # bytes: smaller tensors are not worth a file
PAGE = 4096  # bytes: a mapping begins at a multiple


def large_tensors(feds: Iterable[Federation]) -> list[Tensor]:
    """Return the tensors of these federations that are worth sharing, each once, in a fixed order."""
    found: dict[int, Tensor] = {}
    for t in _tensors(feds):
        is_plain = t.device.type == "cpu" and t.is_contiguous() and not t.requires_grad
        owns_all = t.untyped_storage().nbytes() == t.numel() * t.element_size()  # not a part of another
        if is_plain and owns_all and t.numel() * t.element_size() >= LEAST:
            found.setdefault(t.data_ptr(), t)
    return list(found.values())


def _tensors(feds: Iterable[Federation]) -> Iterator[Tensor]:
    for fed in feds:
        for rows in (fed.rows, fed.test):
            if not isinstance(rows.x, Stored):
                yield from tensors_of(rows.x)
            yield rows.y
        for holdings in (fed.train, fed.held):
            yield from (holdings.index, holdings.start)


def share_rows(feds: list[Federation], group: RankGroup) -> int:
    """Keep the rows of these federations once a machine; return how many bytes are shared."""
    if group.local_size < 2:
        return 0
    tensors = large_tensors(feds)
    group.shared_jobs += 1
    key = f"rows/{group.who[group.rank]['host']}/{group.shared_jobs}"
    mine = [[str(t.dtype), list(t.shape), _digest(t)] for t in tensors]
    if group.local_rank == 0:
        path = _write(tensors)
        group.store.set(key, json.dumps({"path": path, "tensors": mine}))
    else:
        group.store.wait([key], MEET)
    found = json.loads(group.store.get(key))
    if found["tensors"] != mine:
        raise BadRun(
            f"{group.name(group.rank)} has other rows than the first rank of its machine. All ranks must "
            "read the same data: seed what is random, and read the same files."
        )
    if found["path"]:
        at = 0
        for t in tensors:
            size = t.numel() * t.element_size()
            mapped: Any = torch.UntypedStorage.from_file(found["path"], False, at + size)
            t.set_(mapped, at // t.element_size(), t.shape, t.stride())
            at += -(-size // PAGE) * PAGE
    if group.store.add(f"{key}/mapped", 1) == group.local_size:
        group.store.set(f"{key}/done", "1")
    if group.local_rank == 0:
        group.store.wait([f"{key}/done"], MEET)
        if found["path"]:
            os.unlink(found["path"])
    return sum(t.numel() * t.element_size() for t in tensors) if found["path"] else 0


def _digest(t: Tensor) -> str:
    return hashlib.blake2b(t.reshape(-1).view(torch.uint8).numpy().data, digest_size=16).hexdigest()


def _write(tensors: list[Tensor]) -> str:
    """Write tensors to a file in shared memory; return its path, or "" where there is no room."""
    sizes = [-(-t.numel() * t.element_size() // PAGE) * PAGE for t in tensors]
    folder = Path("/dev/shm")
    if not tensors or not folder.is_dir() or shutil.disk_usage(folder).free < 1.1 * sum(sizes):
        return ""
    handle, path = tempfile.mkstemp(prefix="tacit-rows-", dir=folder)
    with os.fdopen(handle, "wb") as file:
        for t, size in zip(tensors, sizes):
            data = t.reshape(-1).view(torch.uint8).numpy().data
            file.write(data)
            file.write(b"\0" * (size - len(data)))
    return path
