"""Levels chosen privately. R. Bild, K. A. Kuhn, F. Prasser: "SafePub: A Truthful Data Anonymization Algorithm
With Strong Privacy Guarantees", PoPETs 2018(1): draw a sample, choose a generalization by the exponential
mechanism, suppress combinations with fewer than k rows.

The guarantee of the sampled release is N. Li, W. Qardaji, D. Su: "On Sampling, Anonymization, and
Differential Privacy", ASIACCS 2012: for levels that do not depend on the table it is (ε, δ)-differentially
private. Here the levels are the output of a mechanism with its own ε_search, so both add up to (ε +
ε_search, δ).

Differences from SafePub:
  The choice uses the whole table, and the sample is drawn afterwards with separate coins. The two steps
  share no randomness and compose sequentially. All nodes of the lattice are candidates of one choice;
  SafePub descends from the top in steps, each of which spends a part of ε_search. One row changes the score
  by at most its own cell price. Charging a class all its rows until it has k of them, and then the price of
  its levels, would jump by k rows at once. Instead, a class of c expected rows whose cells cost `low` per
  row is charged
      c · low                              if c ≥ k,
      min(c, k · low + (k − c))            if c < k,
  the largest charge below the real one that changes by at most 1 per row; with c = β · rows, one row of the
  table changes it by β.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from ..parameters import bad, real, whole
from .fixed import apply_levels, resolve_levels
from .hierarchies import NULL
from .lattice import Evaluator, Node
from .losses import domain_share, unit_metric
from .models import KAnonymity, find_differential_privacy
from .release import AnonymizationRequest, TableRelease, format_count, make_step
from .table import EncodedTable

GRID = 2**24  # scores are integers in units of 1/GRID of a row, so that the mechanism's draw is exact


@dataclass(frozen=True)
class Private:
    """One level per column, chosen by the exponential mechanism at ε_search, on a sample of the table.

    Needs `DifferentialPrivacy` among the models.
    """

    epsilon: float = real(
        0.5, above=0, doc="ε_search: spent on choosing levels, in addition to the release's ε"
    )
    levels: Mapping[str, int] | None = field(default=None, metadata=None)  # levels that are fixed in advance
    nodes: int = whole(
        20_000,
        least=1,
        doc="maximum number of candidates; each takes some milliseconds for 100,000 combinations",
    )

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        from ..accounting.discrete import exponential, rational_below

        private = find_differential_privacy(request.models)
        if private is None:
            raise bad(
                "anonymize",
                "method",
                "private",
                "another method unless DifferentialPrivacy(…) is in models=",
                "Without it, 'optimal' finds better levels.",
            )
        fixed = self.levels or {}
        base = resolve_levels(table, fixed, "Private")
        ranges = [
            [level] if c.name in fixed else range(c.height + 1) for c, level in zip(table.columns, base)
        ]
        size = math.prod(len(r) for r in ranges)
        if size > self.nodes:
            raise bad(
                "Private",
                "nodes",
                self.nodes,
                f"at least {size:,}, the nodes of this lattice",
                "Raise it, use hierarchies with fewer levels, or fix some of them: "
                "Private(levels={'sex': 0}).",
            )
        score = NodeScore(table, max(private.k, request.k), private.rate)
        nodes = list(product(*ranges))
        levels = nodes[exponential(list(map(score, nodes)), rational_below(self.epsilon), score.sensitivity)]
        words = ", ".join(f"{c.name} {level}" for c, level in zip(table.columns, levels))
        step = make_step(
            f"{words} was drawn from {format_count(len(nodes), 'node')} by the exponential mechanism, ε = "
            f"{self.epsilon:g}.",
            nodes=len(nodes),
            levels=list(levels),
        )
        return apply_levels(table, request, list(levels), [step])


class NodeScore:
    """Minus the expected charge of a node on the sample, in units of 1/GRID of a row: higher is better."""

    def __init__(self, table: EncodedTable, k: int, rate: float):
        self.table, self.k, self.rate = table, k, rate
        self.metric = unit_metric(_declared_shares(table), float(len(table.columns)))
        self.evaluate = Evaluator(table, (KAnonymity(1),), self.metric, 0)  # groups the combinations
        # One row is in one class, whose charge changes by at most `rate`. Rounding to the grid adds one, and
        # float arithmetic another.
        self.sensitivity = math.ceil(rate * GRID) + 2

    def __call__(self, node: Node) -> int:
        classes = self.evaluate.classes(node)
        rows = np.bincount(classes.label, self.table.counts, classes.number) * self.rate
        low = np.zeros(classes.number)
        low[classes.label] = self.metric.charge(self.table.codes, node) / len(node)
        charge = np.where(rows >= self.k, rows * low, np.minimum(rows, self.k * low + self.k - rows))
        return -int(np.floor(charge * GRID).astype(np.int64).sum())


def _declared_shares(table: EncodedTable) -> tuple[np.ndarray, ...]:
    """The prices of cells, from the declared hierarchies alone.

    A null in the table adds a value to its hierarchy. This must not change a price.
    """
    shares = []
    for c in table.columns:
        is_null = np.array([v == NULL for v in c.hierarchy.values])
        leaves = np.stack([np.bincount(u, ~is_null)[u] for u in c.up])
        share = np.clip(domain_share(leaves, int((~is_null).sum())), 0, 1)
        share[:-1, is_null] = 0.0  # a null covers no other value below the top
        shares.append(share)
    return tuple(shares)
