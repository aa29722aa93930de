"""What a run that is resumed must have in common with its start, and when it may have more rounds."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from ...algorithms.types import State
from ...data.inputs import Features, Stored, tensors_of
from ...engine.task import Task
from ...errors import BadRun
from ...guard import Noise
from ...runs import RESTART_HINT, Event
from .plan import Plan

BLOCK = 1024  # rows of a file that are read at a time


def fingerprints(p: Plan, start: State, task: Task) -> dict[str, str]:
    """Return digests of the rows, their partition and the initial model: a resumed run must have the same."""

    def digest(*parts: Features) -> str:
        h = hashlib.blake2b(digest_size=16)
        for t in chain.from_iterable(map(_blocks, parts)):
            h.update(f"{t.dtype} {tuple(t.shape)}".encode())
            h.update(
                t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data if t.numel() else b""
            )
        return h.hexdigest()

    return {
        "data": digest(*p.fed.rows, *p.fed.train, *p.fed.held, *p.fed.test),
        "model": digest(*start.values(), *task.constants().values()),
    }


def _blocks(x: Features) -> Iterator[torch.Tensor]:
    """Return the tensors of rows; those of a file in blocks, so that it need not fit in memory."""
    for part in x.split(BLOCK) if isinstance(x, Stored) else (x,):
        yield from tensors_of(part)


def check_same_inputs(out: Path, events: list[Event], now: dict[str, str]) -> None:
    """Raise BadRun unless the rows and the initial model are those of the run in `out`."""
    before = next((e.get("fingerprints") for e in events if e["kind"] == "start"), None) or {}
    changed = [name for name in before if before[name] != now.get(name)]
    if changed:
        what = " and ".join(
            {"data": "the data (rows, or who holds them)", "model": "the model it starts from"}[name]
            for name in changed
        )
        raise BadRun(
            f"{out} cannot be resumed: {what} changed since it was started. Give the same as at its "
            "start, or start a new directory."
        )


def count_events_before_end(out: Path, metadata: Any) -> int:
    """Return how many events a run had when its last round was written: what came after ends it."""
    kept = metadata["events"] if metadata else 0
    lines = (out / "events.jsonl").read_bytes().split(b"\n")[:kept] if kept else []
    rounds = [i for i, line in enumerate(lines) if line.startswith(b'{"kind": "round"')]
    return rounds[-1] + 1 if rounds else kept


def check_extension(out: Path, p: Plan) -> None:
    """Raise BadRun if a run cannot have more rounds than it was started with."""
    why = None
    if p.private is not None or any(isinstance(stage, Noise) for stage in p.guard):
        why = "its noise and its ε are for the rounds it was started with"
    elif p.runtime == "parties":
        why = "its parties agreed to the rounds it was started with"
    if why is not None:
        raise BadRun(
            f"{out} cannot have more rounds: {why}. Start a new run from its model: model=run.model."
        )


def check_same_job(out: Path, job: dict[str, Any], may_extend: bool = False) -> bool:
    """Raise BadRun unless the run in `out` has this job; return whether it only had fewer rounds."""
    import tomli_w

    if not (out / "job.toml").exists():
        raise BadRun(f"{out} holds no run to resume: there is no job.toml in it. Start it without resume.")
    try:
        before, now = tomllib.loads((out / "job.toml").read_text()), tomllib.loads(tomli_w.dumps(job))
    except ValueError as error:
        raise BadRun(f"{out / 'job.toml'} cannot be read: {error}. {RESTART_HINT}") from error
    rounds = [tables.get("train", {}).get("rounds") for tables in (before, now)]
    if may_extend and before != now and all(isinstance(n, int) for n in rounds) and rounds[0] < rounds[1]:
        before["train"]["rounds"] = rounds[1]
        if before == now:
            return True
        before["train"]["rounds"] = rounds[0]
    if before != now:
        where = []
        for name in {*now, *before}:
            a, b = now.get(name, {}), before.get(name, {})
            if isinstance(a, dict) and isinstance(b, dict):
                where += [f"{name}.{k}" for k in {*a, *b} if a.get(k) != b.get(k)]
            elif a != b:  # a list of tables: [[guard]]
                where.append(name)
        raise BadRun(
            f"{out} holds another run: it differs in {', '.join(sorted(where))}. Resume with the same "
            "settings, or start a new directory."
        )
    return False
