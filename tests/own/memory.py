"""The peak memory of this process while something runs, as Linux counts it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Peak:
    """How far the resident memory rose above where it began, in bytes: mapped files count, too."""

    growth = 0


def _read(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


@contextmanager
def measure_peak() -> Iterator[Peak]:
    peak = Peak()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what is resident now
    before = _read("VmRSS")
    yield peak
    peak.growth = _read("VmHWM") - before
