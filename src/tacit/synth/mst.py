"""MST: noisy marginals of a maximum spanning tree of columns.

R. McKenna, G. Miklau, D. Sheldon: *Winning the NIST Contest: A scalable and general approach to
differentially private synthetic data*, Journal of Privacy and Confidentiality 2021. A third of ρ each for the
columns, the selection of pairs, and the pairs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..parameters import whole
from .generator import Watch
from .graphical import Clique, Measurement, Model, fit_model
from .marginals import Curator, Support, independent_counts
from .private import MarginalGenerator


def spanning_tree(curator: Curator, one_way: Model, rho: float) -> list[Clique]:
    """Select the edges of a spanning tree one at a time.

    Among pairs that join two components, the exponential mechanism favors dependent columns.
    """
    d = len(curator.sizes)
    part = list(range(d))
    estimate = independent_counts(one_way)
    estimates: dict[Clique, np.ndarray] = {
        pair: estimate(pair) for pair in itertools.combinations(range(d), 2)
    }
    chosen: list[Clique] = []
    for _ in range(d - 1):
        open_pairs = [pair for pair in estimates if part[pair[0]] != part[pair[1]]]
        a, b = curator.choose(open_pairs, estimates.__getitem__, rho / (d - 1))
        chosen.append((a, b))
        part = [part[a] if p == part[b] else p for p in part]
    return chosen


def mst(curator: Curator, steps: int) -> tuple[Model, Support]:
    """Run the mechanism and return the model with its merged cells.

    Measure every column, merge cells below the noise, select a tree, measure its edges, fit the model.
    """
    d, rho = len(curator.sizes), curator.rho
    # a single column has no pairs, so it receives the whole budget
    one_way = [curator.measure((j,), rho / 3 / d if d > 1 else rho) for j in range(d)]
    support = Support.from_measurements(one_way)
    narrowed = curator.narrow_to(support)
    narrow: list[Measurement] = [support.narrow(m) for m in one_way]
    if d > 1:
        tree = spanning_tree(narrowed, fit_model(narrow, support.sizes, steps=steps), rho / 3)
        narrow += [narrowed.measure(pair, rho / 3 / (d - 1)) for pair in tree]
        curator.spent = narrowed.spent
    return fit_model(narrow, support.sizes, steps=steps), support


@dataclass(frozen=True)
class MST(MarginalGenerator):
    """A tree of column pairs, selected and measured under differential privacy.

    Takes seconds for about ten columns.
    """

    steps: int = whole(300, least=1, doc="maximum steps of mirror descent; it stops early on convergence")

    def estimate(self, curator: Curator, watch: Watch) -> tuple[Model, Support | None]:
        return mst(curator, self.steps)
