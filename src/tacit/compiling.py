"""Compile loops with numba: importing this module needs one of the extras that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit  # type: ignore[import-untyped,unused-ignore]


def compile_loop(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call; it runs without Python's lock.

    The machine code is kept on disk, beside the module or in the user's cache. Where neither can be written
    (a read-only container, a service without a home), each process compiles it again.
    """
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba: no locator available
        return njit(nogil=True)(function)
