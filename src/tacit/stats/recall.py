"""Keep what a party computed from its table between the steps of a program.

A step of a program is a function of the table and of what was sent down. Its model matrix is the same in
every step and takes longer to build than a step, so the last one is kept as long as the table exists.
Functions that users call pass on a new table object, so a table that was changed since is never mistaken for
this one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import TypeVar

import pandas as pd

V = TypeVar("V")
_KEPT: dict[int, tuple[Hashable, object]] = {}


def recall(table: pd.DataFrame, key: Hashable, build: Callable[[], V]) -> V:
    """Return what `build` returned for this table and key, and build it if the last key was another."""
    kept = _KEPT.get(id(table))
    if kept is not None and kept[0] == key:
        return kept[1]  # type: ignore[return-value]
    if kept is None:
        weakref.finalize(table, _KEPT.pop, id(table), None)
    value = build()
    _KEPT[id(table)] = key, value
    return value
