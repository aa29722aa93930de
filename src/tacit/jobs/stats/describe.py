"""Descriptive statistics across parties: `tacit.stats.describe` and what belongs to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pandas as pd

from ...data.cells import with_columns
from ...errors import BadData
from ...parameters import bad, propose
from ...parties.ledger import Ledger
from ...results import JobResult
from ...stats import table_one
from ...stats.columns import is_number_type, levels_of, text_of
from ...stats.declared import to_numbers
from ...stats.description import ALL, DescribeProgram, Descriptions
from ...stats.disclosure import LEAST
from ...stats.noisy import NoisyProgram, check_privacy
from ...stats.table_one import TableOptions
from ...stats.tables import check_frames
from .run import run_sums

DELTA = 1e-6  # below 1 / rows of all but national registers

Levels = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Description(JobResult):
    """What `describe` returns. `table1()` is for publication, `table` for further work."""

    title: ClassVar[str] = "Description"
    facts: ClassVar[tuple[str, ...]] = ("rows", "min_count", "table_1", "comparisons_table", "notes")

    found: Descriptions = field(repr=False)
    options: TableOptions
    ledger: Ledger = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> str:
        least = self.options.least
        hidden = table_one.hide_counts(self.found.rows, least)
        return ", ".join(
            f"{'all' if g == ALL else g}: {n if not hidden[g] else f'<{least}' if n < least else '–'}"
            for g, n in self.found.rows.items()
        )

    @property
    def min_count(self) -> int:
        return self.options.least

    @property
    def table(self) -> pd.DataFrame:
        """One row for each column, level and group, as numbers; NaN where a count is too small to show."""
        return table_one.tidy(self.found, self.options)

    @property
    def value(self) -> pd.DataFrame:
        return self.table

    @property
    def comparisons(self) -> pd.DataFrame | None:
        """The test of each column between the groups, and the standardized mean difference of two."""
        if self.options.by is None or len(self.found.rows) < 3:
            return None
        return table_one.compare_groups(self.found, self.options)

    def table1(self) -> pd.DataFrame:
        """Table 1 as texts: groups are columns."""
        return table_one.table_one(self.found, self.options, self.comparisons)

    def to_latex(self) -> str:
        return table_one.to_latex(self.table1())

    def to_html(self) -> str:
        return table_one.to_html(self.table1())

    @property
    def table_1(self) -> list[dict[str, str]]:
        table = self.table1()
        return [{"": str(i), **row} for i, row in zip(table.index, table.to_dict("records"))]  # type: ignore[dict-item]

    @property
    def comparisons_table(self) -> list[dict[str, Any]]:
        tests = self.comparisons
        return [] if tests is None else tests.reset_index().to_dict("records")

    def _repr_html_(self) -> str:
        return self.to_html()

    def _summary(self) -> str:
        return "\n".join([table_one.to_text(self.table1()), *self.notes])


def describe(
    fed: Any,
    columns: Sequence[str] | None = None,
    by: str | None = None,
    *,
    categories: Mapping[str, Sequence[Any]] | Iterable[str] = (),
    quantiles: Sequence[float] = (0.25, 0.5, 0.75),
    min_count: int = LEAST,
    epsilon: float | None = None,
    delta: float = DELTA,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Description:
    """Describe columns of all parties' rows together, as Table 1 does, overall and by group.

    Numeric columns: n, missing, mean, SD and quantiles. Other columns, and those in `categories`: counts of
    levels. `categories` maps a column to the levels to count (the rest is "other"), or names columns whose
    levels are taken from the tables. `by` compares groups: Welch's t test or ANOVA, χ², and the standardized
    mean difference. Counts of 1 to min_count − 1 are not shown.

    The result equals that of the pooled rows. Quantiles are of exact rank, and within 0.012% in value.

    With `epsilon` the sums have noise: (ε, δ)-differential privacy of one row. Numeric columns then need
    declared `bounds`, and categories (`by` too) declared levels. The table has 95% intervals, and the tests
    of groups p-values, that include the noise. The quantiles 0 and 1 are the extremes as far as the noise
    shows them.
    """
    frames = check_frames(fed, "stats.describe")
    check_count("stats.describe", "min_count", min_count)
    if epsilon is not None:
        frames = declare_numbers(frames, bounds)
    program = describe_program(frames, columns, by, categories, quantiles)
    if epsilon is not None:
        need_levels([*(name for name, _ in program.categories), *([by] if by else [])], categories)
    chosen = program if epsilon is None else add_noise(program, len(frames), epsilon, delta, bounds)
    found, ledger = run_sums(chosen, frames, runtime=runtime, guard=guard, owner="stats.describe")
    return conclude(program, found, ledger, min_count, epsilon)


def declare_numbers(frames: Mapping[str, pd.DataFrame], bounds: Any) -> dict[str, pd.DataFrame]:
    """Return tables whose columns with declared bounds are numbers, whatever one row holds."""
    names = bounds if isinstance(bounds, Mapping) else {}
    return {
        party: with_columns(frame, {c: to_numbers(frame[c]) for c in frame.columns if c in names})
        for party, frame in frames.items()
    }


def need_levels(names: Sequence[str], declared: Any, owner: str = "stats.describe") -> None:
    """Raise unless levels are declared: taken from rows, they would show that a level occurs."""
    known = declared if isinstance(declared, Mapping) else {}
    missing = [c for c in names if c not in known]
    if missing:
        raise bad(
            owner,
            "categories",
            declared,
            f"the levels of {' and '.join(map(repr, missing))} with epsilon, like "
            f"{propose('categories', {missing[0]: ['a', 'b']})}: "
            "taken from rows, they would show that a level occurs",
        )


def add_noise(
    program: DescribeProgram,
    parties: int,
    epsilon: float,
    delta: float,
    bounds: Mapping[str, Sequence[float]] | None,
    wants: tuple[str, ...] = ("moments", "histogram"),
    owner: str = "stats.describe",
    bins: int = 512,
) -> NoisyProgram:
    """Return the program with noise. Bounds are declared: taken from data, they would be somebody's."""
    check_privacy(owner, epsilon, delta)
    bounds = bounds or {}
    missing = [c for c in program.numeric if c not in bounds]
    if missing:
        raise bad(
            owner,
            "bounds",
            dict(bounds),
            f"the range of {', '.join(map(repr, missing))} too, with epsilon: "
            f"{propose('bounds', {missing[0]: [0, 120]})}",
            "State a range that is known without the data; numbers outside are clipped to it.",
        )
    numeric = tuple((c, *check_bounds(owner, bounds[c])) for c in program.numeric)
    return NoisyProgram(
        parties,
        float(epsilon),
        float(delta),
        numeric,
        program.categories,
        program.by,
        program.quantiles,
        bins,
        wants,
    )


def check_bounds(owner: str, bounds: Any) -> tuple[float, float]:
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise bad(
            owner, "bounds", bounds, "two numbers, the lower first: they are declared, not taken from data"
        )
    return low, high


def conclude(
    program: DescribeProgram,
    found: Descriptions,
    ledger: Ledger,
    least: int = LEAST,
    epsilon: float | None = None,
) -> Description:
    options = TableOptions(dict(program.categories), None if program.by is None else program.by[0], least)
    if epsilon is not None:  # noise protects small counts
        note = (
            f"Figures have noise for ε = {epsilon:g}; intervals are in the tidy table, and tests include it."
        )
        return Description(found, replace(options, least=1), ledger, (note,))
    notes = []
    if any(0 < n < least for n in found.rows.values()):
        notes.append(f"Groups of fewer than {least} rows are not shown (min_count).")
    return Description(found, options, ledger, tuple(notes))


def describe_program(
    frames: Mapping[str, pd.DataFrame],
    columns: Sequence[str] | None,
    by: str | None,
    categories: Mapping[str, Sequence[Any]] | Iterable[str],
    quantiles: Sequence[float],
) -> DescribeProgram:
    """Return the program for tables that the caller holds: kinds and levels are taken from them."""
    owner = "stats.describe"
    check_quantiles(owner, quantiles)
    check_list(owner, "columns", columns)
    names = common_columns(frames, owner) if columns is None else list(dict.fromkeys(columns))
    declared = dict(categories) if isinstance(categories, Mapping) else dict.fromkeys(categories)
    names = [c for c in names if c != by]
    need_columns(frames, [*names, *declared, *([by] if by else [])], owner)
    kinds = [f.dtypes for f in frames.values()]
    numeric = [c for c in names if c not in declared and all(is_number_type(k[c]) for k in kinds)]
    found = {c: levels(frames, c, declared.get(c), owner) for c in names if c not in numeric}
    group = None if by is None else (by, levels(frames, by, declared.get(by), owner)[1])
    return DescribeProgram(tuple(numeric), tuple(found.values()), group, tuple(map(float, quantiles)))


def check_count(owner: str, name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise bad(owner, name, value, "a whole number of at least 1")


def check_list(owner: str, name: str, columns: Any) -> None:
    if isinstance(columns, str):
        raise bad(owner, name, columns, f"a list of columns: [{columns!r}]")


def check_quantiles(owner: str, quantiles: Any) -> None:
    if isinstance(quantiles, str) or not isinstance(quantiles, Iterable):
        raise bad(owner, "quantiles", quantiles, "numbers between 0 and 1")
    for q in quantiles:
        if not isinstance(q, int | float) or not 0 <= q <= 1:
            raise bad(owner, "quantiles", q, "numbers between 0 and 1")


def levels(
    frames: Mapping[str, pd.DataFrame], column: str, declared: Sequence[Any] | None, owner: str
) -> Levels:
    """Return a column with its levels: those declared, or those in the tables."""
    if declared is None:
        return column, tuple(levels_of(frames, column, owner))
    names = tuple(map(text_of, declared))
    if not names or len(set(names)) < len(names):
        raise bad(owner, f"the levels of {column!r}", list(declared), "different values, at least one")
    return column, names


def common_columns(frames: Mapping[str, pd.DataFrame], owner: str) -> list[str]:
    """Return the columns of the tables, which must have the same."""
    first, *rest = frames.items()
    for name, frame in rest:
        if set(frame.columns) != set(first[1].columns):
            differ = sorted(map(str, set(frame.columns) ^ set(first[1].columns)))
            raise BadData(
                f"{owner}: the tables of {first[0]!r} and {name!r} differ in the columns "
                f"{', '.join(map(repr, differ[:8]))}. Name the columns to describe."
            )
    return [str(c) for c in first[1].columns]


def need_columns(frames: Mapping[str, pd.DataFrame], names: Iterable[str], owner: str) -> None:
    names = list(names)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise bad(owner, "a column", wrong[0], "the name of a column")
    missing = {
        party: lost for party, f in frames.items() if (lost := [c for c in names if c not in f.columns])
    }
    if missing:
        text = "; ".join(f"{party!r} has no {', '.join(map(repr, lost))}" for party, lost in missing.items())
        raise BadData(f"{owner}: {text}. Check the names of columns.")
