"""Full-domain generalisation with suppression: the cheapest node of the lattice, exactly.

The lattice and its tagging: LeFevre, DeWitt, Ramakrishnan: "Incognito: Efficient Full-Domain k-Anonymity",
SIGMOD 2005; El Emam et al.: "A Globally Optimal k-Anonymity Method for the De-Identification of Health Data"
(OLA), JAMIA 2009; Kohlmayer, Prasser, Eckert, Kemper, Kuhn: "Flash: Efficient, Stable and Optimal
k-Anonymity", PASSAT 2012, whose bisection of upward paths is kept here. What is added is a bound for *loss
with suppression*:

    Rows that node u suppresses are suppressed by every node v below it. So v costs at least
        (charge at v of the rows u keeps) + (charge of suppressing the rows u suppresses),
    and because charges are sums over columns, that is one table a column, added up over the whole sub-lattice
    below u at once.

The search takes the node with the lowest bound, walks up from it, and bisects the path for the highest node
that settles it; every look settles or tightens a sub-lattice. It ends when no bound is below the best node
seen, which then is the optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import BadData
from ..parameters import bad, whole
from .encoded import Encoded
from .lattice import Evaluator, Node, Outcome
from .losses import CellMetric
from .release import Release, Request, count, full_domain, told
from .result import Visited

ROUNDING = 1e-12  # bounds and losses are sums of the same charges in another order


@dataclass(frozen=True)
class Optimal:
    """One level a column for the whole table, at the least loss; rows of classes that fail a model are
    suppressed, up to the limit.
    """

    nodes: int = whole(2**24, least=1, doc="the largest lattice to search: a bound a node is kept in memory")

    def run(self, table: Encoded, request: Request) -> Release:
        search = Search(table, request, self.nodes)
        best = search.run()
        loss, node, outcome = best
        words = ", ".join(f"{c.name} {level}/{c.height}" for c, level in zip(table.columns, node))
        trace = [
            told(
                f"The lattice has {search.bound.size:,} nodes; at most {count(search.evaluate.limit)} of "
                f"{table.rows:,} may be suppressed.",
                nodes=search.bound.size,
                limit=search.evaluate.limit,
            ),
            told(
                f"{count(len(search.visited), 'node')} were looked at; the bounds settle the others.",
                visited=len(search.visited),
            ),
            told(
                f"The cheapest is {words}: {count(outcome.classes, 'class')}, {count(outcome.suppressed)} "
                f"suppressed, {request.metric} {loss:.4f}.",
                levels=list(node),
                classes=outcome.classes,
                suppressed=outcome.suppressed,
                loss=loss,
            ),
        ]
        return full_domain(table, node, outcome.lost, loss, trace, search.visited)


class Search:
    def __init__(self, table: Encoded, request: Request, nodes: int):
        self.top: Node = table.heights
        self.shape = tuple(h + 1 for h in self.top)
        if math.prod(self.shape) > nodes or len(self.shape) > 60:  # numpy's arrays have at most 64 axes
            raise bad(
                "anonymize",
                "method",
                "optimal",
                f"another one for a lattice of {math.prod(self.shape):,} nodes (at most {nodes:,} are "
                "searched)",
                "Take hierarchies with fewer levels or fewer quasi-identifiers, or method='datafly', "
                "'mondrian' or 'cluster'.",
            )
        self.table, self.metric = table, request.price(table)
        self.evaluate = Evaluator(table, request.models, self.metric, request.limit(table))
        self.tagging = self.evaluate.superset or (self.evaluate.limit == 0 and self.evaluate.merges)
        self.bound = np.zeros(self.shape)  # no node costs less than this; inf: settled
        if isinstance(self.metric, CellMetric):
            self.bound += self._over([t / self.metric.scale for t in self.evaluate.totals])
        self.best: tuple[float, Node, Outcome] | None = None
        self.visited: list[Visited] = []

    def _over(self, tables: list[np.ndarray]) -> np.ndarray:
        """One number a level a column → their sum at every node."""
        total = np.zeros((1,) * len(tables))
        for j, t in enumerate(tables):
            total = total + t.reshape([-1 if i == j else 1 for i in range(len(tables))])
        return total

    def run(self) -> tuple[float, Node, Outcome]:
        top = self.look(self.top)
        if not top.feasible and self.tagging:
            raise BadData(
                f"Even with every quasi-identifier at its top, {count(top.suppressed)} fail the privacy "
                "models and at most "
                f"{self.evaluate.limit:,} may be suppressed. Ask for less (a smaller k or l, a larger t), "
                "or raise max_suppressed."
            )
        while True:
            place = int(np.argmin(self.bound))
            node: Node = tuple(int(x) for x in np.unravel_index(place, self.shape))
            if not self.bound[node] < self.most:
                break
            self.settle(node)
        if self.best is None:
            raise BadData(
                "No node of the lattice satisfies the privacy models with at most "
                f"{count(self.evaluate.limit)} suppressed. "
                "Ask for less (a smaller k or l, a larger t), or raise max_suppressed."
            )
        self.lower()
        return self.best

    def lower(self) -> None:
        """Of equally cheap nodes, one with none such below it: a column whose generalisation costs nothing is
        not generalised.
        """
        assert self.best is not None
        loss, node, _ = self.best
        for j in range(len(node)):
            below: Node = (*node[:j], node[j] - 1, *node[j + 1 :])
            if (
                node[j]
                and self.evaluate.totals[j][node[j] - 1] >= self.evaluate.totals[j][node[j]] - ROUNDING
            ):
                seen = self.evaluate(below)
                if seen.feasible and seen.loss <= loss + ROUNDING:
                    self.visited.append(Visited(below, True, seen.loss, seen.suppressed, seen.classes))
                    self.best = seen.loss, below, seen
                    return self.lower()

    @property
    def most(self) -> float:
        """A bound at or above this cannot win."""
        return math.inf if self.best is None else self.best[0] - ROUNDING

    def settle(self, node: Node) -> None:
        """Look at nodes on a path up from this one until its bound is out of the race: bisect for the highest
        node that puts it there.
        """
        if self.tagging:
            path = self.path(node)
            low, high = -1, len(path) - 1  # the top has been looked at
            while high - low > 1:
                middle = (low + high) // 2
                known = math.isinf(self.bound[path[middle]])
                if not known:
                    self.look(path[middle])
                if known or self.bound[node] < self.most:
                    high = middle  # too high to settle the node
                else:
                    low = middle  # it does, and a higher one would settle more
        if self.bound[node] < self.most:
            self.look(node)

    def path(self, node: Node) -> list[Node]:
        """Up to the top, always raising the column that costs least: such nodes keep many below them, and low
        losses.
        """
        totals = self.evaluate.totals
        current, path = list(node), [node]
        while tuple(current) != self.top:
            steps = [j for j in range(len(current)) if current[j] < self.top[j]]
            j = min(steps, key=lambda j: totals[j][current[j] + 1] - totals[j][current[j]])
            current[j] += 1
            path.append(tuple(current))
        return path

    def look(self, node: Node) -> Outcome:
        seen = self.evaluate(node)
        below, above = tuple(slice(0, v + 1) for v in node), tuple(slice(v, None) for v in node)
        self.visited.append(
            Visited(node, seen.feasible, seen.loss if seen.feasible else None, seen.suppressed, seen.classes)
        )
        if seen.feasible and seen.loss < self.most:
            self.best = seen.loss, node, seen
        if seen.doomed:  # every node below suppresses at least as many
            self.bound[below] = math.inf
        elif isinstance(self.metric, CellMetric) and self.evaluate.superset:
            lost = float(self.evaluate.gone[seen.lost] @ self.table.counts[seen.lost]) / self.metric.scale
            floor = self._over(self.evaluate.below(node, seen.lost)) + lost
            np.maximum(self.bound[below], floor, out=self.bound[below])
        if not isinstance(self.metric, CellMetric):
            np.maximum(self.bound[above], seen.floor, out=self.bound[above])
        self.bound[node] = math.inf
        return seen
