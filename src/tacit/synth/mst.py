"""MST: noisy marginals of a maximum spanning tree of columns.

R. McKenna, G. Miklau, D. Sheldon: *Winning the NIST Contest: A scalable and general approach to
differentially private synthetic data*, Journal of Privacy and Confidentiality 2021. A third of ρ each for the
columns, the selection of pairs, and the pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass

from ..parameters import whole
from .generator import Watch
from .graphical import Clique, Measurement, Model, count_cells, fit_model
from .marginals import Curator, Support, independent_counts
from .private import MarginalGenerator


def spanning_tree(
    curator: Curator, one_way: Model, rho: float, max_cells: int = 2**62, given: Collection[int] = ()
) -> list[Clique]:
    """Select the edges of a spanning tree one at a time.

    Among pairs that join two components, the exponential mechanism favors dependent columns. Pairs of more
    than `max_cells` cells are left out; a column that has no other stays independent. Columns that are
    `given` when rows are drawn count as one component: no pair of them is selected.
    """
    d = len(curator.sizes)
    part = [min(given) if j in given else j for j in range(d)]
    edges = len(set(part)) - 1
    estimate = independent_counts(one_way)
    # the estimate never changes, so that each pair is counted once, and no table of a pair is kept
    distances = {
        pair: curator.distance(pair, estimate(pair), keep=False)
        for pair in itertools.combinations(range(d), 2)
        if count_cells(pair, curator.sizes) <= max_cells and part[pair[0]] != part[pair[1]]
    }
    chosen: list[Clique] = []
    for _ in range(edges):
        open_pairs = [pair for pair in distances if part[pair[0]] != part[pair[1]]]
        if not open_pairs:
            break
        a, b = curator.choose_by(open_pairs, [distances[p] for p in open_pairs], rho / edges)
        chosen.append((a, b))
        part = [part[a] if p == part[b] else p for p in part]
    return chosen


def mst(
    curator: Curator, steps: int, max_cells: int = 2**62, given: Collection[int] = ()
) -> tuple[Model, Support]:
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
        one_way_model = fit_model(narrow, support.sizes, steps=steps)
        tree = spanning_tree(narrowed, one_way_model, rho / 3, max_cells, given)
        narrow += [narrowed.measure(pair, rho / 3 / len(tree)) for pair in tree]
        curator.spent = narrowed.spent
    return fit_model(narrow, support.sizes, steps=steps), support


@dataclass(frozen=True)
class MST(MarginalGenerator):
    """A tree of column pairs, selected and measured under differential privacy.

    Takes seconds for ten columns, and less than a minute for a hundred.
    """

    steps: int = whole(300, least=1, doc="maximum steps of mirror descent; it stops early on convergence")

    max_cells: int = whole(
        1_000_000, least=4, doc="maximum cells of a pair; a column whose pairs are all larger is independent"
    )

    def estimate(self, curator: Curator, watch: Watch) -> tuple[Model, Support | None]:
        return mst(curator, self.steps, self.max_cells)
