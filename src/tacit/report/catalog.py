"""The runs, comparisons and studies in a directory, as `tacit runs` and `tacit ui` list them.

A directory may hold thousands of runs and be written to meanwhile: an entry is read again only if its files
changed, and of a long file only the first line, the last lines and some between are parsed.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import BadParameter, BadRun
from ..files import write_atomic
from ..numbers import judged_by
from .numbers import is_finite

Kind = Literal["run", "comparison", "study"]
State = Literal["running", "finished", "stopped", "diverged", "unreadable"]
POINTS = 48  # of a sparkline: parsed lines of a run
SILENT = 120.0  # seconds without an event after which a run counts as stopped, if its rounds are shorter
ROUNDS_SILENT = 10  # or this many of its rounds
DEPTH = 3  # directories below the root in which runs are looked for
TAGS = "tags.json"
MOST_TAGS, MOST_LETTERS = 20, 40  # of an entry, of a tag


@dataclass(frozen=True)
class Entry:
    """One row of the list. `id` is the path below the root, with `/`."""

    id: str
    path: Path
    kind: Kind
    state: State
    label: str = ""
    data: str = ""
    parties: int = 0
    done: int = 0
    planned: int = 0
    metric: str = ""
    value: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    epsilon: float | None = None
    started: str = ""
    changed: float = 0.0  # seconds since the epoch: when something was last written
    tags: tuple[str, ...] = ()
    problem: str = ""

    @property
    def progress(self) -> float:
        return min(1.0, self.done / self.planned) if self.planned else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "path": str(self.path),
            "kind": self.kind,
            "state": self.state,
            "label": self.label,
            "data": self.data,
            "parties": self.parties,
            "done": self.done,
            "planned": self.planned,
            "metric": self.metric,
            "value": self.value,
            "epsilon": self.epsilon,
            "started": self.started,
            "tags": list(self.tags),
            "problem": self.problem,
        }

    def matches(self, words: Iterable[str]) -> bool:
        """Whether every word is in its text; "tag:x" asks for a tag, "state:x" for a state."""
        text = " ".join((self.id, self.label, self.data, self.kind, self.state, *self.tags)).lower()
        for word in map(str.lower, words):
            key, _, rest = word.partition(":")
            if key == "tag":
                if rest not in map(str.lower, self.tags):
                    return False
            elif key == "state":
                if rest != self.state:
                    return False
            elif word not in text:
                return False
        return True


class Catalog:
    """The entries below a directory; `entries` reads what changed since the last call."""

    def __init__(self, root: str | Path):
        self.root = Path(root)
        self._known: dict[Path, tuple[tuple[Any, ...], Entry]] = {}
        self._lock = threading.Lock()  # several pages ask at once

    def entries(self) -> list[Entry]:
        """Return all entries, the newest first."""
        with self._lock:
            found = {}
            for path, kind in _find(self.root, DEPTH):
                found[path] = self._read(path, kind)
            self._known = found
            return sorted((e for _, e in found.values()), key=lambda e: (e.started, e.id), reverse=True)

    def get(self, id: str) -> Entry:
        """Return one entry; raise BadRun if there is none with this id below the root."""
        parts = id.split("/")
        path = self.root.joinpath(*parts) if id != "." else self.root
        if id != "." and (not id or any(p in ("", ".", "..") or "\0" in p or "\\" in p for p in parts)):
            raise BadRun(f"{id!r} is not the name of a run.")
        kind = _kind(path)
        # resolved: a link must not lead out of the directory that is shown
        if kind is None or not path.resolve().is_relative_to(self.root.resolve()):
            raise BadRun(f"there is no run {id!r} in {self.root}. See `tacit runs list`.")
        with self._lock:
            self._known[path] = self._read(path, kind)
            return self._known[path][1]

    def _read(self, path: Path, kind: Kind) -> tuple[tuple[Any, ...], Entry]:
        mark = signature(path, kind)
        known = self._known.get(path)
        # a run that writes nothing more becomes a stopped one
        if known is not None and known[0] == mark and known[1].state != "running":
            return known
        if known is not None and known[0] == mark and not _is_silent(known[1]):
            return known
        id = path.relative_to(self.root).as_posix()
        try:
            entry = {"run": _run, "comparison": _comparison, "study": _study}[kind](id, path)
        except (OSError, ValueError, KeyError, TypeError, BadRun) as error:
            entry = Entry(id, path, kind, "unreadable", problem=f"{type(error).__name__}: {error}")
        return mark, entry


def _find(path: Path, depth: int) -> Iterator[tuple[Path, Kind]]:
    kind = _kind(path)
    if kind is not None:
        yield path, kind
        return
    if depth == 0:
        return
    try:
        with os.scandir(path) as found:
            names = sorted(
                e.name for e in found if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)
            )
    except OSError:
        return
    for name in names:
        yield from _find(path / name, depth - 1)


def _kind(path: Path) -> Kind | None:
    if (path / "events.jsonl").is_file():
        return "run"
    if (path / "study.json").is_file():
        return "study"
    if (path / "compare.json").is_file() or ((path / "runs").is_dir() and (path / "job.toml").is_file()):
        return "comparison"
    return None


def signature(path: Path, kind: str) -> tuple[Any, ...]:
    """Return what changes when the files of an entry do."""
    names = {
        "run": ("events.jsonl", "ledger.json", TAGS),
        "comparison": ("compare.json", TAGS),
        "study": ("cells.jsonl", "summary.json", TAGS),
    }[kind]
    files = [path / name for name in names]
    if kind == "comparison":
        files += sorted((path / "runs").glob("*/events.jsonl"))
    return tuple(_stat(file) for file in files)


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _lines(file: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the first events of a file, about POINTS rounds, and the last ones; and how many lines it has.

    A line that is not an event is left out: the report says which.
    """
    data = file.read_bytes()
    lines = data.split(b"\n")
    starts = [i for i, line in enumerate(lines) if line.startswith(b'{"kind": "start"')]
    rounds = [i for i, line in enumerate(lines) if line.startswith(b'{"kind": "round"')]
    step = max(1, len(rounds) // POINTS)
    others = [i for i, line in enumerate(lines[-8:], max(0, len(lines) - 8)) if line.strip()]
    wanted = sorted({*starts[-1:], *rounds[::step], *rounds[-2:], *others})
    found = []
    for i in wanted:
        try:
            event = json.loads(lines[i])
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            found.append(event)
    return found, len(lines)


def _run(id: str, path: Path) -> Entry:
    events, _ = _lines(path / "events.jsonl")
    start: Mapping[str, Any] = next((e for e in reversed(events) if e["kind"] == "start"), {})
    end: Mapping[str, Any] = next((e for e in reversed(events) if e["kind"] == "end"), {})
    rounds = {e["round"]: e for e in events if e["kind"] == "round" and isinstance(e.get("round"), int)}
    ordered = [rounds[r] for r in sorted(rounds)]
    measured = [e for e in ordered if "loss" in e or "accuracy" in e]
    last = end.get("metrics") or (measured[-1] if measured else {})
    metric = judged_by(last, start.get("metric")) if last else ""
    curve = tuple((e["round"], float(e[metric])) for e in measured if is_finite(e.get(metric)))
    diverged = bool(measured) and not is_finite(measured[-1].get("loss", 0.0))
    epsilon = next((e["epsilon"] for e in reversed(ordered) if is_finite(e.get("epsilon"))), None)
    federation = start.get("federation") or {}
    changed = (path / "events.jsonl").stat().st_mtime
    done = max(rounds, default=0)
    state: State = "finished" if end else "running"
    if diverged:
        state = "diverged"
    elif not end and _silence(ordered, changed):
        state = "stopped"
    return Entry(
        id,
        path,
        "run",
        state,
        label=str(start.get("label") or path.name),
        data=str(federation.get("name") or ""),
        parties=len(federation.get("parties") or ()),
        done=done,
        planned=max(done, int(start.get("rounds") or 0)),
        metric=metric,
        value=float(last[metric]) if is_finite(last.get(metric)) else None,
        curve=curve,
        epsilon=epsilon,
        started=str(start.get("time") or ""),
        changed=changed,
        tags=read_tags(path),
    )


def _silence(rounds: list[dict[str, Any]], changed: float) -> bool:
    """Whether nothing was written for so long that the process has probably ended."""
    longest = max((float(e["seconds"]) for e in rounds if is_finite(e.get("seconds"))), default=0.0)
    return time.time() - changed > max(SILENT, ROUNDS_SILENT * longest)


def _is_silent(entry: Entry) -> bool:
    return time.time() - entry.changed > SILENT


def _comparison(id: str, path: Path) -> Entry:
    runs = [p.parent for p in sorted((path / "runs").glob("*/events.jsonl"))]
    found = [_run(r.name, r) for r in runs]
    is_done = (path / "compare.json").is_file()
    table = json.loads((path / "compare.json").read_text(encoding="utf-8")) if is_done else {}
    labels = list(dict.fromkeys(e.label for e in found)) or list(
        (table.get("table") or {}).get("index") or ()
    )
    best = next((e for e in found if e.value is not None), None)
    changed = max((e.changed for e in found), default=path.stat().st_mtime)
    state: State = "finished" if is_done else "running"
    if not is_done and time.time() - changed > SILENT:
        state = "stopped"
    return Entry(
        id,
        path,
        "comparison",
        state,
        label=", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else ""),
        data=found[0].data if found else "",
        parties=found[0].parties if found else 0,
        done=sum(e.done for e in found),
        planned=sum(e.planned for e in found),
        metric=best.metric if best else str(table.get("metric") or ""),
        started=min((e.started for e in found if e.started), default=""),
        changed=changed,
        tags=read_tags(path),
    )


def _study(id: str, path: Path) -> Entry:
    note = json.loads((path / "study.json").read_text(encoding="utf-8"))
    summary = path / "summary.json"
    cells = path / "cells.jsonl"
    done = planned = 0
    title, data = str(note.get("study") or path.name), ""
    if summary.is_file():
        found = json.loads(summary.read_text(encoding="utf-8"))
        planned, title = int(found.get("runs") or 0), str(found.get("title") or title)
    if cells.is_file():
        ids = set()
        for line in cells.read_bytes().split(b"\n"):
            if b'"id"' in line:
                try:
                    ids.add(json.loads(line).get("id"))
                except ValueError:
                    continue
        done = len(ids - {None})
    planned = planned or int(note.get("runs") or 0)
    changed = max(p.stat().st_mtime for p in (cells, summary, path / "study.json") if p.exists())
    state: State = "finished" if planned and done >= planned else "running"
    if state == "running" and time.time() - changed > SILENT:
        state = "stopped"
    started = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime((path / "study.json").stat().st_mtime))
    return Entry(
        id,
        path,
        "study",
        state,
        label=title,
        data=data,
        done=done,
        planned=max(planned, done),
        started=f"{started}+00:00",
        changed=changed,
        tags=read_tags(path),
    )


# --- tags and removal ---------------------------------------------------------------------------------------


def read_tags(path: Path) -> tuple[str, ...]:
    """Return the tags of a run; none if the file is not a list of short texts."""
    try:
        found = json.loads((path / TAGS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    if not isinstance(found, list):
        return ()
    return tuple(t for t in found[:MOST_TAGS] if isinstance(t, str) and len(t) <= MOST_LETTERS)


def change_tags(path: Path, add: Iterable[str] = (), remove: Iterable[str] = ()) -> tuple[str, ...]:
    """Add and remove tags of a run; return what it has then."""
    new = list(add)
    for tag in new:
        if not tag.strip() or tag != tag.strip() or len(tag) > MOST_LETTERS or not tag.isprintable():
            raise BadParameter(
                f"tag {tag!r}: expected 1 to {MOST_LETTERS} printable letters, without spaces at the ends."
            )
    gone = set(remove)
    tags = tuple(t for t in dict.fromkeys((*read_tags(path), *new)) if t not in gone)
    if len(tags) > MOST_TAGS:
        raise BadParameter(f"{path} would have {len(tags)} tags; at most {MOST_TAGS}.")
    write_atomic(path / TAGS, json.dumps(list(tags)))
    return tags


def remove(entry: Entry, even_running: bool = False) -> None:
    """Delete the directory of a run, comparison or study."""
    if entry.state == "running" and not even_running:
        raise BadRun(f"{entry.path} may be running. Stop it first, or give --force.")
    if entry.path.is_symlink():
        raise BadRun(f"{entry.path} is a link. Remove it yourself.")
    shutil.rmtree(entry.path)


def read_job(path: Path) -> dict[str, Any]:
    """Return the job of a run as tables; empty if it cannot be read."""
    try:
        return tomllib.loads((path / "job.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
