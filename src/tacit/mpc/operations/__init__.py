"""The operations of an exported module (`export.py`) on values of a program: each handler emits its nodes."""

from __future__ import annotations

from . import arithmetic, layers, masks, recurrence, views
from .registry import HANDLERS, MASKED

__all__ = ["HANDLERS", "MASKED", "arithmetic", "layers", "masks", "recurrence", "views"]
