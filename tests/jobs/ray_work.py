"""Work for workers of a Ray cluster in test_on_ray.py: a module of its own, so that they import little."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tacit.errors import BadRun


def wait_to_be_killed(folder: str, piece: int, emit: Any) -> None:
    """Say which process this is; the first time, wait for the end of it."""
    first = Path(folder, str(piece))
    is_first = not first.exists()
    first.touch()
    emit(os.getpid())
    if is_first:
        signal.pause()


def end_itself(emit: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(emit: Any) -> None:
    raise BadRun("this piece is refused.")


def fail(emit: Any) -> None:
    raise ZeroDivisionError("one by nothing")


def tell_gpus(emit: Any) -> None:
    emit(os.environ.get("CUDA_VISIBLE_DEVICES"))
