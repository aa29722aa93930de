"""`tacit.load`: a finished run, read from its directory."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from ..errors import BadRun
from ..parties.ledger import Ledger
from ..results import Result
from ..runs import Event, decode_nonfinite
from .release import DAMAGED, read_model


def load(directory: str | Path, *, model: Any = None) -> Result:
    """Read a finished run: its model, pipeline, metrics, events, ledger and job.

    `directory` is a run directory, or the folder in which a party of a deployed federation keeps its model.
    It needs nothing else: not the data, and not the machine of the run. `model` is needed if the model was
    given as code: an `nn.Module` of the same architecture, or a function that returns one. No file is read
    with pickle.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise BadRun(f"load: there is no directory {folder}. Give the directory of a finished run.")
    if (folder / "compare.json").exists():
        runs = sorted(str(p) for p in (folder / "runs").glob("*") if p.is_dir())
        raise BadRun(
            f"load: {folder} is a comparison of {len(runs)} runs. Load one of them: {', '.join(runs[:10])}."
        )
    release, module = read_model(folder, model)
    events = _events(folder / "events.jsonl")
    ledger = folder / "ledger.json"
    end: Event = next((e for e in reversed(events) if e["kind"] == "end"), {})
    metrics = end.get("metrics", {})
    if not isinstance(metrics, dict):
        raise BadRun(f"{folder / 'events.jsonl'} has no metrics at its end. {DAMAGED}")
    return Result(
        module,
        metrics,
        _ledger(ledger) if ledger.exists() else Ledger(),
        _job(folder / "job.toml"),
        events,
        folder,
        release=release,
    )


def _events(file: Path) -> list[Event]:
    """Read the events; a party's folder has none. A line that was cut off by a crash is left out."""
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")
    events = []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line) if line.strip() else None
            if event is not None:
                if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
                    raise ValueError("it is no event")
                events.append(decode_nonfinite(event))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number == len(lines):
                break
            raise BadRun(f"{file}, line {number}, cannot be read: {error}. {DAMAGED}") from error
    return events


def _ledger(file: Path) -> Ledger:
    try:
        return Ledger.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (BadRun, OSError, ValueError, RecursionError) as error:
        raise BadRun(f"{file} cannot be read: {error}. {DAMAGED}") from error


def _job(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRun(f"{file} cannot be read: {error}. {DAMAGED}") from error
