"""Re-identification risk (prosecutor, journalist, marketer) and attribute disclosure of one table.

f_j rows of the published table are in class j, F_j of the population; n rows are published, in J classes.

    attacker     knows                                   highest       average
    prosecutor   the person is in the table              1 / min f_j   J / n
    journalist   the person is in the population         1 / min F_j   max(J / Σ F_j, Σ (f_j / F_j) / n)
    marketer     everybody, and counts correct matches                 Σ (f_j / F_j) / n

K. El Emam: Guide to the De-Identification of Personal Health Information, 2013, chapters 10 to 14; F. Dankar,
K. El Emam: A method for evaluating marketer re-identification risk, PAIS 2010. F_j comes from a table of the
population, or is estimated from its size (`population.class_risk`), or is f_j. An estimated marketer risk has
bounds, which assume a random sample and nothing else about the population.

Attribute disclosure: k-anonymity (Sweeney 2002) bounds re-identification, not what a class reveals. Measured
are the smallest l by distinct values and by entropy (Machanavajjhala, Gehrke, Kifer, Venkitasubramaniam:
l-Diversity, ICDE 2006) and the largest t (Li, Li, Venkatasubramanian: t-Closeness, ICDE 2007), with the
equal distance, and for numbers also with the ordered one.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadData
from ..parameters import proposes_lines
from .classes import Classes, Histogram, classes_of
from .codes import encode_column
from .population import class_risk, dankar, marketer_bounds, mean_risk, sample_of

if TYPE_CHECKING:
    from pandas import DataFrame

# 1 in 20, 11, 5, 3 and 2: the limits of data custodians that El Emam's chapter 16 lists
THRESHOLDS = (0.05, 0.09, 0.2, 0.33, 0.5)


@dataclass(frozen=True)
class AttackerRisk:
    """The risk of one attacker. `above[τ]` is the share of rows whose risk exceeds τ."""

    average: float
    highest: float
    above: dict[float, float]


@dataclass(frozen=True)
class AttributeDisclosure:
    """What the classes reveal about one sensitive column."""

    column: str
    distinct: int  # l: the smallest number of different values in a class
    entropy: float  # entropy l: the smallest exp(entropy) of a class
    t: float  # the largest distance between a class and the table, equal ground distance
    t_ordered: float  # the same with ordered ground distance; NaN if the values are not numbers
    homogeneous: int  # rows in classes with a single value
    values: int  # different values in the published rows


@dataclass(frozen=True)
class Exposure:
    """The risk of one table."""

    rows: int  # published rows, in a class
    suppressed: int  # rows with * in every quasi-identifier
    classes: int
    k: int  # the smallest class; 0 if no row is published
    unique: int  # rows alone in their class
    prosecutor: AttackerRisk
    journalist: AttackerRisk
    marketer: float
    basis: str  # the source of F
    uniques: float  # expected number of population uniques
    uniques_by: str  # its estimator
    sensitive: tuple[AttributeDisclosure, ...]
    sizes: np.ndarray  # of the classes
    marketer_bounds: tuple[float, float] | None = None  # of the expectation, if it is estimated

    @property
    def unique_share(self) -> float:
        return self.unique / self.rows if self.rows else 0.0


def measure_exposure(
    frame: DataFrame,
    quasi: Sequence[str],
    sensitive: Sequence[str] = (),
    *,
    population: DataFrame | None = None,
    population_size: int | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    person: np.ndarray | None = None,
) -> Exposure:
    """Measure one table. With `person`, which numbers the people of the rows, people are counted."""
    classes = classes_of(frame, quasi, sensitive, person)
    f = classes.people
    prosecutor = _attacker(f, 1 / f, thresholds, f.size / f.sum() if f.size else 0.0)
    journalist, marketer, basis = prosecutor, prosecutor.average, "the table is the population"
    uniques, estimator = float((f == 1).sum()), "the table itself"
    bounds: tuple[float, float] | None = None
    if population is not None and f.size:
        people = _count_population(frame, population, quasi, classes)
        marketer = mean_risk(f, 1 / people)
        journalist = _attacker(f, 1 / people, thresholds, max(f.size / people.sum(), marketer))
        uniques = float((classes_of(population, quasi).sizes == 1).sum())
        basis, estimator = "a table of the population", "counted"
    elif population_size is not None and f.size:
        sample = sample_of(f, population_size)
        risk = class_risk(f, population_size)
        marketer, bounds = mean_risk(f, risk), marketer_bounds(sample)
        journalist = _attacker(f, risk, thresholds, max(0.0, marketer))
        estimate = dankar(sample)
        basis = f"estimated for {population_size:,} people"
        uniques, estimator = estimate.uniques, estimate.model
    return Exposure(
        classes.rows,
        len(frame) - classes.rows,
        f.size,
        int(f.min()) if f.size else 0,
        int((f == 1).sum()),
        prosecutor,
        journalist,
        marketer,
        basis,
        uniques,
        estimator,
        tuple(measure_disclosure(classes.histogram(column)) for column in sensitive),
        f,
        bounds,
    )


def _attacker(f: np.ndarray, risk: np.ndarray, thresholds: Sequence[float], average: float) -> AttackerRisk:
    n = f.sum()
    # 1/5 does not exceed 0.2, whatever the rounding
    above = {float(t): float(f[risk > t + 1e-12].sum() / n) if n else 0.0 for t in thresholds}
    return AttackerRisk(float(average), float(risk.max()) if f.size else 0.0, above)


def _count_population(
    frame: DataFrame, population: DataFrame, quasi: Sequence[str], classes: Classes
) -> np.ndarray:
    """F_j: people of the population in each class of the table."""
    import pandas as pd

    both = pd.concat(
        [frame[list(quasi)].astype(object), population[list(quasi)].astype(object)], ignore_index=True
    )
    label, n = classes_of(both, quasi).label, len(frame)
    inside = classes.label >= 0
    first = np.zeros(classes.number, dtype=np.int64)
    first[classes.label[inside]] = label[:n][inside]  # any row of a class gives its class in both tables
    people = label[n:]
    counts = np.bincount(people[people >= 0], minlength=int(label.max(initial=0)) + 1)[first]
    if (counts < classes.sizes).any():
        worst = int((counts < classes.sizes).argmax())
        row = frame.iloc[int((classes.label == worst).argmax())][list(quasi)].to_dict()
        raise BadData(
            f"risk: the population has {counts[worst]} rows like {row}, the published table has "
            f"{classes.sizes[worst]}. The population must contain everybody in the table, generalized in the "
            "same way."
        )
    return counts


def measure_disclosure(histogram: Histogram) -> AttributeDisclosure:
    """l and t of one sensitive column; a null is a value."""
    name = histogram.column.name
    if not histogram.rows.size:
        return AttributeDisclosure(name, 0, 0.0, 0.0, math.nan, 0, 0)
    distinct = histogram.count_distinct()
    return AttributeDisclosure(
        name,
        int(distinct.min()),
        float(np.exp(histogram.entropy().min())),
        float(max(0.0, histogram.equal_distance().max())),
        _max_ordered_distance(histogram),
        int(histogram.sizes[distinct == 1].sum()),
        int((histogram.overall > 0).sum()),
    )


def _max_ordered_distance(histogram: Histogram) -> float:
    try:
        numbers = np.array([float(w) for w in histogram.column.words])
    except ValueError:  # text, or a null
        return math.nan
    if len(numbers) < 2 or not np.isfinite(numbers).all():
        return math.nan
    return max(0.0, float(histogram.ordered_distance(np.argsort(numbers, kind="stable")).max()))


def find_warnings(
    frame: DataFrame, quasi: Sequence[str], exposure: Exposure, others: Sequence[str] = ()
) -> list[str]:
    """Problems that a single figure does not show."""
    warnings = []
    if not exposure.rows:
        warnings.append(
            "No row is published: every row has * in every quasi-identifier. Allow some rows to be "
            "suppressed (max_suppressed=0.05), give hierarchies with more levels, or name fewer "
            "quasi-identifiers."
            if len(frame)
            else "The table has no rows."
        )
    if exposure.unique:
        warnings.append(
            f"{exposure.unique:,} rows are alone in their class: an attacker who knows their "
            f"{', '.join(map(str, quasi))} finds them."
        )
    for s in exposure.sensitive:
        if s.values == 1:
            warnings.append(
                f"Every published row has the same {s.column!r}: an attacker who knows that a person is in "
                "the table knows it, whatever k is."
            )
        elif s.homogeneous:
            warnings.append(
                f"{s.homogeneous:,} rows are in classes with a single value of {s.column!r} (homogeneity): "
                f"an attacker who finds the class learns the value, although k is {exposure.k}. Use "
                "l-diversity (l=2 or more)."
            )
    if 0 < exposure.suppressed < max(exposure.k, 2):
        warnings.append(
            f"{exposure.suppressed} suppressed row{'s' if exposure.suppressed > 1 else ''} in the table, "
            f"fewer than k = {exposure.k}: a person who matches no class must be among them. Leave them out "
            "of the table, or suppress more."
        )
    missing = int(frame[list(quasi)].isna().any(axis=1).sum())
    if missing:
        warnings.append(
            f"{missing:,} rows have a null in a quasi-identifier. A null is a value of its own and does not "
            "match other values."
        )
    return warnings + find_identifiers(frame, others)


def find_identifiers(frame: DataFrame, others: Sequence[str]) -> list[str]:
    """Warnings for the unchanged columns that differ in every row, or in most."""
    import pandas

    warnings = []
    for c in others:
        if len(frame) < 2:
            continue
        counts = np.bincount(encode_column(frame[c])[0])
        if counts.max() == 1:
            warnings.append(
                f"The column {c!r} is neither a quasi-identifier nor sensitive and differs in every row: it "
                "may identify people. Drop it or pseudonymize it."
            )
        elif is_repeated_id(len(frame), counts) and not pandas.api.types.is_float_dtype(frame[c].dtype):
            warnings.append(
                f"The column {c!r} is neither a quasi-identifier nor sensitive and has {len(counts):,} "
                f"different values in {len(frame):,} rows: it may be an id of people with several rows. If "
                f"it tells whose a row is, {_propose_person(c)}; otherwise drop it or pseudonymize it."
            )
    return warnings


def _propose_person(column: str) -> str:
    return f"give --person {shlex.quote(column)}" if proposes_lines() else f"pass person={column!r}"


def is_repeated_id(rows: int, counts: np.ndarray) -> bool:
    """Whether values that occur `counts` times look like an id with repeats.

    Half of the rows or more have a value that fewer than ten share, and there are at least 50 values: with
    fewer, small tables of categories look the same.
    """
    return len(counts) >= 50 and 2 * int(counts[counts < 10].sum()) >= rows
