"""`check_anonymizer`: the conformance suite of anonymization methods.

It reads the released table with pandas, independently of the codes a method works on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas

from ..parameters import check, from_table, to_table
from .builders import Dates, Intervals, Prefixes
from .hierarchies import NULL, STAR, Hierarchy, spell
from .models import KAnonymity
from .release import AnonymizationRequest, TableRelease, build_frame
from .table import EncodedTable, encode

QUASI = ["age", "zip", "born", "sex"]


def sample_table(rows: int, seed: int) -> pandas.DataFrame:
    """A small table with known difficulties: nulls, an empty string, repeated values, numbers, a rare row."""
    rng = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "age": rng.integers(20, 60, rows),
            "zip": rng.choice(["37203", "37215", "37217", "37011"], rows),
            "born": rng.choice(["1964-03-15", "1965-09-20", "1965-02-14", "1967-02-13"], rows),
            "sex": rng.choice(["M", "F", ""], rows, p=[0.45, 0.45, 0.1]),
            "diagnosis": rng.choice(["flu", "cancer", "none"], rows),
        },
        index=[f"r{i}" for i in range(rows)],
    )
    frame.loc[frame.index[0], ["zip", "sex"]] = None
    return frame


def check_anonymizer(method: Any, k: int = 3, rows: int = 12, ways: tuple[bool, bool] = (True, True)) -> None:
    """Raise AssertionError with the reason unless the method satisfies these rules.

    1. It is a frozen dataclass of declared parameters and round-trips through its TOML table.
    2. The same table gives the same release twice, and is not modified.
    3. Every row is published or suppressed, and at most the allowed number is suppressed; other columns are
       unchanged.
    4. A published cell is the row's value, a word above it in its hierarchy, or a range that contains it. A
    null
       is a value.
    5. Every published row equals k − 1 others. For methods that guarantee compatibility instead, `ways` says
    in
       which directions: (originals, released rows).
    6. The loss is the mean share of the domain that the published cells cover; a suppressed cell costs 1.
    7. k = 1 changes nothing; k = all rows gives one class.
    """
    name = type(method).__name__
    declared = vars(type(method)).get("__dataclass_params__")
    demand(
        declared is not None and declared.frozen,
        f"{name} is not a frozen dataclass: decorate it with @dataclass(frozen=True).",
    )
    check(method)
    demand(
        from_table(to_table(method), {name: type(method)}, "method") == method,
        f"{name} does not round-trip through its TOML table.",
    )
    for seed in range(3):
        frame = sample_table(rows, seed)
        before = frame.copy(deep=True)
        for hierarchies in (
            {"zip": Prefixes(), "born": Dates()},
            {"age": Intervals(width=5.0), "zip": Prefixes(), "born": Dates()},
        ):
            for size, limit in ((k, None), (k, 0.25), (1, None), (rows, None)):
                table = encode(frame, QUASI, hierarchies)
                request = AnonymizationRequest((KAnonymity(size),), limit)
                release, again = (
                    method.run(table, request),
                    method.run(encode(frame, QUASI, hierarchies), request),
                )
                out = build_frame(frame, table, release, starred=False)
                pandas.testing.assert_frame_equal(out, build_frame(frame, table, again, starred=False))
                pandas.testing.assert_frame_equal(frame, before)
                _check_release(name, frame, out, table, release, size, limit, ways)
                if size == 1:
                    demand(
                        release.loss == 0 and (release.record >= 0).all(),
                        f"{name}: the loss is {release.loss} for k = 1, which changes nothing.",
                    )


def _check_release(
    name: str,
    frame: pandas.DataFrame,
    out: pandas.DataFrame,
    table: EncodedTable,
    release: TableRelease,
    k: int,
    limit: float | None,
    ways: tuple[bool, bool],
) -> None:
    published = release.record >= 0
    demand(
        list(out.index) == list(frame.index[published]),
        f"{name}: the rows of the table are not the unsuppressed rows.",
    )
    if limit is not None:
        demand(
            int((~published).sum()) <= limit * len(frame),
            f"{name} suppresses {(~published).sum()} rows of {len(frame)}, limit {limit}.",
        )
    demand(list(out.columns) == list(frame.columns), f"{name}: the columns have changed.")
    demand(
        out["diagnosis"].equals(frame["diagnosis"][published]),
        f"{name} changes a column that is not a quasi-identifier.",
    )
    shares = []
    for column in table.columns:
        hierarchy = column.hierarchy
        for value, word in zip(frame[column.name][published], out[column.name]):
            share = _covered_share(
                hierarchy,
                spell(value),
                spell(word),
                column.has_ranges,
                column.spread if column.has_ranges else 1.0,
            )
            if share is None:
                raise AssertionError(
                    f"{name}: {column.name} {value!r} was published as {word!r}, which does not cover it."
                )
            shares.append(share)
    suppressed = int((~published).sum()) * len(table.columns)
    loss = (sum(shares) + suppressed) / (len(frame) * len(table.columns))
    demand(
        abs(loss - release.loss) < 1e-5,
        f"{name}: the loss is {release.loss}, but the cells of the table give {loss}.",
    )
    if release.has_classes:
        sizes = out.groupby(QUASI, dropna=False).size()
        least = int(sizes.min()) if len(out) else k
        demand(least >= k, f"{name}: a published row is in a class of {least} rows, k = {k}.")
        demand(k < len(frame) or len(sizes) <= 1, f"{name}: {len(sizes)} classes if k is the number of rows.")
    else:
        fits = np.array(list(_compatible(frame, out, table)))
        for way, axis, what in ((ways[0], 0, "an original is"), (ways[1], 1, "a released row is")):
            demand(
                not way or int(fits.sum(axis=axis).min()) >= k,
                f"{name}: {what} compatible with {int(fits.sum(axis=axis).min())} rows, k = {k}.",
            )


def _compatible(frame: pandas.DataFrame, out: pandas.DataFrame, table: EncodedTable) -> Iterator[list[bool]]:
    originals, releases = (
        list(zip(*(map(spell, rows[c.name]) for c in table.columns))) for rows in (frame, out)
    )
    for released in releases:
        yield [
            all(
                _covered_share(c.hierarchy, value, word, False, 1.0) is not None
                for c, value, word in zip(table.columns, original, released)
            )
            for original in originals
        ]


def _covered_share(hierarchy: Hierarchy, value: str, word: str, ranges: bool, spread: float) -> float | None:
    """The share of the domain that a published word covers, or None if it does not cover the value."""
    at = hierarchy.values.index(value)
    if ranges and " – " in word:
        low, high = map(float, word.split(" – "))
        return (high - low) / spread if value != NULL and low <= float(value) <= high else None
    if ranges and word == STAR:
        return 1.0
    for level in hierarchy.levels:
        if level[at] == word:
            return (level.count(word) - 1) / max(len(hierarchy) - 1, 1)
    return None


def demand(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
