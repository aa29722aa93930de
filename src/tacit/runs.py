"""A run is a directory: one writer, many readers. What is in it survives a kill at any moment.

job.toml       what was asked, resolved
events.jsonl   what happened, a line each
ledger.json    who saw what, and what privacy was spent
state/         the last state written, as safetensors: enough to go on as if nothing had happened, but for what a guard draws
report.html    made from the files above, and from nothing else
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import BadRun
from .files import write_atomic

Event = dict[str, Any]


def check_unused(directory: str | Path) -> Path:
    """A place for a new run, or BadRun. Nothing is written."""
    path = Path(directory)
    if (path / "events.jsonl").exists():
        how = f" (`tacit run --resume {path}`)" if is_resumable(path) else ""
        raise BadRun(
            f"{path} already holds a run. Go on with it by resume=True{how}, or give another directory."
        )
    if path.exists() and not path.is_dir():
        raise BadRun(f"{path} is a file; a run needs a directory. Give another one.")
    return path


def is_python_job(job: Mapping[str, Any]) -> bool:
    """Whether a run's job has data that only the program which started it can make again."""
    data = job.get("data")
    return isinstance(data, Mapping) and data.get("made_in") == "python"


def is_resumable(directory: Path) -> bool:
    """Whether a directory holds a run that a job file describes, so that the command line can go on with
    it.
    """
    try:
        job = tomllib.loads((directory / "job.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (directory / "events.jsonl").exists() and not is_python_job(job)


MODEL = "model.safetensors"  # in a run directory, beside the state that only a resumed run understands
RESTART_HINT = (
    "It was changed or damaged after the run wrote it. Put it back from a copy, or start the run "
    "anew in another directory."
)


def load_state(directory: Path) -> tuple[dict[str, Any] | None, Any]:
    """A run's last saved state: (tensors, what was saved beside them), or (None, None) where the run was
    stopped before its first.
    """
    folder = directory / "state"
    at = folder / "state.json"
    if not at.exists():
        return None, None
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        beside = json.loads(at.read_text())
        at = folder / beside["file"]
        return load(at.read_bytes()), beside
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        why = (
            "it is not there" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
        )
        raise BadRun(f"{at} cannot be read: {why}. {RESTART_HINT}") from error


def save_stack(path: Path, states: Sequence[Mapping[str, Any]], note: Mapping[str, Any], **more: Any) -> None:
    """The states of runs that go side by side, all of one moment, in one file: they go on together or not at
    all.
    """
    from safetensors.torch import save

    tensors = {f"{i}.{k}": v for i, state in enumerate(states) for k, v in state.items()}
    write_atomic(path, save({**tensors, **more}, {"note": json.dumps({**note, "runs": len(states)})}))


def load_stack(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """(the states, the note, the tensors beside them) as they were saved."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            note = json.loads(file.metadata()["note"])
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118  # no dict
        states: list[dict[str, Any]] = [{} for _ in range(note["runs"])]
        for name in [n for n in tensors if "." in n]:
            i, _, key = name.partition(".")
            states[int(i)][key] = tensors.pop(name)
        return states, note, tensors
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
        raise BadRun(
            f"{path} cannot be read: {error}. Delete it, and the stack it belongs to starts anew."
        ) from error


def read_stack_note(path: Path) -> dict[str, Any] | None:
    """The note of a saved stack, without its states; None if it is not there any more."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return json.loads(file.metadata()["note"])  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadRun(
            f"{path} cannot be read: {error}. Delete it, and the stack it belongs to starts anew."
        ) from error


class SaveTimer:
    """When it is time to write a state down again: at most once a second, and so that it takes no more than a
    twentieth of the time.
    """

    def __init__(self) -> None:
        self.last = self.cost = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() - self.last >= max(1.0, 20 * self.cost)

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.last = time.monotonic()
        self.cost = self.last - began


class Journal:
    """Where a run's events go: into a list, to a watcher, and, when the run has a directory, to disk."""

    def __init__(self, directory: Path | None = None, watch: Callable[[Event], None] | None = None):
        self.directory, self.watch = directory, watch
        self.events: list[Event] = []
        self._file: Any = None
        self._seldom = SaveTimer()

    @classmethod
    def create(
        cls, directory: str | Path | None, job: dict[str, Any], watch: Callable[[Event], None] | None = None
    ) -> Journal:
        """A new run. An existing one is never written over."""
        if directory is None:
            return cls(None, watch)
        path = check_unused(directory)
        import tomli_w

        text = tomli_w.dumps(job)
        try:
            (path / "state").mkdir(parents=True, exist_ok=True)
            write_atomic(path / "job.toml", text)
        except OSError as error:
            raise BadRun(f"{path} cannot be written to: {error.strerror}. Give another directory.") from error
        journal = cls(path, watch)
        journal._open()
        return journal

    @classmethod
    def resume(
        cls,
        directory: str | Path,
        watch: Callable[[Event], None] | None = None,
        agree: Callable[[list[Event]], None] = lambda events: None,
    ) -> tuple[Journal, dict[str, Any] | None, Any]:
        """An existing run, wound back to its last saved state: (journal, state tensors or None, what was
        saved beside them).

        `agree` is shown the events that stay and may refuse; nothing has been changed then.
        """
        path = Path(directory)
        if not (path / "job.toml").exists():
            raise BadRun(
                f"{path} holds no run: there is no job.toml in it. Start one with out={str(path)!r}, "
                "without resume."
            )
        state, beside = load_state(path)
        return cls.rewind(path, beside["events"] if beside else 0, watch, agree), state, beside

    @classmethod
    def rewind(
        cls,
        path: Path,
        keep: int,
        watch: Callable[[Event], None] | None = None,
        agree: Callable[[list[Event]], None] = lambda events: None,
    ) -> Journal:
        """An existing run with its first `keep` events alone."""
        journal = cls(path, watch)
        lines = (
            (path / "events.jsonl").read_bytes().split(b"\n")[:keep]
            if (path / "events.jsonl").exists()
            else []
        )
        try:
            journal.events = [decode_nonfinite(json.loads(line)) for line in lines]
        except ValueError as error:
            raise BadRun(f"{path / 'events.jsonl'} cannot be read: {error}. {RESTART_HINT}") from error
        if len(lines) < keep:
            raise BadRun(
                f"{path / 'events.jsonl'} has {len(lines)} lines, and the saved state was written after "
                f"{keep}. {RESTART_HINT}"
            )
        agree(journal.events)
        write_atomic(
            path / "events.jsonl", b"".join(line + b"\n" for line in lines)
        )  # what came after the state will happen again
        journal._open()
        return journal

    def _open(self) -> None:
        assert self.directory is not None
        # lives as long as the run
        self._file = open(self.directory / "events.jsonl", "ab", buffering=0)  # noqa: SIM115

    def event(self, kind: str, **values: Any) -> None:
        event = {"kind": kind, **values}
        self.events.append(event)
        if self._file is not None:
            self._file.write(json.dumps(encode_nonfinite(event)).encode() + b"\n")
        if self.watch is not None:
            self.watch(event)

    def save(
        self,
        round: int,
        state: Callable[[], dict[str, Any]],
        beside: Callable[[], dict[str, Any]] = dict,
        force: bool = False,
    ) -> None:
        """Write the state down, at most once a second and so that it takes no more than a twentieth of the
        time: what lies between is computed again after a crash, to the same bits but for what a guard draws
        from the operating system.
        """
        if self.directory is None or not (force or self._seldom.due):
            return
        from safetensors.torch import save

        with self._seldom.timed():
            self.sync()
            folder = self.directory / "state"
            name = f"round-{round:06d}.safetensors"
            write_atomic(folder / name, save(state()))
            write_atomic(
                folder / "state.json",
                json.dumps({"file": name, "round": round, "events": len(self.events), **beside()}),
            )
            for old in folder.glob("round-*.safetensors"):
                if old.name != name:
                    old.unlink()

    def save_model(self, module: Any) -> None:
        """The model the run ended with, under its module's own names, for whoever wants to use it:
        `model.load_state_dict(load_file(…))`.
        """
        if self.directory is None:
            return
        from safetensors.torch import save

        # a copy of each: layers that share a tensor, and views, are no safetensors
        write_atomic(
            self.directory / MODEL,
            save({name: t.detach().cpu().clone().contiguous() for name, t in module.state_dict().items()}),
        )

    def sync(self) -> None:
        """Every event so far is on the disk: a state that comes after them may count on them."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self, ledger: dict[str, Any] | None = None) -> None:
        if self._file is not None:
            if ledger is not None and self.directory is not None:
                write_atomic(self.directory / "ledger.json", json.dumps(ledger, indent=1))
            self._file.close()
            self._file = None


def encode_nonfinite(value: Any) -> Any:
    """JSON has no NaN and no infinity; a diverged loss is written as the word."""
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {k: encode_nonfinite(v) for k, v in value.items()}
    return [encode_nonfinite(v) for v in value] if isinstance(value, list | tuple) else value


def decode_nonfinite(event: Event) -> Event:
    """The reverse, where a run goes on: only rounds and the end hold measured numbers (a party may well be
    called nan).
    """
    if event["kind"] not in ("round", "end"):
        return event

    def back(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: back(v) for k, v in value.items()}
        if isinstance(value, list):
            return [back(v) for v in value]
        return float(value) if value in ("nan", "inf", "-inf") else value

    return {k: v if k == "kind" else back(v) for k, v in event.items()}


def rounds_of(events: Iterable[Event]) -> list[Event]:
    """The history: a row a round, without the word that says it is one."""
    return [{k: v for k, v in event.items() if k != "kind"} for event in events if event["kind"] == "round"]
