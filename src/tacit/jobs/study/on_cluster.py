"""A study on a Ray cluster: its stacks are pieces of work, and this process alone writes the directory.

    driver → worker    the study's file and how it was loaded, ids of cells, finished lines that decide a
                       race, saved states
    worker → driver    ("say", text), ("line", line) for cells.jsonl, ("state", name, bytes)

The machines need not share a directory. A worker keeps its part of the study in a folder that ends with it;
what it saves is sent, so that another worker resumes its stack, also after this process was stopped.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import BadRun
from ...files import write_atomic
from ..ray_cluster import Emit, RayCluster
from . import run
from .file import Study, load
from .shards import WHOLE, Shard, split
from .store import Store

STATE = re.compile(r"[0-9a-f]{16}\.safetensors")


def study(
    spec: Study,
    out: str | Path,
    cluster: RayCluster,
    *,
    only: str = "",
    shard: Shard = WHOLE,
    say: Callable[[str], None] = lambda text: None,
) -> Store:
    """Run what is not done yet, as `run.study`, on a cluster."""
    store, stacks = run.unfinished(spec, out, only=only, shard=shard, say=say)
    stacks.sort(key=lambda stack: -sum(p.rounds * len(p.fed.train.index) for _, p in stack))
    if not stacks:
        return store
    file = Path(spec.loaded_with["name"]).read_bytes()
    with cluster:
        slots = cluster.slots
        say(f"{cluster.on}: {slots} workers at a time")
        pieces = [tuple(cell.id for cell, _ in piece) for stack in stacks for piece in split(stack, slots)]
        store.begin()

        def prepare(piece: tuple[str, ...]) -> tuple[Any, ...]:
            done, mine = store.done(), set(piece)
            states = {p.name: p.read_bytes() for p, names in store.saved() if not mine.isdisjoint(names)}
            request = {
                "file": file,
                "arguments": spec.loaded_with,
                "digest": spec.digest,
                "cells": [c for c in piece if c not in done],
                # only these are looked at: who has reached the target already
                "lines": [x for x in store.lines() if x.get("kind") == "cell"] if _has_race(spec) else [],
                "states": states,
            }
            return compute, request

        cluster.run(pieces, prepare, lambda piece, value: _receive(store, piece, value, say), say)
    return store


def _has_race(spec: Study) -> bool:
    return any(t.figure == "rounds" for t in spec.tables)


def _receive(
    store: Store, piece: tuple[str, ...], value: tuple[Any, ...], say: Callable[[str], None]
) -> None:
    """Keep what a worker sends of its piece."""
    kind, *rest = value
    if kind == "say":
        say(rest[0])
    elif kind == "line":
        (line,) = rest
        if line.get("kind") == "cell":
            if line["id"] not in piece:
                raise BadRun(f"a worker sent a result of {line['id']!r}, which it was not asked for.")
            if line["id"] in store.done():
                return
        store.add(line)
        if line.get("kind") == "cell":
            store.forget()
    else:
        name, content = rest
        if not STATE.fullmatch(name):
            raise BadRun(f"a worker sent a state with the name {name!r}, which is not that of a state.")
        with store.writing():
            write_atomic(store.path / "state" / name, content)


class _SentStore(Store):
    """A worker's own store: everything that is added or saved is also sent."""

    def __init__(self, directory: Path, study: Study, emit: Emit):
        super().__init__(directory, study)
        self.emit, self.sent = emit, dict[str, int]()

    def add(self, line: dict[str, Any]) -> None:
        for state in (self.path / "state").glob("*.safetensors"):  # a line follows each saved state
            at = state.stat().st_mtime_ns
            if self.sent.get(state.name) != at:
                self.sent[state.name] = at
                self.emit(("state", state.name, state.read_bytes()))
        super().add(line)
        self.emit(("line", line))


def compute(request: dict[str, Any], emit: Emit) -> None:
    """Run cells in a worker."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        file = Path(request["arguments"]["name"])  # where paths in it are relative to, if it is here
        if not file.is_file() or file.read_bytes() != request["file"]:
            file = Path(folder) / file.name
            file.write_bytes(request["file"])
        spec = load(**{**request["arguments"], "name": str(file)})
        if spec.digest != request["digest"]:
            raise BadRun(
                f"{spec.name} is another study here than where it was started. Are data sets and versions "
                "of tacit the same on all machines of the cluster?"
            )
        store = _SentStore(Path(folder) / "study", spec, emit)
        store.begin()
        for line in request["lines"]:
            Store.add(store, line)
        for name, content in request["states"].items():
            write_atomic(store.path / "state" / name, content)
            store.sent[name] = (store.path / "state" / name).stat().st_mtime_ns
        run.StackRunner(store, lambda text: emit(("say", text))).run(request["cells"])
