"""`tacit.tabulate`: a table of counts for publication, with small counts suppressed or all rounded."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..anonymity.classes import check_columns
from ..anonymity.cube import count_cells
from ..anonymity.rounding import round_safely
from ..anonymity.suppress import find_small, suppress
from ..errors import BadData, MissingExtra
from ..parameters import bad
from ..parties.ledger import Ledger
from ..people import check_unique_names, encode_person
from ..results import JobResult

if TYPE_CHECKING:
    import pandas

METHODS = ("suppress", "round")


@dataclass
class TabulationResult(JobResult):
    """A table of counts, and what its readers can conclude about small ones."""

    title = "Table of counts"
    facts = ("by", "method", "k", "interval", "base", "cells", "small", "hidden")
    shows_index = False

    table: pandas.DataFrame = field(repr=False)  # one row per cell; a hidden count is missing
    # of the small cells: the smallest and largest count that agree with the table; not to be published
    intervals: pandas.DataFrame = field(repr=False)
    by: list[str]
    method: str
    k: int
    interval: int | None
    base: int | None
    cells: int
    small: int  # cells with fewer than k people, but not none
    hidden: int  # cells without a count: the small ones and others that protect them
    ledger: Ledger = field(default_factory=Ledger, repr=False)

    @property
    def value(self) -> pandas.DataFrame:
        return self.table


def tabulate(
    frame: pandas.DataFrame,
    by: Sequence[str],
    *,
    k: int = 5,
    method: str = "suppress",
    interval: int | None = None,
    base: int = 5,
    hierarchies: Mapping[str, Any] | None = None,
    person: str | None = None,
    exact: bool = False,
    total: str = "total",
) -> TabulationResult:
    """Count the rows of a table by one or more columns, with all totals, and protect small counts.

    method="suppress" hides the cells with fewer than k people, and others, so that a reader who solves all
    sums cannot tell a small cell from one of 1 or of `interval` people (default: k). Empty cells are shown.
    The choice of the others is quick, or with exact=True the one of least weight, for small tables.
    method="round" rounds all cells at random to multiples of `base`, up or down, and keeps all sums; it
    draws from the operating system's randomness and cannot be repeated.

    `hierarchies` adds subtotals (regions of districts). `person` is the column that tells whose a row is:
    a cell is then small if it has fewer than k people; the counts are of rows. `.intervals` of the result is
    for the owner only.
    """
    from pandas import DataFrame, array

    if not isinstance(frame, DataFrame):
        raise bad("tabulate", "frame", type(frame).__name__, "a pandas DataFrame")
    try:
        import scipy  # noqa: F401
    except ImportError:
        raise MissingExtra("tabulate", "anonymity", "scipy") from None
    check_unique_names(frame, "tabulate")
    names = check_columns(frame, by, "by", "tabulate")
    if method not in METHODS:
        raise bad("tabulate", "method", method, "one of " + ", ".join(map(repr, METHODS)))
    for name, number, least in (
        ("k", k, 2),
        ("interval", k if interval is None else interval, k),
        ("base", base, 2),
    ):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < least:
            what = "k, which is " if name == "interval" else ""
            raise bad("tabulate", name, number, f"a whole number of at least {what}{least}")
    unknown = sorted(set(hierarchies or {}) - set(names))
    if unknown:
        raise bad("tabulate", "hierarchies", unknown, "for the columns " + ", ".join(map(repr, names)))
    if not len(frame):
        raise BadData("The table has no rows. Pass a table with at least one row.")
    people = None if person is None else encode_person(frame, person, names, "tabulate")
    table = count_cells(frame, names, hierarchies or {}, total, people)
    width = int(k if interval is None else interval)
    if method == "round":
        small = find_small(table, k)
        counts, bounds = round_safely(table, int(base), small, random.SystemRandom())
        shown, hidden = array(counts, dtype="Int64"), 0
    else:
        mask, small, bounds = suppress(table, int(k), width, exact)
        shown, hidden = array(table.counts, dtype="Int64"), int(mask.sum())
        shown[mask] = None
    intervals = table.to_frame(table.counts).iloc[small].assign(low=bounds[:, 0], high=bounds[:, 1])
    return TabulationResult(
        table=table.to_frame(shown),
        intervals=intervals.reset_index(drop=True),
        by=names,
        method=method,
        k=int(k),
        interval=None if method == "round" else width,
        base=int(base) if method == "round" else None,
        cells=len(table.counts),
        small=len(small),
        hidden=hidden,
    )
