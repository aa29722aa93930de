"""A run is a directory with one writer and many readers. Its files survive a kill at any time.

job.toml       the job, with every option resolved
events.jsonl   what happened, one event a line
ledger.json    what each party saw, and the privacy budget that was spent
state/         the last saved state, as safetensors. A run resumed from it gives the same result, except for
               the randomness that a guard draws from the operating system
report.html    made from the files above only
"""

from __future__ import annotations

import itertools
import json
import os
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .errors import BadRun
from .files import write_atomic

Event = dict[str, Any]


def check_unused(directory: str | Path, marker: str = "events.jsonl") -> Path:
    """Return the path of a new run; raise BadRun if it is a file or contains a run (the file `marker`).

    Nothing is written.
    """
    path = Path(directory)
    if (path / marker).exists():
        how = f" (`tacit run --resume {path}`)" if is_resumable(path) else ""
        resume = f"Resume it with resume=True{how}, or choose" if marker == "events.jsonl" else "Choose"
        raise BadRun(f"{path} already contains a run. {resume} another directory.")
    if path.exists() and not path.is_dir():
        raise BadRun(f"{path} is a file; a run needs a directory. Choose another one.")
    check_overwrites(path)
    return path


def check_overwrites(directory: Path) -> None:
    """Raise BadRun if a directory without a run has files named like a run's: they may be the user's."""
    if found := [name for name in WRITTEN if (directory / name).exists()]:
        raise BadRun(
            f"{directory} has {', '.join(found)}, which a run there would overwrite. Choose another "
            "directory."
        )


def check_empty(directory: str | Path) -> Path:
    """Return the path of a directory to save a result to; raise BadRun if it is a file or not empty."""
    path = Path(directory)
    if path.is_dir() and any(path.iterdir()):
        raise BadRun(f"save: the directory {path} is in use: it contains files. Choose another one.")
    if path.exists() and not path.is_dir():
        raise BadRun(f"save: {path} is a file; this result needs a directory. Choose another one.")
    return path


def next_directory(job: str | Path) -> Path:
    """Return the first of runs/NAME, runs/NAME-2, … that does not exist."""
    name = Path(job).stem
    paths = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
    return next(path for path in paths if not path.exists())


def is_python_job(job: Mapping[str, Any]) -> bool:
    """Whether the data of a run exist only in the Python program that started it."""
    data = job.get("data")
    return isinstance(data, Mapping) and data.get("made_in") == "python"


def is_resumable(directory: Path) -> bool:
    """Whether the command line can resume a run: its job file describes all of it."""
    try:
        job = tomllib.loads((directory / "job.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (directory / "events.jsonl").exists() and not is_python_job(job)


# what a run writes beside its events, state and ledger
WRITTEN = ("job.toml", "model.safetensors", "pipeline.json", "report.html", "card.md")
MODEL = "model.safetensors"  # the trained model; the state is for resuming only
RESTART_HINT = (
    "It was modified or damaged after it was written. Restore it from a copy, or restart the run in another "
    "directory."
)


def load_state(directory: Path) -> tuple[dict[str, Any] | None, Any]:
    """Return (tensors, metadata) of a run's last state, or (None, None) without one."""
    folder = directory / "state"
    at = folder / "state.json"
    if not at.exists():
        return None, None
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        metadata = json.loads(at.read_text())
        at = folder / metadata["file"]
        return load(at.read_bytes()), metadata
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        why = (
            "it does not exist"
            if isinstance(error, FileNotFoundError)
            else f"{type(error).__name__}: {error}"
        )
        raise BadRun(f"{at} cannot be read: {why}. {RESTART_HINT}") from error


def encode_model(module: Any) -> bytes:
    """Return a model's parameters and buffers as safetensors."""
    from safetensors.torch import save

    # copies: safetensors refuses tensors that share memory
    return save({name: t.detach().cpu().clone().contiguous() for name, t in module.state_dict().items()})


def save_stack(path: Path, states: Sequence[Mapping[str, Any]], note: Mapping[str, Any], **more: Any) -> None:
    """Save the states of runs that are trained together, after the same step, in one file."""
    from safetensors.torch import save

    tensors = {f"{i}.{k}": v for i, state in enumerate(states) for k, v in state.items()}
    write_atomic(path, save({**tensors, **more}, {"note": json.dumps({**note, "runs": len(states)})}))


def load_stack(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Return (states, note, more tensors) as `save_stack` saved them."""
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
            f"{path} cannot be read: {error}. Delete it; its runs then restart from the beginning."
        ) from error


def read_stack_note(path: Path) -> dict[str, Any] | None:
    """Return the note of a saved stack without loading its states; None if the file no longer exists."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return json.loads(file.metadata()["note"])  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadRun(
            f"{path} cannot be read: {error}. Delete it; its runs then restart from the beginning."
        ) from error


class SaveTimer:
    """When to save a state: at most once a second and during 5 % of the time."""

    def __init__(self) -> None:
        self.last = self.cost = 0.0  # seconds: when the last save ended, and how long it took

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self.last >= max(1.0, 20 * self.cost)

    @contextmanager
    def measure(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.last = time.monotonic()
        self.cost = self.last - began


class Journal:
    """Records a run's events in a list, in its directory, and with the callback `watch`."""

    def __init__(self, directory: Path | None = None, watch: Callable[[Event], None] | None = None):
        self.directory, self.watch = directory, watch
        self.events: list[Event] = []
        self._file: Any = None
        self._timer = SaveTimer()

    @classmethod
    def create(
        cls, directory: str | Path | None, job: dict[str, Any], watch: Callable[[Event], None] | None = None
    ) -> Journal:
        """Start the journal of a new run. An existing run is never overwritten."""
        if directory is None:
            return cls(None, watch)
        path = check_unused(directory)
        import tomli_w

        text = tomli_w.dumps(job)
        try:
            (path / "state").mkdir(parents=True, exist_ok=True)
            write_atomic(path / "job.toml", text)
        except OSError as error:
            raise BadRun(
                f"{path} cannot be written to: {error.strerror}. Choose another directory."
            ) from error
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
        """Open an existing run at its last saved state: (journal, state tensors or None, metadata).

        `agree` is called with the events up to that state and may raise; nothing has been changed then.
        """
        path = Path(directory)
        if not (path / "job.toml").exists():
            raise BadRun(
                f"{path} contains no run: it has no job.toml. Start one with out={str(path)!r}, without "
                "resume."
            )
        state, metadata = load_state(path)
        return cls.rewind(path, metadata["events"] if metadata else 0, watch, agree), state, metadata

    @classmethod
    def rewind(
        cls,
        path: Path,
        keep: int,
        watch: Callable[[Event], None] | None = None,
        agree: Callable[[list[Event]], None] = lambda events: None,
    ) -> Journal:
        """Open an existing run and drop all events after the first `keep`."""
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
        )  # later events will be written again
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
        metadata: Callable[[], dict[str, Any]] = dict,
        force: bool = False,
    ) -> None:
        """Save the state if the timer says so, or if `force`.

        Rounds after the last saved state are computed again after a crash.
        """
        if self.directory is None or not (force or self._timer.is_due):
            return
        from safetensors.torch import save

        with self._timer.measure():
            self.sync()
            folder = self.directory / "state"
            name = f"round-{round:06d}.safetensors"
            write_atomic(folder / name, save(state()))
            write_atomic(
                folder / "state.json",
                json.dumps({"file": name, "round": round, "events": len(self.events), **metadata()}),
            )
            for old in folder.glob("round-*.safetensors"):
                if old.name != name:
                    old.unlink()

    def save_model(self, module: Any) -> None:
        """Save the final model, for `model.load_state_dict(load_file(…))`."""
        if self.directory is None:
            return
        write_atomic(self.directory / MODEL, encode_model(module))

    def sync(self) -> None:
        """Flush the events to disk, so that a state saved later never refers to missing events."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self, ledger: dict[str, Any] | None = None) -> None:
        if self._file is not None:
            if ledger is not None and self.directory is not None:
                write_atomic(self.directory / "ledger.json", json.dumps(ledger, indent=1))
            self._file.close()
            self._file = None


def encode_nonfinite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by text."""
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {k: encode_nonfinite(v) for k, v in value.items()}
    return [encode_nonfinite(v) for v in value] if isinstance(value, list | tuple) else value


def decode_nonfinite(event: Event) -> Event:
    """Reverse `encode_nonfinite` in events that contain measured numbers.

    Elsewhere "nan" may be the name of a party.
    """
    if event["kind"] not in ("round", "kept", "end"):
        return event

    def back(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: back(v) for k, v in value.items()}
        if isinstance(value, list):
            return [back(v) for v in value]
        return float(value) if value in ("nan", "inf", "-inf") else value

    return {k: v if k == "kind" else back(v) for k, v in event.items()}


def versions(tacit: str) -> dict[str, str]:
    """Return the versions of what computes: Python and the packages whose version may change a figure."""
    import platform

    return {"tacit": tacit, "python": platform.python_version(), **_package_versions()}


@cache  # finding and reading the metadata takes milliseconds, and every run asks
def _package_versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "numpy", "pandas"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # a bare GPU machine has no pandas
    return found


def rounds_of(events: Iterable[Event]) -> list[Event]:
    """Return the history: the events of rounds, without their kind."""
    return [{k: v for k, v in event.items() if k != "kind"} for event in events if event["kind"] == "round"]
