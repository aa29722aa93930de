"""AIM: McKenna, Mullins, Sheldon, Miklau: *AIM: An Adaptive and Iterative Mechanism for Differentially
Private Synthetic Data*, VLDB 2022, Algorithms 2 (the loop), 3 (initialisation) and 4 (budget annealing).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ..parameters import whole
from .generator import Watch
from .graphical import Clique, Measurement, Model, fit, tree_cells
from .marginals import Curator, Support
from .private import MarginalGenerator

SHARE = 0.9  # α of the paper: what a round keeps for measuring; the rest pays for choosing
ROUNDS = 16  # T = 16 d: rounds before any annealing


def candidates(d: int, degree: int) -> dict[Clique, int]:
    """Line 5: W₊, the workload of all `degree`-way marginals and their subsets, with w_r = Σ over the workload of |r ∩ s|."""
    out = {}
    for size in range(1, degree + 1):
        # every set of `size` columns meets the workload alike: each of its columns lies in C(d − 1, degree −
        # 1) sets
        weight = size * math.comb(d - 1, degree - 1)
        out.update({clique: weight for clique in itertools.combinations(range(d), size)})
    return out


def aim(
    curator: Curator, *, degree: int, max_cells: int, steps: int, watch: Watch = lambda event: None
) -> Model:
    d, rho, sizes = len(curator.sizes), curator.rho, curator.sizes
    closure = candidates(d, min(degree, d))
    rounds = ROUNDS * d
    sigma, epsilon = (
        math.sqrt(rounds / (2 * SHARE * rho)),
        math.sqrt(8 * (1 - SHARE) * rho / rounds),
    )  # lines 6 and 7
    measured: list[Measurement] = [curator.measure((j,), 1 / (2 * sigma**2)) for j in range(d)]  # Algorithm 3
    model = fit(measured, sizes, steps=steps)
    sets: set[Clique] = {m.clique for m in measured}
    last = False
    while not last:
        if curator.left <= 2 * (
            epsilon**2 / 8 + 1 / (2 * sigma**2)
        ):  # Algorithm 4: what is left is one last round's
            sigma, epsilon = (
                math.sqrt(1 / (2 * SHARE * curator.left)),
                math.sqrt(8 * (1 - SHARE) * curator.left),
            )
            last = True
        used = 1 - (curator.left - epsilon**2 / 8 - 1 / (2 * sigma**2)) / rho
        room = max_cells * used  # line 12: the model may grow as the budget is spent
        small = [c for c in closure if c in sets or tree_cells(sets | {c}, sizes) <= room]
        noise = math.sqrt(2 / math.pi) * sigma  # the expected absolute noise of a cell

        def expected(clique: Clique, model: Model = model) -> np.ndarray:
            return model.marginal(clique) * model.total

        def penalty(clique: Clique, noise: float = noise) -> float:
            return noise * math.prod(sizes[c] for c in clique)

        chosen = curator.choose(
            small, expected, epsilon**2 / 8, weights=[closure[c] for c in small], penalty=penalty
        )
        before = model.marginal(chosen) * model.total
        measured.append(curator.measure(chosen, 1 / (2 * sigma**2)))
        sets.add(chosen)
        model = fit(measured, sizes, steps=3 * steps if last else steps, start=model)
        if abs(model.marginal(chosen) * model.total - before).sum() <= penalty(
            chosen
        ):  # Algorithm 4: less was learnt than the noise hides
            sigma, epsilon = sigma / 2, 2 * epsilon
        watch({"spent": 1 - curator.left / rho, "measured": len(measured)})
    return model


@dataclass(frozen=True)
class AIM(MarginalGenerator):
    """Measures, round after round, what the model still gets most wrong. Slower than MST and nearer to the
    data.
    """

    degree: int = whole(2, least=1, most=4, doc="the workload: all marginals of this many columns")
    max_cells: int = whole(200_000, least=1_000, doc="cells the model may have; time grows with it")
    steps: int = whole(
        60, least=1, doc="steps of mirror descent after each measurement; three times as many after the last"
    )

    def estimate(self, curator: Curator, watch: Watch) -> tuple[Model, Support | None]:
        return aim(curator, degree=self.degree, max_cells=self.max_cells, steps=self.steps, watch=watch), None
