"""Several tables with keys, and sequences of events: see `model.LinkedTables`."""

from __future__ import annotations

from .across import Total
from .keys import ForeignKey, PrimaryKey
from .model import LinkedTables, load_linked

__all__ = ["ForeignKey", "LinkedTables", "PrimaryKey", "Total", "load_linked"]
