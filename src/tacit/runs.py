"""A run is a directory: one writer, many readers. What is in it survives a kill at any moment.

    job.toml       what was asked, resolved
    events.jsonl   what happened, a line each
    ledger.json    who saw what, and what privacy was spent
    state/         the last state written, as safetensors: enough to go on as if nothing had happened
    report.html    made from the files above, and from nothing else
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .errors import BadRun

Event = dict[str, Any]


def write_whole(path: Path, content: str | bytes) -> None:
    """All of it or nothing: a reader never sees half a file, and a crash leaves the old one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    data = content.encode() if isinstance(content, str) else content
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class Journal:
    """Where a run's events go: into a list, to a watcher, and, when the run has a directory, to disk."""

    def __init__(self, directory: Path | None = None, watch: Callable[[Event], None] | None = None):
        self.directory, self.watch = directory, watch
        self.events: list[Event] = []
        self._file: Any = None
        self._saved = 0.0

    @classmethod
    def create(cls, directory: str | Path | None, job: dict[str, Any], watch: Callable[[Event], None] | None = None) -> Journal:
        """A new run. An existing one is never written over."""
        if directory is None:
            return cls(None, watch)
        path = Path(directory)
        if (path / "events.jsonl").exists():
            raise BadRun(f"{path} already holds a run. Go on with it by resume=True (`tacit run --resume {path}`), or give another directory.")
        if path.exists() and not path.is_dir():
            raise BadRun(f"{path} is a file; a run needs a directory. Give another one.")
        (path / "state").mkdir(parents=True, exist_ok=True)
        import tomli_w

        write_whole(path / "job.toml", tomli_w.dumps(job))
        journal = cls(path, watch)
        journal._open()
        return journal

    @classmethod
    def resume(cls, directory: str | Path, watch: Callable[[Event], None] | None = None) -> tuple[Journal, dict[str, Any] | None, Any]:
        """An existing run, wound back to its last saved state: (journal, state tensors or None, what was saved beside them)."""
        path = Path(directory)
        if not (path / "job.toml").exists():
            raise BadRun(f"{path} holds no run: there is no job.toml in it. Start one with out={str(path)!r}, without resume.")
        journal = cls(path, watch)
        state, beside = None, None
        saved = path / "state" / "state.json"
        if saved.exists():
            from safetensors.torch import load_file

            beside = json.loads(saved.read_text())
            state = load_file(path / "state" / beside["file"])
        keep = beside["events"] if beside else 0
        lines = (path / "events.jsonl").read_bytes().split(b"\n")[:keep] if (path / "events.jsonl").exists() else []
        journal.events = [json.loads(line) for line in lines]
        write_whole(path / "events.jsonl", b"".join(line + b"\n" for line in lines))  # what came after the state will happen again
        journal._open()
        return journal, state, beside

    def _open(self) -> None:
        assert self.directory is not None
        self._file = open(self.directory / "events.jsonl", "ab", buffering=0)  # noqa: SIM115  # lives as long as the run

    def event(self, kind: str, **values: Any) -> None:
        event = {"kind": kind, **values}
        self.events.append(event)
        if self._file is not None:
            self._file.write(json.dumps(_finite(event)).encode() + b"\n")
        if self.watch is not None:
            self.watch(event)

    def save(self, round: int, state: Callable[[], dict[str, Any]], beside: dict[str, Any], force: bool = False) -> None:
        """Write the state down, at most once a second: what lies between is computed again, to the same bits, after a crash."""
        if self.directory is None or (not force and time.monotonic() - self._saved < 1.0):
            return
        from safetensors.torch import save

        os.fsync(self._file.fileno())
        folder = self.directory / "state"
        name = f"round-{round:06d}.safetensors"
        write_whole(folder / name, save(state()))
        write_whole(folder / "state.json", json.dumps({"file": name, "round": round, "events": len(self.events), **beside}))
        for old in folder.glob("round-*.safetensors"):
            if old.name != name:
                old.unlink()
        self._saved = time.monotonic()

    def close(self, ledger: dict[str, Any] | None = None) -> None:
        if self._file is not None:
            if ledger is not None and self.directory is not None:
                write_whole(self.directory / "ledger.json", json.dumps(ledger, indent=1))
            self._file.close()
            self._file = None


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity; a diverged loss is written as the word."""
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def rounds_of(events: Iterable[Event]) -> list[Event]:
    """The history: a row a round, without the word that says it is one."""
    return [{k: v for k, v in event.items() if k != "kind"} for event in events if event["kind"] == "round"]
