"""`tacit.anonymize_again`: a later release of updated data, safe for readers of all releases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..anonymity.history import ReleaseHistory, collect_rows, number_people
from ..anonymity.losses import CELL_METRICS
from ..anonymity.release import (
    AnonymizationRequest,
    build_frame,
    format_count,
    make_step,
    price_rows,
    release_levels,
)
from ..anonymity.result import AnonymizationResult
from ..anonymity.table import encode
from ..anonymity.withhold import find_withheld
from ..errors import BadData
from ..parameters import bad, to_table
from ..people import check_unique_names, encode_person
from .anonymize import publish

if TYPE_CHECKING:
    import pandas


def anonymize_again(
    frame: pandas.DataFrame,
    after: ReleaseHistory | str | Path,
    *,
    hierarchies: Mapping[str, Any] | None = None,
    max_suppressed: float | None = None,
) -> AnonymizationResult:
    """Anonymize an updated table of the same people, after the releases in `after`.

    Columns, models, hierarchies and levels are those of the first release. People are left out of the new
    table where a comparison of the releases would be about fewer than k people, or about people with fewer
    than l sensitive values: newcomers until there are enough of them in a class, and people of a class that
    few have left. They are drawn by the operating system's randomness, so the result cannot be repeated.

    `after` is the history of the earlier releases, or its file (`.record_release().save(…)`).
    `hierarchies` may add values to the hierarchies of the first release. `max_suppressed` is the fraction of
    the rows that may be left out; None: any. Keep `.record_release()` of the result for the next release.
    """
    from pandas import DataFrame

    if not isinstance(frame, DataFrame):
        raise bad("anonymize_again", "frame", type(frame).__name__, "a pandas DataFrame")
    if max_suppressed is not None and (
        isinstance(max_suppressed, bool)
        or not isinstance(max_suppressed, int | float)
        or not 0 <= max_suppressed <= 1
    ):
        raise bad(
            "anonymize_again",
            "max_suppressed",
            max_suppressed,
            "a fraction of the rows between 0 and 1, or None (any)",
        )
    check_unique_names(frame, "anonymize_again")
    history = after if isinstance(after, ReleaseHistory) else ReleaseHistory.load(after)
    given = dict(hierarchies or {})
    unknown = sorted(set(given) - set(history.quasi))
    if unknown:
        raise bad(
            "anonymize_again",
            "hierarchies",
            unknown,
            "for the quasi-identifiers " + ", ".join(map(repr, history.quasi)),
        )
    needed = [*history.quasi, *history.sensitive, history.person]
    absent = [c for c in needed if c not in frame.columns]
    if absent:
        raise BadData(
            f"anonymize_again: the table has no column {', '.join(map(repr, absent))}, which the earlier "
            "releases have. Every release needs the same quasi-identifiers, sensitive columns and ids."
        )
    people = encode_person(frame, history.person, [*history.quasi, *history.sensitive], "anonymize_again")
    original, frame = frame, frame.drop(columns=history.person)
    table = encode(
        frame, history.quasi, history.merge_hierarchies(given), history.sensitive, history.nulls, None, people
    )
    for column in table.columns:
        history.check_hierarchy(column.name, column.hierarchy)
    levels = [history.levels[c] for c in history.quasi]
    release = release_levels(table, levels, np.zeros(0, np.int64), 0.0, [])
    live = np.flatnonzero(release.record >= 0)
    ids, number = number_people(original[history.person].iloc[live])
    rows = collect_rows(build_frame(frame, table, release, False), history.quasi, history.sensitive, number)
    is_withheld = find_withheld(history, ids, rows)
    release.record[live[is_withheld[number]]] = -1
    request = AnonymizationRequest(history.models, max_suppressed)
    left_out = int(is_withheld[number].sum())
    if not (release.record >= 0).any():
        raise BadData(
            "No row can be published: each would tell readers of the earlier releases about fewer people "
            "than the models allow. Wait for more data, or publish nothing."
        )
    if max_suppressed is not None and left_out > request.limit(table):
        raise BadData(
            f"{format_count(left_out)} of {table.rows:,} must be left out to protect them against readers of "
            f"the earlier releases, and at most {request.limit(table):,} may be suppressed. Raise "
            "max_suppressed, or wait for more data."
        )
    release.loss = price_rows(table, levels, release.record, CELL_METRICS["loss"](table))
    release.trace.append(
        make_step(
            f"At the levels of {format_count(len(history.releases), 'earlier release')}, "
            f"{format_count(left_out)} of "
            f"{format_count(int(is_withheld.sum()), 'person').replace('persons', 'people')} are left out, so "
            "that every group of people who are published in the same classes of the same releases satisfies "
            "the models.",
            suppressed=left_out,
            people=int(is_withheld.sum()),
        )
    )
    settings = {
        "models": [to_table(m) for m in history.models],
        "metric": "loss",
        "max_suppressed": max_suppressed,
        "nulls": history.nulls,
        "suppressed": "drop",
        "person": history.person,
        "releases": len(history.releases) + 1,
    }
    result = publish(
        frame, table, release, history.models, settings, "again", list(history.sensitive), history.person
    )
    result.original, result.builders, result.history = original, history.builders, history
    return result
