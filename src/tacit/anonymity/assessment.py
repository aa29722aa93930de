"""Comparison of two tables: re-identification risk, attribute disclosure and utility, before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..parameters import bad
from ..parties.ledger import Ledger
from ..people import check_unique_names, encode_person
from ..results import JobResult
from .accuracy import AccuracyScore, measure_accuracy
from .classes import check_columns
from .combinations import Combination, measure_combinations, share_by_column
from .compatibility import Compatibility, measure_compatibility
from .hierarchies import Hierarchy
from .losses import discernibility
from .measures import Utility, compare_column, match_rows, measure_utility
from .risk import THRESHOLDS, Exposure, find_warnings, measure_exposure

if TYPE_CHECKING:
    from pandas import DataFrame

    from .result import AnonymizationResult


@dataclass(frozen=True)
class Risk(JobResult):
    """The result of `tacit.risk`. `table()` shows the figures of both tables, `warnings` explain problems."""

    facts = ("value", "quasi", "sensitive", "target", "warnings")

    before: Exposure
    after: Exposure
    original_rows: int
    utility: Utility
    scores: tuple[AccuracyScore, ...]
    combinations: tuple[tuple[Combination, ...], tuple[Combination, ...]] = field(repr=False)  # before, after
    warnings: tuple[str, ...]
    quasi: tuple[str, ...]
    sensitive: tuple[str, ...]
    target: str | None = None
    compatibility: Compatibility | None = None  # for k-ambiguity, where rows need not be equal
    result: AnonymizationResult | None = field(default=None, repr=False)  # how `after` was produced, if known

    def table(self) -> DataFrame:
        """One row per measure, with columns before and after."""
        import pandas

        after = self._figures(self.after, self.utility)
        rows = {
            name: [value, after[name]]
            for name, value in self._figures(self.before, self._utility_before()).items()
        }
        if self.compatibility is not None:
            rows |= {
                "fewest published rows compatible with an original": [
                    self.before.k,
                    self.compatibility.published,
                ],
                "fewest originals compatible with a published row": [
                    self.before.k,
                    self.compatibility.originals,
                ],
                "average risk by compatibility": [
                    self.before.prosecutor.average,
                    self.compatibility.average,
                ],
            }
        for s in self.scores:
            rows[f"accuracy, {s.model}"] = [s.original, s.anonymous]
        return pandas.DataFrame.from_dict(rows, orient="index", columns=["before", "after"])

    def _utility_before(self) -> Utility:
        e = self.before
        return Utility(
            discernibility(e.sizes, e.suppressed, self.original_rows),
            e.rows / e.classes if e.classes else math.nan,
            0.0,
            0.0,
            1.0,
            e.suppressed,
        )

    def _figures(self, e: Exposure, utility: Utility) -> dict[str, float]:
        figures: dict[str, float] = {
            "rows published": e.rows,
            "rows suppressed": utility.suppressed,
            "classes": e.classes,
            "k": e.k,
            "unique rows": e.unique,
            "unique share": e.unique_share,
            "prosecutor risk, highest": e.prosecutor.highest,
            "prosecutor risk, average": e.prosecutor.average,
        }
        figures |= {
            f"rows with prosecutor risk above {t:g}": share for t, share in e.prosecutor.above.items()
        }
        figures |= {
            "journalist risk, highest": e.journalist.highest,
            "journalist risk, average": e.journalist.average,
            "marketer risk": e.marketer,
            **(
                {}
                if e.marketer_bounds is None
                else {
                    "marketer risk, at least": e.marketer_bounds[0],
                    "marketer risk, at most": e.marketer_bounds[1],
                }
            ),
            "population uniques": e.uniques,
        }
        for s in e.sensitive:
            figures |= {
                f"l of {s.column}": s.distinct,
                f"entropy l of {s.column}": s.entropy,
                f"t of {s.column}": s.t,
                f"rows that disclose {s.column}": s.homogeneous,
            }
        return figures | utility.to_dict()

    def rank_combinations(self) -> DataFrame:
        """Combinations of columns, those with the most minimal uniques first.

        `minimal` rows are unique on no proper subset of the columns.
        """
        import pandas

        after = {c.columns: c for c in self.combinations[1]}
        order = sorted(self.combinations[0], key=lambda c: (-c.minimal, -c.unique, len(c.columns), c.columns))
        rows = [
            {
                "columns": ", ".join(c.columns),
                "unique before": c.unique,
                "minimal before": c.minimal,
                "risk before": c.average,
                "unique after": after[c.columns].unique,
                "risk after": after[c.columns].average,
            }
            for c in order
        ]
        return pandas.DataFrame(rows)

    def by_column(self) -> dict[str, float]:
        """For each column, the share of the original's minimal uniques that involve it."""
        return share_by_column(self.combinations[0])

    @property
    def value(self) -> DataFrame:
        """`table()`, with the names of the measures as a column."""
        return self.table().rename_axis("measure").reset_index()

    @property
    def ledger(self) -> Ledger:
        """The ledger of `tacit.anonymize`, if its result was measured; measuring spends nothing."""
        return Ledger() if self.result is None else self.result.ledger

    def _page(self) -> str:
        from .report import render

        return render(self)

    def _summary(self) -> str:
        return "\n".join(f"warning: {w}" for w in self.warnings)

    def __str__(self) -> str:
        table = self.table().to_string(float_format=lambda v: f"{v:.4g}")
        return f"{table}\n{self._text()}"


def assess(
    before: DataFrame,
    after: DataFrame,
    quasi: Sequence[str],
    sensitive: Sequence[str] = (),
    *,
    hierarchies: Mapping[str, Hierarchy] | None = None,
    levels: Mapping[str, int | None] | None = None,
    population: DataFrame | None = None,
    population_size: int | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    combinations: int = 3,
    target: str | None = None,
    result: AnonymizationResult | None = None,
    person: str | None = None,
) -> Risk:
    """Measure both tables. `tacit.risk` is the public interface."""
    for frame in (before, after):
        check_unique_names(frame, "risk")
    quasi = check_columns(before, quasi, "quasi")
    sensitive = check_columns(before, sensitive, "sensitive", may_be_empty=True)
    both = [c for c in sensitive if c in quasi]
    if both:
        raise bad(
            "risk",
            "sensitive",
            sensitive,
            "columns that are not quasi-identifiers",
            f"{both[0]!r} is in both lists.",
        )
    check_columns(after, [*quasi, *sensitive], "in the table after")
    if not all(isinstance(t, int | float) and 0 < t < 1 for t in thresholds):
        raise bad("risk", "thresholds", list(thresholds), "numbers above 0 and below 1")
    if population is not None:
        check_columns(population, quasi, "quasi, in the population")
    if target is not None:
        check_columns(before, [target], "target")
        check_columns(after, [target], "target")
    if len(after) > len(before):
        raise bad(
            "risk",
            "after",
            f"{len(after):,} rows",
            f"at most the {len(before):,} rows of the table before",
            "Are the two tables in the right order?",
        )
    is_shuffled = result is not None and result.rows is None
    is_original = result is not None and result.original is not None and len(result.original) == len(before)
    position: np.ndarray | None = None
    if is_original and result is not None and result.rows is not None:
        position = result.rows
    elif not is_shuffled:
        position = match_rows(before, after)
    hierarchies, levels = hierarchies or {}, levels or {}
    columns = [compare_column(before, after, c, position, hierarchies.get(c), levels.get(c)) for c in quasi]
    persons = _number_people(before, after, position, person, result)
    exposures = [
        measure_exposure(
            frame,
            quasi,
            sensitive,
            population=people,
            population_size=population_size,
            thresholds=thresholds,
            person=whose,
        )
        for frame, people, whose in ((before, None, persons[0]), (after, population, persons[1]))
    ]
    others = [c for c in after.columns if c not in (*quasi, *sensitive, target, person)]
    warnings = find_warnings(after, quasi, exposures[1], others)
    if result is not None:  # except homogeneity, which is measured here
        warnings += [w for w in result.warnings if " a single value of " not in w]
    compatibility = None
    if result is not None and result.method == "ambiguity":
        compatibility = measure_compatibility(columns)
        if compatibility is not None:
            warnings = [w for w in warnings if "alone in their class" not in w]
            warnings.append(
                "Rows of this table need not be equal: k-ambiguity guarantees that every original is "
                f"compatible with at least k published rows (here {compatibility.published:,} or more). The "
                "measures by class do not apply to it."
            )
    if position is None:
        reason = "they are reordered" if is_shuffled else "rows are missing and the others are renumbered"
        warnings.append(
            f"Published rows cannot be matched to original rows ({reason}), so some measures of utility are "
            "not available."
        )
    return Risk(
        exposures[0],
        exposures[1],
        len(before),
        measure_utility(before, after, quasi, position, columns),
        tuple(measure_accuracy(before, after, target, columns, position)) if target is not None else (),
        (
            tuple(measure_combinations(before, quasi, combinations)),
            tuple(measure_combinations(after, quasi, combinations)),
        ),
        tuple(dict.fromkeys(warnings)),
        tuple(map(str, quasi)),
        tuple(map(str, sensitive)),
        target,
        compatibility,
        result,
    )


def _number_people(
    before: DataFrame,
    after: DataFrame,
    position: np.ndarray | None,
    person: str | None,
    result: AnonymizationResult | None,
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The person of each row of both tables, None where every row is one."""
    if person is None:
        return None, None
    whose = encode_person(before, person, [], "risk")
    if person in after.columns:
        return whose, encode_person(after, person, [], "risk")
    if position is not None:
        return whose, whose[position]
    if result is not None and result.rows is None:  # one row of each person was published
        return whose, None
    raise bad(
        "risk",
        "person",
        person,
        "a column of both tables, or of the table before if `after` is the result of tacit.anonymize",
    )
