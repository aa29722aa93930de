"""How easily somebody is found in a table: by the prosecutor, the journalist and the marketer; and what is
learnt about those who are.

f_j rows of the published table are in class j, F_j of the population; n rows are published, in J classes.

    prosecutor   knows that the person is in the table             highest 1 / min f_j     average J / n
    journalist   knows only that the person is in the population    highest 1 / min F_j     average max(J / Σ F_j, Σ (f_j / F_j) / n)
    marketer     matches everybody, and counts the right matches   Σ (f_j / F_j) / n, which is J / n where the table is the population

K. El Emam: Guide to the De-Identification of Personal Health Information, 2013, chapters 10 to 14; F.
Dankar, K. El Emam: A method for evaluating marketer re-identification risk, PAIS 2010. F_j comes from a
table of the population, or is estimated from its size (`population.py`), or is f_j.

What is learnt: k-anonymity (Sweeney 2002) bounds who is found, not what is said of them. The least l by
distinct values and by entropy (Machanavajjhala, Gehrke, Kifer, Venkitasubramaniam: l-Diversity, ICDE 2006)
and the largest t (Li, Li, Venkatasubramanian: t-Closeness, ICDE 2007), with the equal distance between
values, and between numbers with the ordered one too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadData
from .classes import Classes, classes_of, numbered, shares
from .hierarchies import NULL
from .population import Sample, dankar, expected_risk, sample_of

if TYPE_CHECKING:
    from pandas import DataFrame

THRESHOLDS = (
    0.05,
    0.09,
    0.2,
    0.33,
    0.5,
)  # 1 in 20, 11, 5, 3 and 2: the cut-offs of the data custodians that El Emam's chapter 16 lists


@dataclass(frozen=True)
class Attacker:
    """What one attacker reaches. `above[τ]` is the share of rows whose risk is larger than τ."""

    average: float
    highest: float
    above: dict[float, float]


@dataclass(frozen=True)
class Learnt:
    """What the classes say about one sensitive column."""

    column: str
    distinct: int  # the least number of different values in a class: l
    entropy: float  # the least exp(entropy) of a class: entropy-l
    t: float  # the largest distance between a class and the table, equal ground distance
    t_ordered: float  # the same with ordered ground distance; NaN where the values are no numbers
    homogeneous: int  # rows in classes with one value only: whoever is found there is found out
    values: int  # different values in the published rows


@dataclass(frozen=True)
class Exposure:
    """The risk of one table."""

    rows: int  # published, in a class
    suppressed: int  # rows that show * in every quasi-identifier
    classes: int
    k: int  # the smallest class; 0 where no row is published
    unique: int  # rows alone in their class
    prosecutor: Attacker
    journalist: Attacker
    marketer: float
    basis: str  # where F comes from
    uniques: float  # expected number of population uniques
    uniques_by: str  # the model that says so
    learnt: tuple[Learnt, ...]
    sizes: np.ndarray  # of the classes

    @property
    def unique_share(self) -> float:
        return self.unique / self.rows if self.rows else 0.0


def exposure(
    frame: DataFrame,
    quasi: Sequence[str],
    sensitive: Sequence[str] = (),
    *,
    population: DataFrame | None = None,
    population_size: int | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Exposure:
    found = classes_of(frame, quasi)
    f = found.sizes
    own = _attacker(f, 1 / f, thresholds, f.size / f.sum() if f.size else 0.0)
    other, marketer, basis = own, own.average, "the table is the population"
    uniques, by = float((f == 1).sum()), "the table itself"
    if population is not None and f.size:
        many = _in_population(frame, population, quasi, found)
        other, marketer = _against(f, 1 / many, thresholds, f.size / many.sum())
        basis, uniques, by = (
            "a table of the population",
            float((_population(population, quasi) == 1).sum()),
            "counted",
        )
    elif population_size is not None and f.size:
        sample: Sample = sample_of(f, population_size)
        other, marketer = _against(f, expected_risk(f, sample.fraction), thresholds, 0.0)
        guess = dankar(sample)
        basis, uniques, by = f"estimated for {population_size:,} people", guess.uniques, guess.model
    learnt = tuple(learn(frame, found, column) for column in sensitive)
    return Exposure(
        found.rows,
        found.suppressed,
        f.size,
        int(f.min()) if f.size else 0,
        int((f == 1).sum()),
        own,
        other,
        marketer,
        basis,
        uniques,
        by,
        learnt,
        f,
    )


def _attacker(f: np.ndarray, risk: np.ndarray, thresholds: Sequence[float], average: float) -> Attacker:
    n = f.sum()
    above = {
        float(t): float(f[risk > t + 1e-12].sum() / n) if n else 0.0 for t in thresholds
    }  # 1/5 is not above 0.2, whatever the last bit
    return Attacker(float(average), float(risk.max()) if f.size else 0.0, above)


def _against(
    f: np.ndarray, risk: np.ndarray, thresholds: Sequence[float], floor: float
) -> tuple[Attacker, float]:
    """The journalist and the marketer, from the risk of one row of each class."""
    matched = float((f * risk).sum() / f.sum())
    return _attacker(f, risk, thresholds, max(floor, matched)), matched


def _population(population: DataFrame, quasi: Sequence[str]) -> np.ndarray:
    return classes_of(population, quasi).sizes


def _in_population(
    frame: DataFrame, population: DataFrame, quasi: Sequence[str], found: Classes
) -> np.ndarray:
    """F_j: how many of the population are in each class of the table."""
    import pandas as pd

    both = pd.concat(
        [frame[list(quasi)].astype(object), population[list(quasi)].astype(object)], ignore_index=True
    )
    of, n = classes_of(both, quasi).of, len(frame)
    first = np.zeros(found.sizes.size, dtype=np.int64)
    first[found.of[found.of >= 0]] = of[:n][
        found.of >= 0
    ]  # any row of a class says which class it is in both tables
    counts = np.bincount(of[n:][of[n:] >= 0], minlength=int(of.max(initial=0)) + 1)[first]
    if (counts < found.sizes).any():
        worst = int((counts < found.sizes).argmax())
        row = frame.iloc[int((found.of == worst).argmax())][list(quasi)].to_dict()
        raise BadData(
            f"risk: the population has {counts[worst]} rows like {row}, the published table "
            f"{found.sizes[worst]}. The population must hold everybody "
            "in the table, generalised in the same way."
        )
    return counts


def learn(frame: DataFrame, found: Classes, column: str) -> Learnt:
    """l and t as they are, for one sensitive column; a null is a value."""
    group, value, counts, kinds, words = shares(found.of, frame[column])
    if not counts.size:
        return Learnt(column, 0, 0.0, 0.0, math.nan, 0, 0)
    sizes = found.sizes
    part = counts / sizes[group]
    distinct = np.bincount(group, minlength=sizes.size)
    entropy = np.bincount(group, -part * np.log(part), minlength=sizes.size)
    overall = np.bincount(value, counts, minlength=kinds) / sizes.sum()
    # ½ Σ |p − q| over all values: those that are not in the class add their q
    t = 0.5 * (np.bincount(group, np.abs(part - overall[value]) - overall[value], minlength=sizes.size) + 1)
    return Learnt(
        column,
        int(distinct.min()),
        float(np.exp(entropy.min())),
        float(max(0.0, t.max())),
        _ordered(group, value, part, overall, words, sizes.size),
        int(sizes[distinct == 1].sum()),
        int((overall > 0).sum()),
    )


def _ordered(
    group: np.ndarray,
    value: np.ndarray,
    part: np.ndarray,
    overall: np.ndarray,
    words: list[str],
    classes: int,
) -> float:
    """Li et al., section 5.1: with m ordered values, 1/(m−1) Σ_i |Σ_{j≤i} (p_j − q_j)|."""
    try:
        at = np.array([float(w) for w in words if w != NULL])
    except ValueError:
        return math.nan
    if len(at) < len(words) or len(at) < 2 or not np.isfinite(at).all():
        return math.nan
    order = np.argsort(at)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    q = np.cumsum(overall[order])
    worst = 0.0
    by = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[by], np.arange(classes + 1))
    for c in range(classes):  # a class at a time: classes × values may not fit into memory
        mine = by[edges[c] : edges[c + 1]]
        p = np.zeros(len(at))
        p[rank[value[mine]]] = part[mine]
        worst = max(worst, float(np.abs(np.cumsum(p) - q).sum() / (len(at) - 1)))
    return worst


def warnings_of(
    frame: DataFrame, quasi: Sequence[str], found: Exposure, others: Sequence[str] = ()
) -> list[str]:
    """What a number alone does not say."""
    said = []
    if not found.rows:
        said.append(
            "No row is published: every quasi-identifier of every row shows *."
            if len(frame)
            else "The table has no rows."
        )
    if found.unique:
        said.append(
            f"{found.unique:,} rows are alone in their class: whoever knows their "
            f"{', '.join(map(str, quasi))} finds them."
        )
    for told in found.learnt:
        if told.values == 1:
            said.append(
                f"Every published row has the same {told.column!r}: whoever knows that somebody is in the "
                "table knows it, whatever k is."
            )
        elif told.homogeneous:
            said.append(
                f"{told.homogeneous:,} rows lie in classes where all have the same {told.column!r} "
                "(homogeneity): finding the class is enough to "
                f"learn it, although k is {found.k}. Ask for l-diversity (l=2 or more)."
            )
    if 0 < found.suppressed < max(found.k, 2):
        said.append(
            f"{found.suppressed} suppressed row{'s' if found.suppressed > 1 else ''} remain in the table, "
            f"fewer than k = {found.k}: whoever fits no "
            "class must be among them. Leave them out of the table, or suppress more."
        )
    missing = int(frame[list(quasi)].isna().any(axis=1).sum())
    if missing:
        said.append(
            f"{missing:,} rows have a null in a quasi-identifier. A null counts as a value of its own, not "
            "as one that fits everywhere."
        )
    return said + naming(frame, others)


def naming(frame: DataFrame, others: Sequence[str]) -> list[str]:
    """Which of the columns that are published as they are tell every row from every other."""
    alone = [c for c in others if len(frame) > 1 and numbered(frame[c])[0].max() + 1 == len(frame)]
    return [
        f"The column {c!r} is neither a quasi-identifier nor sensitive and differs in every row: it may "
        "name people by itself. Drop it or pseudonymise it."
        for c in alone
    ]
