"""Parts in memory and in files behave in the same way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tacit.crypto.spool import ArrayParts, Parts, Spool


@pytest.mark.parametrize(
    "make",
    [lambda folder: ArrayParts(2, 4), lambda folder: Spool(folder, "parts", 2, 4)],
    ids=["memory", "disk"],
)
def test_records_added_after_all_were_removed_are_read_back(
    make: Callable[[Path], Parts], tmp_path: Path
) -> None:
    """In files they are under another key: before, they were read as if the old ones were still there."""
    parts, records = make(tmp_path), np.arange(8, dtype=np.uint8).reshape(2, 4)
    for _ in range(2):
        parts.extend(0, records)
        assert (parts.read(0) == records).all()
        parts.remove()
        assert len(parts) == 0
        assert not any(tmp_path.iterdir())
