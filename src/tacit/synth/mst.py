"""MST: noisy marginals of a maximum spanning tree of columns.

R. McKenna, G. Miklau, D. Sheldon: *Winning the NIST Contest: A scalable and general approach to
differentially private synthetic data*, Journal of Privacy and Confidentiality 2021.

Differences from the paper, for tables in which the noise of a pair may be larger than its dependence (a
hundred columns, few rows, a small ε). A pair is worth its distance from independence less the noise that its
cells will have, as in AIM; a pair that is worth nothing is not measured, so the tree may be a forest. Half of
ρ is for the columns and a tenth for the selection, instead of a third each. Marginals with more cells receive
a larger part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..parameters import whole
from .generator import Watch
from .graphical import Clique, Measurement, Model, count_cells, fit_model
from .marginals import Curator, Support, independent_counts
from .private import MarginalGenerator

# Parts of ρ, chosen on made tables of 12 and 100 columns and on Adult from ε = .1 to 10. On five other tables
# the error was between equal to and a quarter below that of thirds (docs/results/private-synth.md).
COLUMN_SHARE, SELECTION_SHARE = 0.5, 0.1
NOTHING: Clique = ()  # the choice to measure no further pair


def split_budget(rho: float, cells: Sequence[int]) -> list[float]:
    """Divide ρ among marginals so that the expected absolute noise of all cells together is least.

    A marginal of c cells with a part ρ has noise proportional to c / √ρ; the least sum has parts ∝ c^(2/3).
    """
    weight = [size ** (2 / 3) for size in cells]
    return [rho * w / sum(weight) for w in weight]


def spanning_tree(
    curator: Curator,
    one_way: Model,
    rho: float,
    rest: float,
    max_cells: int = 2**62,
    given: Collection[int] = (),
) -> list[Clique]:
    """Select the edges of a spanning tree one at a time, until no pair is worth its noise.

    Among pairs that join two components, the exponential mechanism favors dependent columns. A pair's score
    is its distance from independence less the expected noise of its cells, if `rest` is divided among the
    edges of a whole tree; to measure no further pair has the score 0. Pairs of more than `max_cells` cells
    are left out; a column that has no other stays independent. Columns that are `given` when rows are drawn
    count as one component: no pair of them is selected.
    """
    d, sizes = len(curator.sizes), curator.sizes
    part = [min(given) if j in given else j for j in range(d)]
    edges = len(set(part)) - 1
    estimate = independent_counts(one_way)
    noise = math.sqrt(2 / math.pi) * math.sqrt(edges / (2 * rest)) if edges else 0.0

    def penalty(clique: Clique) -> float:
        return noise * count_cells(clique, sizes) if clique else 0.0

    # the estimate never changes, so that each pair is counted once, and no table of a pair is kept
    distances: dict[Clique, int] = {
        pair: curator.distance(pair, estimate(pair), keep=False)
        for pair in itertools.combinations(range(d), 2)
        if count_cells(pair, sizes) <= max_cells and part[pair[0]] != part[pair[1]]
    }
    distances[NOTHING] = 0  # whatever the rows are
    chosen: list[Clique] = []
    for _ in range(edges):
        candidates = [pair for pair in distances if not pair or part[pair[0]] != part[pair[1]]]
        if candidates == [NOTHING]:
            break
        pair = curator.choose_by(candidates, [distances[p] for p in candidates], rho / edges, penalty=penalty)
        if pair == NOTHING:
            break
        a, b = pair
        chosen.append(pair)
        part = [part[a] if p == part[b] else p for p in part]
    return chosen


def mst(
    curator: Curator, steps: int, max_cells: int = 2**62, given: Collection[int] = ()
) -> tuple[Model, Support]:
    """Run the mechanism and return the model with its merged cells.

    Measure every column, merge cells below the noise, select a tree, measure its edges with all that is left,
    fit the model. Without an edge, the columns are measured again.
    """
    d, rho = len(curator.sizes), curator.left
    # a single column has no pairs, so it receives the whole budget
    parts = split_budget(rho * COLUMN_SHARE if d > 1 else rho, curator.sizes)
    one_way = [curator.measure((j,), part) for j, part in enumerate(parts)]
    support = Support.from_measurements(one_way)
    narrowed = curator.narrow_to(support)
    narrow: list[Measurement] = [support.narrow(m) for m in one_way]
    if d > 1:
        one_way_model = fit_model(narrow, support.sizes, steps=steps)
        for_pairs = rho * (1 - COLUMN_SHARE - SELECTION_SHARE)
        tree = spanning_tree(narrowed, one_way_model, rho * SELECTION_SHARE, for_pairs, max_cells, given)
        last = tree or [(j,) for j in range(d)]
        parts = split_budget(narrowed.left, [count_cells(c, support.sizes) for c in last])
        narrow += [narrowed.measure(clique, part) for clique, part in zip(last, parts)]
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
