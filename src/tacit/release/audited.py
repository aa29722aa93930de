"""Whether a run's model may be handed out: the verdict of its audit, if one was made or demanded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BadRun, ReleaseRefused
from ..files import write_atomic

VERDICT, DEMAND, MODEL = "audit.json", "audit.toml", "model.safetensors"


def write_verdict(directory: Path, verdict: Mapping[str, Any]) -> None:
    """Write the result of an audit into the run's directory, with the digest of the model it is about."""
    digest = _digest(directory)
    bound = dict(verdict) if digest is None else {**verdict, "model_sha256": digest}
    write_atomic(directory / VERDICT, json.dumps(bound, ensure_ascii=False, indent=1))


def _digest(directory: Path) -> str | None:
    file = directory / MODEL
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def check_released(directory: str | Path) -> None:
    """Raise ReleaseRefused if an audit refused this run's model, or the job demands one and there is none."""
    folder = Path(directory)
    if not (folder / VERDICT).is_file():
        if (folder / DEMAND).is_file():
            raise ReleaseRefused(
                f"{folder} is not released: its job demands an audit, which has not been made. Run `tacit "
                f"audit {folder}`."
            )
        return
    try:
        verdict = json.loads((folder / VERDICT).read_text(encoding="utf-8"))
        passed = verdict["passed"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRun(f"{folder / VERDICT} cannot be read: {error}. Repeat `tacit audit {folder}`.") from error
    if verdict.get("model_sha256", now := _digest(folder)) != now:
        raise ReleaseRefused(
            f"{folder} is not released: its model changed after the audit (it was trained further, or "
            f"exchanged). Repeat `tacit audit {folder}`."
        )
    if passed is not True:
        names = [f.get("attack") for f in verdict.get("findings", ()) if f.get("verdict") == "exceeded"]
        why = f"{', '.join(map(str, names))} exceeded the limit" if names else "a limit was not tested"
        raise ReleaseRefused(
            f"{folder} is not released: {why} in its audit (audit.html). Train it with the defense that the "
            "page names, or change the limits."
        )
