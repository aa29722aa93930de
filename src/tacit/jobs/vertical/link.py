"""`tacit.link`: which records of two tables belong to one person, without a common id."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import PartyFailed, QueryRefused
from ...linkage.blocks import read_keys
from ...linkage.fields import Field, read_fields, to_texts
from ...parameters import bad
from ...parties.ledger import Ledger
from ...results import JobResult
from ...runtimes.choose import choose_runtime
from ..threads import one_thread_if
from .link_program import LinkPlan, check_plan, link_rows, serve

if TYPE_CHECKING:
    import pandas as pd

HELPER = "helper"


@dataclass
class LinkResult(JobResult):
    """The records of two tables that belong to one person.

    `pairs`: a table with the position of the row in each party's table, one line a person. `sizes`: rows of
    each party. `blocks`: shared blocking values that were compared; `candidates`: pairs that were compared,
    with padding. `weights`: what each level of each field adds, in bits. `notes`: missing values, blocks that
    were left out.
    """

    title = "Linked records"
    facts = ("pairs", "people", "sizes", "blocks", "candidates", "threshold", "weights", "notes")
    shows_index = False

    pairs: pd.DataFrame
    sizes: dict[str, int]
    blocks: int
    candidates: int
    threshold: float
    weights: list[dict[str, Any]]
    ledger: Ledger
    notes: tuple[str, ...] = ()
    _left: Any = field(repr=False, default=None)
    _right: Any = field(repr=False, default=None)

    @property
    def value(self) -> pd.DataFrame:
        return self.pairs

    @property
    def people(self) -> int:
        return len(self.pairs)


def link(
    left: Any,
    right: Any,
    *,
    fields: Mapping[str, Any],
    threshold: float = 0.9,
    blocks: Any = None,
    overlap: float = 0.5,
    max_block: int = 32,
    names: tuple[str, str] = ("left", "right"),
    runtime: Any = None,
) -> LinkResult:
    """Find the records of two tables that belong to one person, by names, dates, addresses and codes.

    `left`, `right`: DataFrames. `fields`: the columns that both have, {column: kind}; a kind is "name",
    "text", "date", "code" or "category", or a table with `kind`, `m` and `u`, the probabilities that two
    records of one person, or of two, are equal and similar. `threshold`: the probability from which two
    records are one person. `overlap`: the expected share of the smaller table that the other has, too.
    `blocks`: lists of columns; only records that agree on all columns of one list are compared (None: all
    pairs of names, dates and codes). `max_block`: blocks with more rows at one party are left out.

    Both learn the matched rows, blocking values that both have, and their padded block sizes; similarities
    stay shared, and randomness comes from a helper. The result is one to one. Both programs and the helper's
    are executed and exchange messages.
    """
    import pandas as pd

    plan = make_plan(fields, threshold, blocks, overlap, max_block)
    check_names(names)
    tables = {}
    for who, frame in zip(names, (left, right)):
        if not isinstance(frame, pd.DataFrame) or not len(frame):
            given = type(frame).__name__ if not isinstance(frame, pd.DataFrame) else "a table without rows"
            raise bad("link", f"the table of {who!r}", given, "a DataFrame with at least one row")
        tables[who] = to_texts(frame, plan.fields, f"the table of {who!r}")
    ledger, settings = Ledger(), plan.to_dict()
    programs: dict[str, Any] = {HELPER: functools.partial(serve, names=list(names))}
    for who in names:
        programs[who] = functools.partial(
            link_rows, texts=tables[who], plan=settings, names=list(names), helper=HELPER
        )
    try:
        with one_thread_if(True):  # many small products: threads cost three times the CPU time
            results = choose_runtime("link", runtime, all_stay=True).run_sync(programs, ledger=ledger)
    except PartyFailed as failed:
        if isinstance(failed.error, QueryRefused):
            raise failed.error from None
        raise
    first, second = (results[who] for who in names)
    pairs = pd.DataFrame({who: np.asarray(r["rows"]) for who, r in zip(names, (first, second))})
    return LinkResult(
        pairs.sort_values(names[0], ignore_index=True),
        dict(zip(names, first["sizes"])),
        first["blocks"],
        first["candidates"],
        threshold,
        first["weights"],
        ledger,
        tuple(dict.fromkeys([*first["notes"], *second["notes"]])),
    )


def make_plan(
    fields: Any, threshold: Any, blocks: Any, overlap: Any, max_block: Any, where: str = "link"
) -> LinkPlan:
    """Check the options, and resolve the fields and the blocking keys."""
    found: tuple[Field, ...] = read_fields(fields, where)
    plan = LinkPlan(found, read_keys(blocks, found, where), threshold, overlap, max_block)
    check_plan(plan, where)
    return plan


def check_names(names: Any) -> None:
    valid = (
        isinstance(names, tuple | list) and len(names) == 2 and all(isinstance(n, str) and n for n in names)
    )
    if not valid or len({*names, HELPER}) < 3:
        raise bad("link", "names", names, f"two different words, neither {HELPER!r}")
