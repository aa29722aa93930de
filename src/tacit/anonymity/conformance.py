"""check_anonymizer: what every method of the room must hold to. It reads the released table alone, with
pandas, not the codes it was made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas

from ..parameters import check, from_table, to_table
from .builders import Dates, Intervals, Prefixes
from .encoded import Encoded, encode
from .hierarchies import NULL, STAR, Hierarchy, spelling
from .models import KAnonymity
from .release import Release, Request, frame_of

QUASI = ["age", "zip", "born", "sex"]


def sample_table(rows: int, seed: int) -> pandas.DataFrame:
    """A small table with everything that has gone wrong somewhere: nulls, an empty string, repeated labels, a
    numeric column, a rare row.
    """
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
    """Raise AssertionError, saying what is wrong, unless the method gives tables as the room promises
    them.

    1. It is a frozen dataclass of declared parameters and comes back from its own TOML table.
    2. The same table twice gives the same release, and leaves the table as it was.
    3. Rows are published or suppressed, each once, no more suppressed than allowed; columns that are no quasi-identifiers are as they were.
    4. A published cell is the row's own value, a word above it in its hierarchy, or a range it lies in. A null is a value.
    5. Every published row looks like k − 1 others; of methods that promise compatibility, `ways` says which counts hold.
    6. The loss is the mean share of the domain the published cells stand for, a suppressed one 1.
    7. k = 1 changes nothing; k = all rows makes one class.
    """
    name = type(method).__name__
    declared = vars(type(method)).get("__dataclass_params__")
    demand(
        declared is not None and declared.frozen,
        f"{name} is no frozen dataclass: write @dataclass(frozen=True) above it.",
    )
    check(method)
    demand(
        from_table(to_table(method), {name: type(method)}, "method") == method,
        f"{name} does not come back from its own table.",
    )
    for seed in range(3):
        frame = sample_table(rows, seed)
        before = frame.copy(deep=True)
        for hierarchies in (
            {"zip": Prefixes(), "born": Dates()},
            {"age": Intervals(width=5.0), "zip": Prefixes(), "born": Dates()},
        ):
            for wanted, limit in ((k, None), (k, 0.25), (1, None), (rows, None)):
                table = encode(frame, QUASI, hierarchies)
                request = Request((KAnonymity(wanted),), limit)
                release, again = (
                    method.run(table, request),
                    method.run(encode(frame, QUASI, hierarchies), request),
                )
                out = frame_of(frame, table, release, starred=False)
                pandas.testing.assert_frame_equal(out, frame_of(frame, table, again, starred=False))
                pandas.testing.assert_frame_equal(frame, before)
                _is_a_release(name, frame, out, table, release, wanted, limit, ways)
                if wanted == 1:
                    demand(
                        release.loss == 0 and (release.record >= 0).all(),
                        f"{name}: k = 1 asks for nothing, and the loss is {release.loss}.",
                    )


def _is_a_release(
    name: str,
    frame: pandas.DataFrame,
    out: pandas.DataFrame,
    table: Encoded,
    release: Release,
    k: int,
    limit: float | None,
    ways: tuple[bool, bool],
) -> None:
    published = release.record >= 0
    demand(
        list(out.index) == list(frame.index[published]),
        f"{name}: the table's rows are not those that are not suppressed.",
    )
    if limit is not None:
        demand(
            int((~published).sum()) <= limit * len(frame),
            f"{name} suppresses {(~published).sum()} rows of {len(frame)}, limit {limit}.",
        )
    demand(list(out.columns) == list(frame.columns), f"{name}: other columns than before.")
    demand(
        out["diagnosis"].equals(frame["diagnosis"][published]),
        f"{name} changes a column that is no quasi-identifier.",
    )
    shares = []
    for column in table.columns:
        hierarchy = column.hierarchy
        for was, now in zip(frame[column.name][published], out[column.name]):
            share = _share(
                hierarchy,
                spelling(was),
                spelling(now),
                column.ranges,
                column.spread if column.ranges else 1.0,
            )
            if share is None:
                raise AssertionError(
                    f"{name}: {column.name} {was!r} was published as {now!r}, which is no word above it."
                )
            shares.append(share)
    gone = int((~published).sum()) * len(table.columns)
    loss = (sum(shares) + gone) / (len(frame) * len(table.columns))
    demand(
        abs(loss - release.loss) < 1e-5,
        f"{name}: the loss is {release.loss}, and the table's cells say {loss}.",
    )
    if release.alike:
        sizes = out.groupby(QUASI, dropna=False).size()
        least = int(sizes.min()) if len(out) else k
        demand(least >= k, f"{name}: a published row looks like {least} rows, k = {k}.")
        demand(k < len(frame) or len(sizes) <= 1, f"{name}: {len(sizes)} classes when k is all rows.")
    else:
        fits = np.array(list(_fitting(frame, out, table)))
        for way, axis, what in ((ways[0], 0, "an original fits"), (ways[1], 1, "a released row fits")):
            demand(
                not way or int(fits.sum(axis=axis).min()) >= k,
                f"{name}: {what} {int(fits.sum(axis=axis).min())} rows, k = {k}.",
            )


def _fitting(frame: pandas.DataFrame, out: pandas.DataFrame, table: Encoded) -> Iterator[list[bool]]:
    for _, now in out.iterrows():
        yield [
            all(
                _share(c.hierarchy, spelling(was[c.name]), spelling(now[c.name]), False, 1.0) is not None
                for c in table.columns
            )
            for _, was in frame.iterrows()
        ]


def _share(hierarchy: Hierarchy, was: str, now: str, ranges: bool, spread: float) -> float | None:
    """How much of the domain the published word stands for, or None if it does not cover the value."""
    at = hierarchy.values.index(was)
    if ranges and " – " in now:
        low, high = map(float, now.split(" – "))
        return (high - low) / spread if was != NULL and low <= float(was) <= high else None
    if ranges and now == STAR:
        return 1.0
    for level in hierarchy.levels:
        if level[at] == now:
            return (level.count(now) - 1) / max(len(hierarchy) - 1, 1)
    return None


def demand(fine: bool, words: str) -> None:
    if not fine:
        raise AssertionError(words)
