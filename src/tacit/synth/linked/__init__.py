"""Several tables with keys, and sequences of events: see `model.LinkedTables`."""

from __future__ import annotations

from .across import Total
from .evaluate import LinkedEvaluation, evaluate_linked
from .keys import ForeignKey, PrimaryKey
from .model import LinkedTables, load_linked
from .sequences import Sequences, evaluate_sequences, load_sequences
from .split import split_linked

__all__ = [
    "ForeignKey",
    "LinkedEvaluation",
    "LinkedTables",
    "PrimaryKey",
    "Sequences",
    "Total",
    "evaluate_linked",
    "evaluate_sequences",
    "load_linked",
    "load_sequences",
    "split_linked",
]
