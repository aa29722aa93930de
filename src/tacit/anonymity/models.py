"""Privacy models: what a class of rows that look alike must satisfy. Several may be asked for at once; a
class must satisfy all.

A model answers class by class (`holds`). What a search may conclude from one table about a more general
one is stated beside it: `superset`  adding any rows to a class that satisfies the model keeps it
satisfied: then the suppressed rows of a table are suppressed in every
            table less general, and tables can be tagged without looking at them, whatever the limit of
            suppression.
`merges`    two classes that satisfy it, merged, satisfy it still, so that without suppression the tagging holds. True of every model that looks at a class
            (each is an upper bound on a convex function of the class's distribution, or a lower bound on a
            concave one).
`by_class`  False for thresholds on a figure of the whole table (`Threshold`). Where it is too high, the
smallest classes are suppressed until it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import BadData
from ..parameters import bad, check, choice, real, whole
from . import population
from .coding import k_for
from .encoded import Encoded, Sensitive
from .hierarchies import Hierarchy, as_hierarchy


@dataclass
class Classes:
    """A partition of a table's combinations: the class of each, and what models ask about it."""

    table: Encoded
    label: np.ndarray  # the class of each combination
    number: int

    def __post_init__(self) -> None:
        self.sizes = np.bincount(self.label, self.table.counts, self.number).astype(np.int64)

    @property
    def population(self) -> np.ndarray:
        if self.table.population is None:
            raise BadData(
                "This privacy model compares with a population, and none was given. Give anonymize(…, "
                "population=frame)."
            )
        return np.bincount(self.label, self.table.population, self.number).astype(np.int64)

    def histogram(self, column: str) -> tuple[Sensitive, np.ndarray]:
        """(the sensitive column, rows [classes, values])."""
        s = self.table.sensitive[column]
        v = len(s.words)
        return s, np.bincount(self.label[s.combination] * v + s.value, s.count, self.number * v).reshape(
            self.number, v
        )


class Model:
    superset = False
    merges = True
    by_class = True
    needs_population = False
    suppressible = True  # leaving a class out of the table settles the matter for its rows

    def holds(self, classes: Classes) -> np.ndarray:
        raise TypeError(f"{type(self).__name__} does not say which classes satisfy it")


@dataclass(frozen=True)
class KAnonymity(Model):
    """Every published row looks like at least k − 1 others. Samarati, Sweeney 1998; Sweeney, IJUFKS 2002."""

    k: int = whole(5, least=1, doc="rows a class must have")
    superset = True

    def holds(self, classes: Classes) -> np.ndarray:
        return classes.sizes >= self.k


@dataclass(frozen=True)
class KMap(Model):
    """Every published row looks like at least k people of the population. Sweeney: "Computational Disclosure
    Control", 2001.

    With a population table the people are counted. Without one, `fraction` says how large a part of the
    population the table is; then a class needs k′ rows, the least for which a class of fewer than k people
    would be that frequent in the sample with probability at most `significance` (sampled rows of a class are
    taken as Poisson).
    """

    k: int = whole(5, least=1, doc="people of the population a class must fit")
    fraction: float | None = real(
        None, above=0, most=1, none=True, doc="sampling fraction; None: count in population="
    )
    significance: float = real(
        0.01, above=0, below=1, doc="probability of a class too small being taken as large enough"
    )
    superset = True

    @property
    def needs_population(self) -> bool:  # type: ignore[override]
        return self.fraction is None

    @property
    def least(self) -> int:
        """k′, the rows a class needs when the population is estimated."""
        mean = (self.k - 1) * float(self.fraction or 1.0)
        below, k, term = 0.0, 0, math.exp(-mean)
        while 1 - (below := below + term) > self.significance:
            k += 1
            term *= mean / k
        return k + 1

    def holds(self, classes: Classes) -> np.ndarray:
        if self.fraction is None:
            return (classes.population >= self.k) | (classes.sizes == 0)
        return classes.sizes >= self.least


@dataclass(frozen=True)
class LDiversity(Model):
    """Every class has l well-represented sensitive values. Machanavajjhala, Kifer, Gehrke,
    Venkitasubramaniam: "ℓ-Diversity", TKDD 2007: distinct (l values), entropy (at least log l), recursive (r₁
    < c·(r_l + … + r_m)).
    """

    l: float = real(2, least=1, doc="how many")  # noqa: E741
    column: str | None = field(default=None, metadata=None)  # None: every sensitive column
    kind: str = choice("distinct", ("distinct", "entropy", "recursive"), doc="what well-represented means")
    c: float = real(3.0, above=0, doc="of the recursive kind")

    def check(self) -> None:
        if self.kind != "entropy" and self.l != int(self.l):
            raise bad("LDiversity", "l", self.l, "a whole number", "Only the entropy kind takes fractions.")

    @property
    def superset(self) -> bool:  # type: ignore[override]
        return self.kind == "distinct"

    def holds(self, classes: Classes) -> np.ndarray:
        fine = np.ones(classes.number, bool)
        for column in [self.column] if self.column else classes.table.sensitive:
            _, rows = classes.histogram(column)
            if self.kind == "distinct":
                fine &= (rows > 0).sum(axis=1) >= self.l
            elif self.kind == "entropy":
                p = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)
                h = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1)
                fine &= (
                    h >= math.log(self.l) - 1e-12
                )  # l equally frequent values have entropy log l up to rounding
            else:
                r = -np.sort(-rows, axis=1)
                tail = r[:, int(self.l) - 1 :].sum(axis=1) if self.l <= r.shape[1] else np.zeros(len(r))
                fine &= r[:, 0] < self.c * tail
        return fine | (classes.sizes == 0)


@dataclass(frozen=True)
class TCloseness(Model):
    """A class's sensitive values are distributed like the table's, within t in earth mover's distance. N. Li,
    T. Li, Venkatasubramanian: "t-Closeness", ICDE 2007: all values equally far (equal distance), as far as
    their lowest common ancestor is high (hierarchical), or as far as they lie apart in order (ordered,
    numbers).
    """

    t: float = real(0.2, least=0, most=1, doc="the largest distance")
    column: str | None = field(default=None, metadata=None)
    distance: str = choice(
        "equal", ("equal", "hierarchical", "ordered"), doc="ground distance between two values"
    )
    hierarchy: Any = field(
        default=None, metadata=None
    )  # of the sensitive column, for the hierarchical distance

    def check(self) -> None:
        if self.distance == "hierarchical" and self.hierarchy is None:
            raise bad(
                "TCloseness",
                "hierarchy",
                None,
                "a hierarchy of the sensitive column when distance is 'hierarchical'",
            )

    def holds(self, classes: Classes) -> np.ndarray:
        fine = np.ones(classes.number, bool)
        for column in [self.column] if self.column else classes.table.sensitive:
            fine &= (
                self.distances(classes, column) <= self.t + 1e-12
            )  # the bound itself is allowed, up to rounding
        return fine | (classes.sizes == 0)

    def distances(self, classes: Classes, column: str) -> np.ndarray:
        """Each class's distance to the whole table."""
        s, rows = classes.histogram(column)
        apart = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1) - s.overall / s.overall.sum()
        if self.distance == "equal":
            return np.abs(apart).sum(axis=1) / 2
        if self.distance == "ordered":
            order = np.argsort([_number(w, column) for w in s.words], kind="stable")
            return np.abs(np.cumsum(apart[:, order], axis=1)).sum(axis=1) / max(len(s.words) - 1, 1)
        return _tree_distance(apart, as_hierarchy(self.hierarchy, column, list(s.words)), s.words)


def _number(word: str, column: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise BadData(
            f"The ordered distance needs numbers, and column {column!r} has {word!r}. Use distance='equal' "
            "or 'hierarchical'."
        ) from None


def _tree_distance(apart: np.ndarray, tree: Hierarchy, words: tuple[str, ...]) -> np.ndarray:
    """What a subtree has too much must leave it, at height/H: the sum over nodes of min(surplus, want) of its
    children × height/H.
    """
    place = [tree.values.index(w) for w in words]
    total = np.zeros(len(apart))
    below = apart
    labels = [tree.levels[0][p] for p in place]
    for height in range(1, tree.height + 1):
        up = dict(zip(labels, (tree.levels[height][p] for p in place)))
        parents = list(dict.fromkeys(up.values()))
        child_of = np.array([parents.index(up[w]) for w in dict.fromkeys(labels)])
        children = below if height > 1 else _merged(apart, labels)
        plus, minus = np.maximum(children, 0), np.maximum(-children, 0)
        pick = (child_of[:, None] == np.arange(len(parents))).astype(float)
        total += np.minimum(plus @ pick, minus @ pick).sum(axis=1) * height / tree.height
        below = children @ pick
        labels = [tree.levels[height][p] for p in place]
    return total


def _merged(apart: np.ndarray, labels: list[str]) -> np.ndarray:
    assert len(set(labels)) == len(labels)  # level 0 of a hierarchy names each value once
    return apart


@dataclass(frozen=True)
class DeltaPresence(Model):
    """Whoever knows the population cannot tell who is in the table: in every class the part of the population
    that is in the table lies between `least` and `most`. Nergiz, Atzori, Clifton: "Hiding the Presence of
    Individuals from Shared Databases", SIGMOD 2007.

    With least > 0 suppression is no way out (a suppressed class is known to be absent), so every class of the
    population must satisfy it.
    """

    least: float = real(0.0, least=0, most=1, doc="δ_min")
    most: float = real(0.5, least=0, most=1, doc="δ_max")
    needs_population = True

    def check(self) -> None:
        if self.least > self.most:
            raise bad("DeltaPresence", "least", self.least, f"at most `most`, which is {self.most}")

    @property
    def suppressible(self) -> bool:  # type: ignore[override]
        return self.least == 0

    def holds(self, classes: Classes) -> np.ndarray:
        population = classes.population
        if (classes.sizes > population).any():
            raise BadData(
                "The table has more rows of some kind than the population: it is not a part of it. Give the "
                "population the table was drawn from."
            )
        share = classes.sizes / np.maximum(population, 1)
        return (share >= self.least) & (share <= self.most)


@dataclass(frozen=True)
class BetaLikeness(Model):
    """No sensitive value is much more frequent in a class than in the table: (q − p)/p ≤ min(β, −ln p)
    (enhanced) or ≤ β (basic). Cao, Karras: "Publishing Microdata with a Robust Privacy Guarantee", PVLDB
    2012.
    """

    beta: float = real(1.0, above=0, doc="β, the largest relative gain")
    column: str | None = field(default=None, metadata=None)
    kind: str = choice("enhanced", ("enhanced", "basic"), doc="whether frequent values are held tighter")

    def holds(self, classes: Classes) -> np.ndarray:
        fine = np.ones(classes.number, bool)
        for column in [self.column] if self.column else classes.table.sensitive:
            s, rows = classes.histogram(column)
            p = s.overall / s.overall.sum()
            q = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)
            there = p > 0
            most = (
                np.full(len(p), self.beta)
                if self.kind == "basic"
                else np.minimum(self.beta, -np.log(np.where(there, p, 1)))
            )
            gain = (q[:, there] - p[there]) / p[there]
            fine &= (gain <= most[there] + 1e-12).all(axis=1)
        return fine | (classes.sizes == 0)


@dataclass(frozen=True)
class DifferentialPrivacy(Model):
    """Each row is taken with probability `fraction`, its cells are generalised at levels that do not depend
    on the table, and what fewer than k taken rows share is suppressed: (ε, δ)-differential privacy for one
    row, added or removed. N. Li, W. Qardaji, D. Su: "On Sampling, Anonymization, and Differential Privacy",
    ASIACCS 2012. k follows from the three.

    Goes with method=Fixed(levels=…), or with method="private", which chooses levels by a mechanism with an ε
    of its own.
    """

    epsilon: float = real(1.0, above=0, doc="ε of the release; method='private' adds its own")
    delta: float = real(
        1e-6,
        above=0,
        below=1,
        doc="δ: the probability that ε does not hold; far below one in the number of rows",
    )
    fraction: float | None = real(
        None,
        above=0,
        below=1,
        none=True,
        doc="part of the rows to take; None: the most that ε allows, 1 − exp(−ε)",
    )
    superset = True

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
        # a hair below the most: k_for's own rounding must not put ε on the wrong side of it
        return self.fraction if self.fraction is not None else -math.expm1(-self.epsilon) * (1 - 1e-9)

    @cached_property
    def k(self) -> int:
        return k_for(self.epsilon, self.delta, self.rate)

    def holds(self, classes: Classes) -> np.ndarray:
        return classes.sizes >= self.k


class Threshold(Model):
    """A figure of the whole table, of its class sizes alone, that must not be above `most`."""

    most: float
    by_class = False

    def figure(self, sizes: np.ndarray) -> float:
        raise TypeError(f"{type(self).__name__} does not say what it measures")

    def holds(self, classes: Classes) -> np.ndarray:
        return self.keeps(classes, np.ones(classes.number, bool))

    def keeps(self, classes: Classes, fine: np.ndarray) -> np.ndarray:
        """Of the classes that other models leave, those left when the smallest are suppressed until the
        figure is low enough.
        """
        sizes = np.sort(classes.sizes[fine & (classes.sizes > 0)])
        if not len(sizes) or self.figure(sizes) <= self.most:
            return fine
        steps = np.unique(
            sizes
        )  # without the smallest classes no figure is higher: bisect for the fewest to leave out
        low, high = -1, len(steps) - 1  # leaving out all is always enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self.figure(sizes[sizes > steps[middle]]) <= self.most else (middle, high)
            )
        return fine & ((classes.sizes > steps[high]) | (classes.sizes == 0))


@dataclass(frozen=True)
class AverageRisk(Threshold):
    """The average chance of finding a published row's person is at most `most`: classes / rows where the
    table is all there is (the prosecutor's), the mean of
    E[1/F | f] over rows where it is a sample of `population_size` people (the marketer's). El Emam: "Guide to the De-Identification of Personal
    Health Information", 2013; Benedetti, Franconi 1998 for the estimate.
    """

    most: float = real(0.05, above=0, most=1, doc="the largest average")
    population_size: int | None = whole(
        None, least=1, none=True, doc="people the table is a random sample of; None: it is all of them"
    )

    def figure(self, sizes: np.ndarray) -> float:
        rows = int(sizes.sum())
        if self.population_size is None:
            return len(sizes) / rows
        _at_least(self, rows)
        return float(sizes @ population.expected_risk(sizes, rows / self.population_size)) / rows


@dataclass(frozen=True)
class PopulationUniqueness(Threshold):
    """At most this share of the population is expected to be unique in it, estimated from the sample's class
    sizes (`population.py` has the models and their assumptions). Dankar, El Emam, Neisa, Roffey: "Estimating
    the Re-identification Risk of Clinical Data Sets", 2012.

    The estimate need not fall when classes are merged, so the search looks at more nodes. A model without a
    fit for a table does not hold for it.
    """

    population_size: int = whole(least=1, doc="people the table is a random sample of")
    most: float = real(0.01, least=0, most=1, doc="the largest share of the population")
    model: str = choice("dankar", tuple(population.MODELS), doc="how uniques are estimated")
    merges = False

    def figure(self, sizes: np.ndarray) -> float:
        _at_least(self, int(sizes.sum()))
        found = (
            population.MODELS[self.model](population.sample_of(sizes, self.population_size))
            if (sizes == 1).any()
            else None
        )
        return 0.0 if found is None else math.inf if math.isnan(found.uniques) else found.share


def _at_least(model: AverageRisk | PopulationUniqueness, rows: int) -> None:
    if model.population_size is not None and model.population_size < rows:
        raise bad(
            type(model).__name__,
            "population_size",
            model.population_size,
            f"at least {rows:,}, the rows of the table",
        )


ALL: dict[str, type[Model]] = {
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
SENSITIVE = (LDiversity, TCloseness, BetaLikeness)


def checked(models: list[Any], sensitive: list[str], population: Any) -> tuple[Model, ...]:
    """The models, each valid and each with what it needs."""
    for m in models:
        if not isinstance(m, Model):
            raise bad("anonymize", "models", m, "a list of privacy models: " + ", ".join(ALL))
        check(m)
        if isinstance(m, SENSITIVE):
            if not sensitive:
                raise bad(
                    "anonymize",
                    "sensitive",
                    sensitive,
                    f"a list with the sensitive columns, which {type(m).__name__} protects",
                )
            if m.column is not None and m.column not in sensitive:
                raise bad(
                    type(m).__name__,
                    "column",
                    m.column,
                    "one of the sensitive columns: " + ", ".join(map(repr, sensitive)),
                )
        if m.needs_population and population is None:
            raise bad(
                "anonymize",
                "population",
                None,
                f"a table of the population, with which {type(m).__name__} compares",
            )
    return tuple(models)


def held(models: tuple[Model, ...], classes: Classes) -> np.ndarray:
    """Which classes satisfy every model."""
    fine = np.ones(classes.number, bool)
    for m in models:
        if m.by_class:
            fine &= m.holds(classes)
    thresholds = [m for m in models if isinstance(m, Threshold)]
    while thresholds:  # what one leaves out may raise another's figure
        before = fine
        for m in thresholds:
            fine = m.keeps(classes, fine)
        if (fine == before).all():
            break
    return fine
