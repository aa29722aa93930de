"""MST: McKenna, Miklau, Sheldon: *Winning the NIST Contest: A scalable and general approach to differentially
private synthetic data*, Journal of Privacy and Confidentiality 2021. A third of ρ for each of its three
questions: the columns, which pairs, the pairs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..parameters import whole
from .generator import Watch
from .graphical import Clique, Measurement, Model, fit
from .marginals import Curator, Support, independent
from .private import MarginalGenerator


def spanning_tree(curator: Curator, one_way: Model, rho: float) -> list[Clique]:
    """The selection: edges one at a time, among those that join two parts, the more their columns depend on
    each other the likelier.
    """
    d = len(curator.sizes)
    part = list(range(d))
    estimate = independent(one_way)
    known: dict[Clique, np.ndarray] = {pair: estimate(pair) for pair in itertools.combinations(range(d), 2)}
    chosen: list[Clique] = []
    for _ in range(d - 1):
        open_pairs = [pair for pair in known if part[pair[0]] != part[pair[1]]]
        a, b = curator.choose(open_pairs, known.__getitem__, rho / (d - 1))
        chosen.append((a, b))
        part = [part[a] if p == part[b] else p for p in part]
    return chosen


def mst(curator: Curator, steps: int) -> tuple[Model, Support]:
    """The mechanism: measure every column, merge what drowns in noise, choose a tree, measure its edges,
    estimate.
    """
    d, rho = len(curator.sizes), curator.rho
    ones = [
        curator.measure((j,), rho / 3 / d if d > 1 else rho) for j in range(d)
    ]  # one column has no pairs to save for
    support = Support.of(ones)
    curator_ = curator.narrowed(support)
    narrow: list[Measurement] = [support.narrow(m) for m in ones]
    if d > 1:
        tree = spanning_tree(curator_, fit(narrow, support.sizes, steps=steps), rho / 3)
        narrow += [curator_.measure(pair, rho / 3 / (d - 1)) for pair in tree]
        curator.spent = curator_.spent
    return fit(narrow, support.sizes, steps=steps), support


@dataclass(frozen=True)
class MST(MarginalGenerator):
    """A tree of column pairs, chosen and measured under differential privacy. Seconds for a table of some ten
    columns.
    """

    steps: int = whole(300, least=1, doc="steps of mirror descent; it stops sooner where nothing is gained")

    def estimate(self, curator: Curator, watch: Watch) -> tuple[Model, Support | None]:
        return mst(curator, self.steps)
