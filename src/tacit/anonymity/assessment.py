"""Two tables compared: who could be found before, who after, what is still learnt, and what the second is
good for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..parameters import bad
from . import measures
from .accuracy import Score, accuracy
from .classes import columns_of
from .combinations import Combination, by_column, by_combination
from .compatibility import Fits, fits
from .hierarchies import Hierarchy
from .measures import Utility
from .risk import THRESHOLDS, Exposure, exposure, warnings_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from .result import Anonymized


@dataclass(frozen=True)
class Risk:
    """What `tacit.risk` gives back. `before` and `after` hold every figure; `table()` lays them side by side;
    `warnings` say what figures do not.
    """

    before: Exposure
    after: Exposure
    given: int  # rows of the original
    utility: Utility
    scores: tuple[Score, ...]
    combinations: tuple[tuple[Combination, ...], tuple[Combination, ...]] = field(repr=False)  # before, after
    warnings: tuple[str, ...]
    quasi: tuple[str, ...]
    sensitive: tuple[str, ...]
    target: str | None = None
    fits: Fits | None = None  # where rows need not look alike: who fits whom
    made: Anonymized | None = field(default=None, repr=False)  # how `after` came about, where that is known

    def table(self) -> DataFrame:
        """A row a measure, a column before and one after."""
        import pandas

        rows = {
            name: [a, b]
            for (name, a), b in zip(
                self._column(self.before, None).items(), self._column(self.after, self.utility).values()
            )
        }
        if self.fits is not None:
            rows["fewest published rows that fit an original"] = [self.before.k, self.fits.published]
            rows["fewest originals that fit a published row"] = [self.before.k, self.fits.originals]
            rows["average risk by what fits"] = [self.before.prosecutor.average, self.fits.average]
        for s in self.scores:
            rows[f"accuracy, {s.model}"] = [s.original, s.anonymous]
        return pandas.DataFrame.from_dict(rows, orient="index", columns=["before", "after"])

    def _column(self, e: Exposure, used: Utility | None) -> dict[str, float]:
        own = used or Utility(
            float((e.sizes.astype(float) ** 2).sum()) + float(e.suppressed) * self.given,
            e.rows / e.classes if e.classes else math.nan,
            0.0,
            0.0,
            1.0,
            e.suppressed,
        )
        out: dict[str, float] = {
            "rows published": e.rows,
            "rows suppressed": own.suppressed,
            "classes": e.classes,
            "k": e.k,
            "unique rows": e.unique,
            "unique share": e.unique_share,
            "prosecutor risk, highest": e.prosecutor.highest,
            "prosecutor risk, average": e.prosecutor.average,
        }
        out |= {f"rows with prosecutor risk above {t:g}": share for t, share in e.prosecutor.above.items()}
        out |= {
            "journalist risk, highest": e.journalist.highest,
            "journalist risk, average": e.journalist.average,
            "marketer risk": e.marketer,
            "population uniques": e.uniques,
        }
        for s in e.learnt:
            out |= {
                f"l of {s.column}": s.distinct,
                f"entropy l of {s.column}": s.entropy,
                f"t of {s.column}": s.t,
                f"rows that give away {s.column}": s.homogeneous,
            }
        return out | measures.as_dict(own)

    def singled_out(self) -> DataFrame:
        """Combinations of columns, those that single most rows out first; `minimal` rows are unique on no
        smaller part of them.
        """
        import pandas

        after = {c.columns: c for c in self.combinations[1]}
        rows = [
            {
                "columns": ", ".join(c.columns),
                "unique before": c.unique,
                "minimal before": c.minimal,
                "risk before": c.average,
                "unique after": after[c.columns].unique,
                "risk after": after[c.columns].average,
            }
            for c in sorted(
                self.combinations[0], key=lambda c: (-c.minimal, -c.unique, len(c.columns), c.columns)
            )
        ]
        return pandas.DataFrame(rows)

    def by_column(self) -> dict[str, float]:
        """For each column, the share of the original's minimal uniques that need it."""
        return by_column(self.combinations[0])

    def report(self, path: str | Path) -> Path:
        """Write the report, one self-contained HTML file."""
        from .report import write

        return write(self, path)

    def __str__(self) -> str:
        return "\n".join(
            [
                self.table().to_string(float_format=lambda v: f"{v:.4g}"),
                *(f"warning: {w}" for w in self.warnings),
            ]
        )


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
    made: Anonymized | None = None,
) -> Risk:
    quasi, sensitive = (
        columns_of(before, quasi, "quasi"),
        columns_of(before, list(sensitive), "sensitive", empty=True),
    )
    both = [c for c in sensitive if c in quasi]
    if both:
        raise bad(
            "risk",
            "sensitive",
            sensitive,
            "columns that are not quasi-identifiers",
            f"{both[0]!r} is in both lists.",
        )
    columns_of(after, [*quasi, *sensitive], "in the table after")
    if not all(isinstance(t, int | float) and 0 < t < 1 for t in thresholds):
        raise bad("risk", "thresholds", list(thresholds), "numbers above 0 and below 1")
    if population is not None:
        columns_of(population, quasi, "quasi, in the population")
    if target is not None:
        columns_of(before, [target], "target")
        columns_of(after, [target], "target")
    if len(after) > len(before):
        raise bad(
            "risk",
            "after",
            f"{len(after):,} rows",
            f"at most the {len(before):,} rows of the table before",
            "Did the two tables change places?",
        )
    known = made is not None and made.original is not None and len(made.original) == len(before)
    if made is not None and made.shuffled:
        at = None
    elif known and before.index.is_unique and after.index.isin(before.index).all():
        at = before.index.get_indexer(after.index)
    else:
        at = measures.aligned(before, after)
    cells = measures.columns(before, after, quasi, at, hierarchies, levels)
    told: dict[str, Any] = {"population_size": population_size, "thresholds": thresholds}
    was, now = (
        exposure(before, quasi, sensitive, **told),
        exposure(after, quasi, sensitive, population=population, **told),
    )
    used = measures.utility(before, after, quasi, at, cells)
    scores = accuracy(before, after, target, cells, at) if target is not None else []
    others = [c for c in after.columns if c not in quasi and c not in sensitive and c != target]
    found = tuple(tuple(by_combination(frame, quasi, combinations)) for frame in (before, after))
    said = warnings_of(after, quasi, now, others)
    # what the algorithm warned of, less homogeneity, which is measured here
    said += (
        [w for w in made.warnings if "have a single value of" not in w and w not in said]
        if made is not None
        else []
    )
    fitting = None
    if made is not None and made.method == "ambiguity":
        fitting = fits(cells)
        if fitting is not None:
            said = [w for w in said if "alone in their class" not in w]
            said.append(
                "Rows of this table need not look alike: k-ambiguity promises that every original fits at "
                "least k published rows (here "
                f"{fitting.published:,} or more), not that rows are equal. The measures by class do not "
                "apply to it."
            )
    if at is None:
        why = (
            "they are in an order of their own"
            if made is not None and made.shuffled
            else "rows are missing and were numbered anew"
        )
        said.append(
            f"Which published row was which original row cannot be told ({why}), so some measures of "
            "utility are left open."
        )
    return Risk(
        was,
        now,
        len(before),
        used,
        tuple(scores),
        (found[0], found[1]),
        tuple(dict.fromkeys(said)),
        tuple(map(str, quasi)),
        tuple(map(str, sensitive)),
        target,
        fitting,
        made,
    )
