"""Full-domain generalization with suppression: the node of the lattice with the lowest loss, exactly.

The lattice and its tagging: LeFevre, DeWitt, Ramakrishnan: "Incognito: Efficient Full-Domain k-Anonymity",
SIGMOD 2005; El Emam et al.: "A Globally Optimal k-Anonymity Method for the De-Identification of Health Data"
(OLA), JAMIA 2009; Kohlmayer, Prasser, Eckert, Kemper, Kuhn: "Flash: Efficient, Stable and Optimal
k-Anonymity", PASSAT 2012, whose bisection of upward paths is used here. New is a bound for *loss with
suppression*:

    Rows that node u suppresses are suppressed by every node v below it. So v costs at least
        (charge at v of the rows u publishes) + (charge of suppressing the rows u suppresses).
    Charges are sums over columns, so this is one table per column, added up over the whole sub-lattice below
    u at once.

The search takes the node with the lowest bound, follows a path up from it, and bisects the path for the
highest node that rules it out; every evaluation rules out or tightens a sub-lattice. The search ends when no
bound is below the loss of the best node, which is then the optimum.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from ..errors import BadData
from ..parameters import bad, real, whole
from .lattice import Evaluator, Node, NodeOutcome
from .losses import CellMetric
from .release import AnonymizationRequest, TableRelease, format_count, make_step, release_levels
from .result import LatticeNode
from .table import EncodedTable

ROUNDING = 1e-12  # bounds and losses are sums of the same charges in a different order
RELAX = "Relax the models (a smaller k or l, a larger t), or raise max_suppressed."


@dataclass(frozen=True)
class Optimal:
    """One level per column for the whole table, at the lowest loss.

    Rows of classes that violate a model are suppressed, up to the limit.
    """

    nodes: int = whole(2**24, least=1, doc="largest lattice to search; one bound per node is kept in memory")
    seconds: float | None = real(
        None, above=0, none=True, doc="time after which the best node found so far is used; None: no limit"
    )

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        search = Search(table, request, self.nodes, self.seconds)
        loss, node, outcome = search.run()
        limit = search.evaluate.limit
        words = ", ".join(f"{c.name} {level}/{c.height}" for c, level in zip(table.columns, node))
        trace = [
            make_step(
                f"The lattice has {search.bound.size:,} nodes; at most {format_count(limit)} of "
                f"{table.rows:,} may be suppressed.",
                nodes=search.bound.size,
                limit=limit,
            ),
            make_step(
                f"{format_count(len(search.visited), 'node')} were evaluated; bounds rule out the others.",
                visited=len(search.visited),
            ),
            make_step(
                f"The lowest loss is at {words}: {format_count(outcome.classes, 'class')}, "
                f"{format_count(outcome.suppressed)} suppressed, {request.metric} {loss:.4f}.",
                levels=list(node),
                classes=outcome.classes,
                suppressed=outcome.suppressed,
                loss=loss,
            ),
        ]
        release = release_levels(table, node, outcome.suppressed_combinations, loss, trace, search.visited)
        if search.is_stopped:
            release.warnings.append(
                f"The search was stopped after {self.seconds:g} seconds: the loss is {loss:.4f}, and the "
                f"lowest one possible is at least {min(search.lowest, loss):.4f}. Raise seconds=, or use "
                "hierarchies with fewer levels."
            )
        return release


class Search:
    """Best-first search of the lattice."""

    def __init__(
        self, table: EncodedTable, request: AnonymizationRequest, nodes: int, seconds: float | None = None
    ):
        self.end = math.inf if seconds is None else time.monotonic() + seconds
        self.is_stopped, self.lowest = False, math.inf  # the lowest bound when the search was stopped
        self.top: Node = tuple(c.height for c in table.columns)
        self.shape = tuple(h + 1 for h in self.top)
        if math.prod(self.shape) > nodes or len(self.shape) > 60:  # NumPy arrays have at most 64 axes
            raise bad(
                "anonymize",
                "method",
                "optimal",
                f"another method for a lattice of {math.prod(self.shape):,} nodes (at most {nodes:,} are "
                "searched)",
                "Use hierarchies with fewer levels or fewer quasi-identifiers, or method='datafly', "
                "'mondrian' or 'cluster'.",
            )
        self.table, self.metric = table, request.build_metric(table)
        self.evaluate = Evaluator(table, request.models, self.metric, request.limit(table))
        self.can_tag = self.evaluate.is_monotone or (
            self.evaluate.limit == 0 and self.evaluate.is_closed_under_merging
        )
        self.bound = np.zeros(self.shape)  # a lower bound of each node's loss; inf: done
        if isinstance(self.metric, CellMetric):
            self.bound += _add_columns([t / self.metric.scale for t in self.evaluate.totals])
        self.best: tuple[float, Node, NodeOutcome] | None = None
        self.visited: list[LatticeNode] = []

    def run(self) -> tuple[float, Node, NodeOutcome]:
        top = self.visit(self.top)
        if not top.is_feasible and self.can_tag:
            raise BadData(
                f"Even with every quasi-identifier at its top level, {format_count(top.suppressed)} violate "
                f"the privacy models and at most {self.evaluate.limit:,} may be suppressed. {RELAX}"
            )
        while True:
            node: Node = tuple(int(x) for x in np.unravel_index(int(np.argmin(self.bound)), self.shape))
            if not self.bound[node] < self.cutoff:
                break
            if self.best is not None and time.monotonic() > self.end:
                self.is_stopped, self.lowest = True, float(self.bound[node])
                break
            self.rule_out(node)
        if self.best is None:
            raise BadData(
                "No node of the lattice satisfies the privacy models with at most "
                f"{format_count(self.evaluate.limit)} suppressed. {RELAX}"
            )
        self.descend()
        return self.best

    def descend(self) -> None:
        """Of equally good nodes, choose a lowest one: do not generalize a column if this gains nothing."""
        assert self.best is not None
        loss, node, _ = self.best
        totals = self.evaluate.totals
        for j in range(len(node)):
            below: Node = (*node[:j], node[j] - 1, *node[j + 1 :])
            if node[j] and totals[j][node[j] - 1] >= totals[j][node[j]] - ROUNDING:
                outcome = self.evaluate(below)
                if outcome.is_feasible and outcome.loss <= loss + ROUNDING:
                    self._record(below, outcome)
                    self.best = outcome.loss, below, outcome
                    return self.descend()

    @property
    def cutoff(self) -> float:
        """A node with a bound at or above this cannot be the optimum."""
        return math.inf if self.best is None else self.best[0] - ROUNDING

    def rule_out(self, node: Node) -> None:
        """Evaluate nodes on a path up from this one until its bound reaches the cutoff.

        Bisect for the highest node that achieves this.
        """
        if self.can_tag or self.evaluate.monotone_models:
            path = self.path(node)
            low, high = -1, len(path) - 1  # the top is already evaluated
            while high - low > 1:
                middle = (low + high) // 2
                is_done = math.isinf(self.bound[path[middle]])
                if not is_done:
                    self.visit(path[middle])
                if is_done or self.bound[node] < self.cutoff:
                    high = middle  # too high to rule out the node
                else:
                    low = middle  # rules it out; a higher node would rule out more
        if self.bound[node] < self.cutoff:
            self.visit(node)

    def path(self, node: Node) -> list[Node]:
        """The path to the top that always raises the column with the smallest increase in charge.

        Such nodes have many nodes below them, and low losses.
        """
        totals = self.evaluate.totals
        current, path = list(node), [node]
        while tuple(current) != self.top:
            steps = [j for j in range(len(current)) if current[j] < self.top[j]]
            j = min(steps, key=lambda j: totals[j][current[j] + 1] - totals[j][current[j]])
            current[j] += 1
            path.append(tuple(current))
        return path

    def visit(self, node: Node) -> NodeOutcome:
        """Evaluate a node and tighten the bounds of the nodes below or above it."""
        outcome = self.evaluate(node)
        below, above = tuple(slice(0, v + 1) for v in node), tuple(slice(v, None) for v in node)
        self._record(node, outcome)
        if outcome.is_feasible and outcome.loss < self.cutoff:
            self.best = outcome.loss, node, outcome
        if outcome.excludes_below:
            self.bound[below] = math.inf
        elif isinstance(self.metric, CellMetric) and self.evaluate.allows_suppression:
            suppressed = outcome.suppressed_below
            charge = float(self.evaluate.suppressed_charge[suppressed] @ self.table.counts[suppressed])
            charges = _add_columns(self.evaluate.charges_below(node, suppressed))
            np.maximum(self.bound[below], charges + charge / self.metric.scale, out=self.bound[below])
        if not isinstance(self.metric, CellMetric):
            np.maximum(self.bound[above], outcome.lower_bound, out=self.bound[above])
        self.bound[node] = math.inf
        return outcome

    def _record(self, node: Node, outcome: NodeOutcome) -> None:
        loss = outcome.loss if outcome.is_feasible else None
        self.visited.append(LatticeNode(node, outcome.is_feasible, loss, outcome.suppressed, outcome.classes))


def _add_columns(charges: list[np.ndarray]) -> np.ndarray:
    """Charges by level of each column → their sum at every node."""
    total = np.zeros((1,) * len(charges))
    for j, charge in enumerate(charges):
        total = total + charge.reshape([-1 if i == j else 1 for i in range(len(charges))])
    return total
