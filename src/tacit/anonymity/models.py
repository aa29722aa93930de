"""Privacy models: conditions on the equivalence classes of a published table.

Several models can be requested together; a class must satisfy all of them. A model decides class by class
(`holds`). It also declares what a search may conclude from one table about another:

is_monotone              Adding any rows to a class that satisfies the model keeps it satisfied. Then the rows
                         that a table suppresses are suppressed in every less general table, and the search
                         can tag tables without evaluating them, whatever the suppression limit.
is_closed_under_merging  Two classes that satisfy the model also satisfy it after merging, so tagging is
correct
                         without suppression. True of every model of single classes: each is an upper bound
                         on a convex function of the class's distribution, or a lower bound on a concave one.
is_per_class             False for a limit on a statistic of the whole table (`ThresholdModel`). If the
statistic
                         is too high, the smallest classes are suppressed until it is low enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import BadData
from ..parameters import bad, check, choice, real, whole
from . import population
from .classes import Classes, Histogram
from .coding import k_for
from .hierarchies import Hierarchy, as_hierarchy

ROUNDING = 1e-12  # a bound is satisfied by the bound itself, up to rounding


class PrivacyModel:
    """A condition on classes."""

    is_monotone = False
    is_closed_under_merging = True
    is_per_class = True
    needs_population = False
    compares_with_table = False  # with the distribution of sensitive values in the published table
    estimates_population = False  # from all classes of the table, published or not
    allows_suppression = True  # a class that is left out of the table no longer violates the model

    @property
    def is_verifiable(self) -> bool:
        """Whether the published classes alone tell if the model holds."""
        return not (self.needs_population or self.estimates_population)

    def holds(self, classes: Classes) -> np.ndarray:
        """Which classes satisfy the model."""
        raise TypeError(f"{type(self).__name__} does not implement holds()")


class SensitiveModel(PrivacyModel):
    """A condition on the sensitive values of each class."""

    column: str | None  # None: every sensitive column

    def holds(self, classes: Classes) -> np.ndarray:
        satisfied = np.ones(classes.number, bool)
        for column in [self.column] if self.column else classes.sensitive:
            satisfied &= self.holds_for(classes.histogram(column))
        return np.asarray(satisfied | (classes.sizes == 0))

    def holds_among(self, classes: Classes, published: np.ndarray) -> np.ndarray:
        """Which classes satisfy the model if only those are published: the table is compared with itself."""
        satisfied = np.ones(classes.number, bool)
        for column in [self.column] if self.column else classes.sensitive:
            histogram = classes.histogram(column)
            shown = published[histogram.group]
            overall = np.bincount(histogram.value[shown], histogram.rows[shown], len(histogram.column.words))
            with np.errstate(divide="ignore", invalid="ignore"):  # of values that are not published
                satisfied &= self.holds_for(histogram.compared_with(overall)) | ~published
        return np.asarray(satisfied | (classes.sizes == 0))

    def holds_for(self, histogram: Histogram) -> np.ndarray:
        """Which classes satisfy the model for one sensitive column; empty classes are ignored."""
        raise TypeError(f"{type(self).__name__} does not implement holds_for()")


@dataclass(frozen=True)
class KAnonymity(PrivacyModel):
    """Every published row shares its quasi-identifiers with the rows of at least k − 1 other people.

    Samarati, Sweeney 1998; Sweeney, IJUFKS 2002.
    """

    k: int = whole(5, least=1, doc="minimum number of rows in a class")
    is_monotone = True

    def holds(self, classes: Classes) -> np.ndarray:
        return np.asarray(classes.people >= self.k)


@dataclass(frozen=True)
class KMap(PrivacyModel):
    """Every published row matches at least k people of the population.

    Sweeney: "Computational Disclosure Control", 2001. With a population table, the people are counted.
    Without one, `fraction` is the sampling fraction of the table. A class then needs k′ rows: the smallest
    number such that a class of fewer than k people is that frequent in the sample with probability at most
    `significance` (the sampled rows of a class are modeled as Poisson).
    """

    k: int = whole(5, least=1, doc="minimum number of people of the population that match a class")
    fraction: float | None = real(
        None, above=0, most=1, none=True, doc="sampling fraction; None: count in population="
    )
    significance: float = real(
        0.01, above=0, below=1, doc="probability of accepting a class that is too small"
    )
    is_monotone = True

    @property
    def needs_population(self) -> bool:  # type: ignore[override]
        return self.fraction is None

    @property
    def min_rows(self) -> int:
        """k′, the rows a class needs if the population is estimated."""
        mean = (self.k - 1) * float(self.fraction or 1.0)
        below, k, term = 0.0, 0, math.exp(-mean)
        while 1 - (below := below + term) > self.significance:
            k += 1
            term *= mean / k
        return k + 1

    def holds(self, classes: Classes) -> np.ndarray:
        if self.fraction is None:
            return np.asarray((classes.population >= self.k) | (classes.sizes == 0))
        return np.asarray(classes.people >= self.min_rows)


@dataclass(frozen=True)
class LDiversity(SensitiveModel):
    """Every class has l well-represented sensitive values.

    Machanavajjhala, Kifer, Gehrke, Venkitasubramaniam: "ℓ-Diversity", TKDD 2007: distinct (l values), entropy
    (at least log l), recursive (r₁ < c·(r_l + … + r_m)).
    """

    l: float = real(2, least=1, doc="number of well-represented values")  # noqa: E741
    column: str | None = field(default=None, metadata=None)
    kind: str = choice("distinct", ("distinct", "entropy", "recursive"), doc="definition of well-represented")
    c: float = real(3.0, above=0, doc="factor of the recursive kind")

    def check(self) -> None:
        if self.kind != "entropy" and self.l != int(self.l):
            raise bad("LDiversity", "l", self.l, "a whole number", "Only the entropy kind accepts fractions.")

    @property
    def is_monotone(self) -> bool:  # type: ignore[override]
        return self.kind == "distinct"

    def holds_for(self, histogram: Histogram) -> np.ndarray:
        if self.kind == "distinct":
            return np.asarray(histogram.count_distinct() >= self.l)
        if self.kind == "entropy":  # l equally frequent values have entropy log l
            return np.asarray(histogram.entropy() >= math.log(self.l) - ROUNDING)
        order = np.lexsort((-histogram.rows, histogram.group))  # r₁ ≥ r₂ ≥ … in each class
        r = histogram.rows[order]  # triples are sorted by class, so only their order within a class changes
        rank = np.arange(len(r)) - np.searchsorted(histogram.group, histogram.group)
        first = histogram.sum_by_class(np.where(rank == 0, r, 0))
        tail = histogram.sum_by_class(np.where(rank >= int(self.l) - 1, r, 0))
        return np.asarray(first < self.c * tail)


@dataclass(frozen=True)
class TCloseness(SensitiveModel):
    """The sensitive values of a class are distributed as in the published table, within distance t.

    N. Li, T. Li, Venkatasubramanian: "t-Closeness", ICDE 2007; earth mover's distance. The distance between
    two values is 1 (equal), the height of their lowest common ancestor (hierarchical), or their difference in
    rank (ordered, for numbers). If rows are suppressed, the table is the one without them.
    """

    t: float = real(0.2, least=0, most=1, doc="maximum distance")
    column: str | None = field(default=None, metadata=None)
    distance: str = choice(
        "equal", ("equal", "hierarchical", "ordered"), doc="ground distance between two values"
    )
    hierarchy: Any = field(
        default=None, metadata=None
    )  # of the sensitive column, for distance="hierarchical"

    def check(self) -> None:
        if self.distance == "hierarchical" and self.hierarchy is None:
            raise bad(
                "TCloseness",
                "hierarchy",
                None,
                "a hierarchy of the sensitive column when distance is 'hierarchical'",
            )

    compares_with_table = True

    def holds_for(self, histogram: Histogram) -> np.ndarray:
        return np.asarray(self.measure(histogram) <= self.t + ROUNDING)

    def measure(self, histogram: Histogram) -> np.ndarray:
        """The distance of each class to the whole table."""
        column = histogram.column
        if self.distance == "equal":
            return histogram.equal_distance()
        if self.distance == "ordered":
            return histogram.ordered_distance(
                np.argsort([_parse_number(w, column.name) for w in column.words], kind="stable")
            )
        hierarchy = as_hierarchy(self.hierarchy, column.name, list(column.words))
        distances = [
            _tree_distance(p - histogram.overall, hierarchy, column.words) for p in histogram.dense_shares()
        ]
        return np.concatenate([np.zeros(0), *distances])


def _parse_number(word: str, column: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise BadData(
            f"distance='ordered' needs numbers, but column {column!r} contains {word!r}. Use "
            "distance='equal' or 'hierarchical'."
        ) from None


def _tree_distance(difference: np.ndarray, tree: Hierarchy, words: Sequence[str]) -> np.ndarray:
    """Earth mover's distance for differences [classes, values] under the hierarchical ground distance.

    The surplus of a subtree must leave it at cost height/H: the sum over nodes of min(surplus, deficit) of
    their children × height/H.
    """
    position = [tree.values.index(w) for w in words]
    total = np.zeros(len(difference))
    children, labels = difference, [tree.levels[0][p] for p in position]
    for height in range(1, tree.height + 1):
        above = [tree.levels[height][p] for p in position]
        parent = dict(zip(labels, above))
        parents = list(dict.fromkeys(above))
        index = np.array([parents.index(parent[w]) for w in dict.fromkeys(labels)])
        pick = (index[:, None] == np.arange(len(parents))).astype(float)
        surplus, deficit = np.maximum(children, 0) @ pick, np.maximum(-children, 0) @ pick
        total += np.minimum(surplus, deficit).sum(axis=1) * height / tree.height
        children, labels = children @ pick, above
    return total


@dataclass(frozen=True)
class DeltaPresence(PrivacyModel):
    """In every class, the share of the population that is in the table is between `least` and `most`.

    An attacker who knows the population then cannot tell who is in the table. Nergiz, Atzori, Clifton:
    "Hiding the Presence of Individuals from Shared Databases", SIGMOD 2007. If least > 0, suppression does
    not help (a suppressed class is known to be absent), so every class of the population must satisfy the
    model.
    """

    least: float = real(0.0, least=0, most=1, doc="δ_min")
    most: float = real(0.5, least=0, most=1, doc="δ_max")
    needs_population = True

    def check(self) -> None:
        if self.least > self.most:
            raise bad("DeltaPresence", "least", self.least, f"at most `most`, which is {self.most}")

    @property
    def allows_suppression(self) -> bool:  # type: ignore[override]
        return self.least == 0

    def holds(self, classes: Classes) -> np.ndarray:
        population = classes.population
        if (classes.sizes > population).any():
            raise BadData(
                "Some combinations have more rows in the table than in the population, so the table is not a "
                "subset of it. Pass the population the table was drawn from."
            )
        share = classes.sizes / np.maximum(population, 1)
        return np.asarray((share >= self.least) & (share <= self.most))


@dataclass(frozen=True)
class BetaLikeness(SensitiveModel):
    """No sensitive value is much more frequent in a class than in the table.

    (q − p)/p ≤ min(β, −ln p) (enhanced) or ≤ β (basic). Cao, Karras: "Publishing Microdata with a Robust
    Privacy Guarantee", PVLDB 2012.
    """

    beta: float = real(1.0, above=0, doc="β, the maximum relative gain")
    column: str | None = field(default=None, metadata=None)
    kind: str = choice("enhanced", ("enhanced", "basic"), doc="whether frequent values get a tighter limit")

    compares_with_table = True

    def holds_for(self, histogram: Histogram) -> np.ndarray:
        p = histogram.overall[histogram.value]
        limit = self.beta if self.kind == "basic" else np.minimum(self.beta, -np.log(p))
        violates = (histogram.share - p) / p > limit + ROUNDING
        return np.asarray(histogram.sum_by_class(violates) == 0)


@dataclass(frozen=True)
class DifferentialPrivacy(PrivacyModel):
    """(ε, δ)-differential privacy for one row, added or removed, by sampling and suppression.

    Each row is sampled with probability `fraction`. Its cells are generalized to levels that do not depend on
    the table, and combinations with fewer than k sampled rows are suppressed; k follows from ε, δ and the
    fraction. N. Li, W. Qardaji, D. Su: "On Sampling, Anonymization, and Differential Privacy", ASIACCS 2012.

    Use it with method=Fixed(levels=…), or with method="private", which chooses the levels by a mechanism with
    an ε of its own.
    """

    epsilon: float = real(1.0, above=0, doc="ε of the release; method='private' adds its own")
    delta: float = real(
        1e-6,
        above=0,
        below=1,
        doc="δ, the probability that ε does not hold; far below one over the number of rows",
    )
    fraction: float | None = real(
        None,
        above=0,
        below=1,
        none=True,
        doc="sampling probability of a row; None: the maximum for ε, 1 − exp(−ε)",
    )
    is_monotone = True

    def check(self) -> None:
        if self.fraction is not None and self.fraction > -math.expm1(-self.epsilon):
            raise bad(
                "DifferentialPrivacy",
                "fraction",
                self.fraction,
                f"at most 1 − exp(−ε) = {-math.expm1(-self.epsilon):.4f}",
            )

    @property
    def rate(self) -> float:
        # slightly below the maximum, so that rounding in k_for cannot reject ε
        return self.fraction if self.fraction is not None else -math.expm1(-self.epsilon) * (1 - 1e-9)

    @cached_property
    def k(self) -> int:
        return k_for(self.epsilon, self.delta, self.rate)

    def holds(self, classes: Classes) -> np.ndarray:
        return np.asarray(classes.sizes >= self.k)


class ThresholdModel(PrivacyModel):
    """An upper limit, `most`, on a statistic of all class sizes of the table."""

    most: float
    is_per_class = False

    def prepare(self, sizes: np.ndarray) -> Callable[[np.ndarray], float]:
        """Return the statistic as a function of the class sizes that are published.

        `sizes` are those of the whole table, from which a population is estimated.
        """
        raise TypeError(f"{type(self).__name__} does not implement prepare()")

    def measure(self, sizes: np.ndarray) -> float:
        """The statistic of a table with these class sizes."""
        return self.prepare(sizes)(sizes)

    def holds(self, classes: Classes) -> np.ndarray:
        return self.suppress_smallest(classes, np.ones(classes.number, bool))

    def suppress_smallest(self, classes: Classes, published: np.ndarray) -> np.ndarray:
        """Suppress the smallest published classes until the statistic is low enough; return the rest."""
        people = classes.people
        sizes = np.sort(people[published & (people > 0)])
        if not len(sizes):
            return published
        measure = self.prepare(people[people > 0])
        if measure(sizes) <= self.most:
            return published
        # suppressing the smallest classes never increases the statistic: bisect for the fewest
        steps = np.unique(sizes)
        low, high = -1, len(steps) - 1  # suppressing all classes is always enough
        while high - low > 1:
            middle = (low + high) // 2
            if measure(sizes[sizes > steps[middle]]) <= self.most:
                high = middle
            else:
                low = middle
        return np.asarray(published & ((people > steps[high]) | (people == 0)))


@dataclass(frozen=True)
class AverageRisk(ThresholdModel):
    """The average probability of re-identifying the person of a published row is at most `most`.

    This is classes / rows if the table is the whole population (prosecutor), and the mean of E[1/F | f] over
    rows if it is a sample of `population_size` people (marketer). El Emam: "Guide to the De-Identification of
    Personal Health Information", 2013. The estimate is that of `population.class_risk`, fitted to the classes
    of the table before any is suppressed; its bounds are shown by `tacit.risk`.
    """

    most: float = real(0.05, above=0, most=1, doc="maximum average")
    population_size: int | None = whole(
        None, least=1, none=True, doc="people the table is a random sample of; None: it contains all of them"
    )

    @property
    def is_closed_under_merging(self) -> bool:  # type: ignore[override]
        return self.population_size is None  # a population fitted to merged classes is another one

    @property
    def estimates_population(self) -> bool:  # type: ignore[override]
        return self.population_size is not None

    def prepare(self, sizes: np.ndarray) -> Callable[[np.ndarray], float]:
        def prosecutor(published: np.ndarray) -> float:
            return len(published) / int(published.sum())

        if self.population_size is None or prosecutor(sizes) <= self.most:
            return prosecutor  # 1/F is at most 1/f
        _check_population_size(self, int(sizes.sum()))
        distinct = np.unique(sizes)
        risk = np.zeros(int(distinct[-1]) + 1)
        risk[sizes] = population.class_risk(sizes, self.population_size)
        return lambda published: population.mean_risk(published, risk[published])


@dataclass(frozen=True)
class PopulationUniqueness(ThresholdModel):
    """The expected share of the population that is unique in it is at most `most`.

    It is estimated from the class sizes of the sample (models and assumptions: `population.py`). Dankar, El
    Emam, Neisa, Roffey: "Estimating the Re-identification Risk of Clinical Data Sets", 2012. The estimate may
    increase when classes are merged, so the search evaluates more nodes. A table for which the estimator has
    no fit does not satisfy the model.
    """

    population_size: int = whole(least=1, doc="people the table is a random sample of")
    most: float = real(0.01, least=0, most=1, doc="maximum share of the population")
    model: str = choice("dankar", tuple(population.MODELS), doc="estimator of population uniques")
    is_closed_under_merging = False

    def prepare(self, sizes: np.ndarray) -> Callable[[np.ndarray], float]:
        _check_population_size(self, int(sizes.sum()))
        return self._estimate

    def _estimate(self, sizes: np.ndarray) -> float:
        if not (sizes == 1).any():
            return 0.0
        estimate = population.MODELS[self.model](population.sample_of(sizes, self.population_size))
        return math.inf if math.isnan(estimate.uniques) else estimate.share


def _check_population_size(model: AverageRisk | PopulationUniqueness, rows: int) -> None:
    if model.population_size is not None and model.population_size < rows:
        raise bad(
            type(model).__name__,
            "population_size",
            model.population_size,
            f"at least {rows:,}, the rows of the table",
        )


ALL: dict[str, type[PrivacyModel]] = {
    "KAnonymity": KAnonymity,
    "KMap": KMap,
    "LDiversity": LDiversity,
    "TCloseness": TCloseness,
    "DeltaPresence": DeltaPresence,
    "BetaLikeness": BetaLikeness,
    "DifferentialPrivacy": DifferentialPrivacy,
    "AverageRisk": AverageRisk,
    "PopulationUniqueness": PopulationUniqueness,
}


def validate_models(
    models: Sequence[Any], sensitive: Sequence[str], population: Any
) -> tuple[PrivacyModel, ...]:
    """Check the models' parameters and that each has the columns and tables it needs."""
    for m in models:
        if not isinstance(m, PrivacyModel):
            raise bad("anonymize", "models", m, "a list of privacy models: " + ", ".join(ALL))
        check(m)
        name = type(m).__name__
        if isinstance(m, SensitiveModel):
            if not sensitive:
                raise bad(
                    "anonymize",
                    "sensitive",
                    sensitive,
                    f"a list of the sensitive columns, which {name} protects",
                )
            if m.column is not None and m.column not in sensitive:
                raise bad(
                    name,
                    "column",
                    m.column,
                    "one of the sensitive columns: " + ", ".join(map(repr, sensitive)),
                )
        if m.needs_population and population is None:
            raise bad(
                "anonymize", "population", None, f"a table of the population, which {name} compares with"
            )
    return tuple(models)


def find_differential_privacy(models: Sequence[PrivacyModel]) -> DifferentialPrivacy | None:
    return next((m for m in models if isinstance(m, DifferentialPrivacy)), None)


def check_models(models: Sequence[PrivacyModel], classes: Classes, is_table: bool = False) -> np.ndarray:
    """Which classes satisfy every model.

    `is_table`: these are all classes of a table, of which those that violate a model will be suppressed. Then
    models that compare a class with the table hold for the table that is left. Otherwise the classes are
    compared with `SensitiveColumn.overall`.
    """
    satisfied = np.ones(classes.number, bool)
    for m in models:
        if m.is_per_class and not (is_table and m.compares_with_table):
            satisfied &= m.holds(classes)
    # what one of these suppresses changes the table that the others measure
    relative = [m for m in models if is_table and isinstance(m, SensitiveModel) and m.compares_with_table]
    thresholds = [m for m in models if isinstance(m, ThresholdModel)]
    while relative or thresholds:
        before = satisfied
        for r in relative:
            satisfied = satisfied & r.holds_among(classes, satisfied)
        for m in thresholds:
            satisfied = m.suppress_smallest(classes, satisfied)
        if (satisfied == before).all():
            break
    return satisfied
