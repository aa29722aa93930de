"""AIM: R. McKenna, B. Mullins, D. Sheldon, G. Miklau.

*AIM: An Adaptive and Iterative Mechanism for Differentially Private Synthetic Data*, VLDB 2022, Algorithms 2
(the loop), 3 (initialization) and 4 (budget annealing).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ..parameters import whole
from .generator import Watch
from .graphical import Clique, Measurement, Model, count_cells, fit_model, tree_cells
from .marginals import Curator, Support
from .private import MarginalGenerator

MEASURE_SHARE = 0.9  # α of the paper: share of a round's budget for measuring; the rest is for selecting
ROUNDS = 16  # T = 16 d rounds before annealing
MOST_ROUNDS = 400  # for wide tables, where 16 d rounds would take half an hour; never fewer than 4 d
SCORED = 400  # candidates that are scored in a round; those of 27 columns and their pairs are fewer


def candidates(d: int, degree: int) -> dict[Clique, int]:
    """Line 5: the downward closure of all `degree`-way marginals, with weights.

    The weight of r is w_r = Σ |r ∩ s| over the sets s of the workload.
    """
    out = {}
    for size in range(1, degree + 1):
        # by symmetry: each column of a candidate is in C(d − 1, degree − 1) sets of the workload
        weight = size * math.comb(d - 1, degree - 1)
        out.update({clique: weight for clique in itertools.combinations(range(d), size)})
    return out


def fitting_candidates(
    closure: dict[Clique, int], cliques: set[Clique], model: Model, sizes: tuple[int, ...], room: float
) -> list[Clique]:
    """Line 12: candidates with which the model is not larger than `room`.

    With few candidates, each is triangulated; with many, the growth of the tree is bounded for pairs.
    """
    if len(closure) <= SCORED:
        return [c for c in closure if c in cliques or tree_cells(cliques | {c}, sizes) <= room]
    cells = sum(count_cells(c, sizes) for c in model.tree.cliques)
    bound = model.tree.growth_bounds(sizes)
    return [
        c
        for c in closure
        if c in cliques
        or (
            cells + bound(*c) <= room
            if len(c) == 2
            else len(c) == 1 or tree_cells(cliques | {c}, sizes) <= room
        )
    ]


def candidates_to_score(
    small: list[Clique], distances: dict[Clique, int], changed: set[int], public: np.random.Generator
) -> list[Clique]:
    """All candidates if they are few; otherwise new ones, those of changed columns, and some at random.

    The others keep the distance from an earlier model. It is one from earlier releases as well, so that its
    sensitivity is the same; only the choice is a little less informed.
    """
    if len(small) <= SCORED:
        return small
    due = [c for c in small if c not in distances or changed.intersection(c)]
    rest = sorted(set(small).difference(due))
    picked = public.choice(len(rest), min(len(rest), max(0, SCORED - len(due))), replace=False)
    return [*due, *(rest[i] for i in picked)]


def aim(
    curator: Curator, *, degree: int, max_cells: int, steps: int, watch: Watch = lambda event: None
) -> Model:
    """Run the mechanism and return the model."""
    d, rho, sizes = len(curator.sizes), curator.left, curator.sizes
    closure = candidates(d, min(degree, d))
    rounds = max(min(ROUNDS * d, MOST_ROUNDS), 4 * d)
    sigma, epsilon = (
        math.sqrt(rounds / (2 * MEASURE_SHARE * rho)),
        math.sqrt(8 * (1 - MEASURE_SHARE) * rho / rounds),
    )  # lines 6 and 7
    measurements: list[Measurement] = [
        curator.measure((j,), 1 / (2 * sigma**2)) for j in range(d)
    ]  # Algorithm 3
    model = fit_model(measurements, sizes, steps=steps)
    cliques: set[Clique] = {m.clique for m in measurements}
    distances: dict[Clique, int] = {}  # of the true counts from those the model had when they were scored
    changed: set[int] = set()
    public = np.random.default_rng(0)  # which candidates are scored again; it must not depend on the rows
    last = False
    while not last:
        if curator.left <= 2 * (epsilon**2 / 8 + 1 / (2 * sigma**2)):  # Algorithm 4: the last round
            sigma, epsilon = (
                math.sqrt(1 / (2 * MEASURE_SHARE * curator.left)),
                math.sqrt(8 * (1 - MEASURE_SHARE) * curator.left),
            )
            last = True
        # line 12: the model may grow as the budget is spent
        room = max_cells * (1 - (curator.left - epsilon**2 / 8 - 1 / (2 * sigma**2)) / rho)
        small = fitting_candidates(closure, cliques, model, sizes, room)
        noise = math.sqrt(2 / math.pi) * sigma  # the expected absolute noise of a cell

        def expected(clique: Clique, model: Model = model) -> np.ndarray:
            return model.marginal(clique) * model.total

        def penalty(clique: Clique, noise: float = noise) -> float:
            return noise * math.prod(sizes[c] for c in clique)

        for clique in candidates_to_score(small, distances, changed, public):
            distances[clique] = curator.distance(clique, expected(clique))
        chosen = curator.choose_by(
            small,
            [distances[c] for c in small],
            epsilon**2 / 8,
            weights=[closure[c] for c in small],
            penalty=penalty,
        )
        before = model.marginal(chosen) * model.total
        measurements.append(curator.measure(chosen, 1 / (2 * sigma**2)))
        cliques.add(chosen)
        changed = set(chosen)
        model = fit_model(measurements, sizes, steps=3 * steps if last else steps, start=model)
        # Algorithm 4: the update was smaller than the noise
        if abs(model.marginal(chosen) * model.total - before).sum() <= penalty(chosen):
            sigma, epsilon = sigma / 2, 2 * epsilon
        watch({"spent": 1 - curator.left / rho, "measured": len(measurements)})
    return model


@dataclass(frozen=True)
class AIM(MarginalGenerator):
    """Measures in every round the marginal that the model fits worst.

    Slower than MST, and closer to the data.
    """

    degree: int = whole(2, least=1, most=4, doc="workload: all marginals of this many columns")
    max_cells: int = whole(
        200_000, least=1_000, doc="maximum cells of the model; determines the running time"
    )
    steps: int = whole(
        60, least=1, doc="steps of mirror descent per measurement; three times as many after the last"
    )

    def estimate(self, curator: Curator, watch: Watch) -> tuple[Model, Support | None]:
        return aim(curator, degree=self.degree, max_cells=self.max_cells, steps=self.steps, watch=watch), None
