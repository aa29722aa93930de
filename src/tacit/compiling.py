"""Compile loops with numba: importing this module needs one of the extras that have it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from numba import njit  # type: ignore[import-untyped,unused-ignore]
from numba.core import event  # type: ignore[import-untyped,unused-ignore]

log = logging.getLogger(__name__)


def compile_loop(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call; it runs without Python's lock.

    The machine code is kept on disk, beside the module or in the user's cache. Where neither can be written
    (a read-only container, a service without a home), each process compiles it again.
    """
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba: no locator available
        return njit(nogil=True)(function)


class _Announcement(event.Listener):  # type: ignore[misc,unused-ignore]
    """Says once in a process that loops are compiled: that takes seconds, and nothing else is seen of it.

    Loops whose machine code is read from disk are no such event.
    """

    is_made = False

    def on_start(self, event: Any) -> None:
        loop = event.data["dispatcher"]
        if self.is_made or not loop.py_func.__module__.startswith(f"{__package__}."):
            return
        self.is_made = True
        place = loop.stats.cache_path
        log.warning(
            "compiling numerical loops, which takes some seconds; %s",
            f"their machine code is kept in {place}, for later runs"
            if place
            else "each process does so, because there is no directory for their machine code. Set "
            "NUMBA_CACHE_DIR to one that can be written",
        )

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Announcement())
