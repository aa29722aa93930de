"""Levels chosen privately. R. Bild, K. A. Kuhn, F. Prasser: "SafePub: A Truthful Data Anonymization Algorithm
With Strong Privacy Guarantees", PoPETs 2018(1): draw a sample, choose a generalisation by the exponential
mechanism, suppress what fewer than k rows share.

The guarantee of the sampled release is N. Li, W. Qardaji, D. Su: "On Sampling, Anonymization, and
Differential Privacy", ASIACCS 2012: for levels that do not depend on the table it is (ε, δ)-differentially
private. Here the levels are the outcome of a mechanism of ε_search of its own, so both add up to (ε +
ε_search, δ).

Where this differs from SafePub:
  The choice looks at the whole table, and the sample is drawn afterwards with coins of its own. So the two
  steps share no randomness and compose plainly. All nodes of the lattice are candidates of one choice;
  SafePub walks down from the top in steps, each of which spends a part of ε_search. The score is one that a
  row changes by at most its own cell price. Charging a class all its rows until it has k of them, and then
  the price of its levels, would jump by k rows at once. A class of c expected rows whose cells cost `low` a
  row is charged instead
      c · low                              where c ≥ k,
      min(c, k · low + (k − c))            where c < k,
  the largest charge below the real one that moves by no more than 1 a row; with c = β · rows, one row of the
  table moves it by β.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from ..parameters import bad, real, whole
from .encoded import Encoded
from .fixed import apply, chosen
from .hierarchies import NULL
from .lattice import Evaluator
from .losses import CellMetric
from .models import KAnonymity
from .release import Release, Request, count, told
from .sampled import private_of

GRID = 2**24  # scores are whole numbers of this part of a row, so that the mechanism's draw is exact


@dataclass(frozen=True)
class Private:
    """One level a column, chosen by the exponential mechanism at ε_search; on a sample, with
    `DifferentialPrivacy` among the models.
    """

    epsilon: float = real(
        0.5, above=0, doc="ε_search: what the choice of levels spends, beside the release's own ε"
    )
    levels: Mapping[str, int] | None = field(
        default=None, metadata=None
    )  # of columns whose level is fixed beforehand
    nodes: int = whole(
        20_000,
        least=1,
        doc="the most candidates: each is priced, at some milliseconds for a hundred thousand combinations",
    )

    def run(self, table: Encoded, request: Request) -> Release:
        from ..accounting.discrete import exponential, rational_below

        private = private_of(request.models)
        if private is None:
            raise bad(
                "anonymize",
                "method",
                "private",
                "another one unless DifferentialPrivacy(…) is among models=",
                "Without it, 'optimal' finds better levels.",
            )
        fixed = self.levels or {}
        low = chosen(table, fixed, "Private")
        ranges = [[level] if c.name in fixed else range(c.height + 1) for c, level in zip(table.columns, low)]
        size = math.prod(len(r) for r in ranges)
        if size > self.nodes:
            raise bad(
                "Private",
                "nodes",
                self.nodes,
                f"at least {size:,}, the nodes of this lattice",
                "Raise it, take hierarchies with fewer levels, or fix some of them: Private(levels={'sex': "
                "0}).",
            )
        score = Score(table, max(private.k, request.k), private.rate)
        nodes = list(product(*ranges))
        scores = [score(node) for node in nodes]
        levels = nodes[exponential(scores, rational_below(self.epsilon), score.sensitivity)]
        words = ", ".join(f"{c.name} {level}" for c, level in zip(table.columns, levels))
        step = told(
            f"Of {count(len(nodes), 'node')} {words} was drawn by the exponential mechanism, ε = "
            f"{self.epsilon:g}.",
            nodes=len(nodes),
            levels=list(levels),
        )
        return apply(table, request, list(levels), [step])


class Score:
    """Minus the charge a node expects of the sample, in parts of a row: higher is better."""

    def __init__(self, table: Encoded, k: int, rate: float):
        self.table, self.k, self.rate = table, k, rate
        price = _declared_shares(table)
        metric = CellMetric("loss", price, tuple(np.ones(p.shape[1]) for p in price), float(len(price)))
        self.price, self.evaluate = (
            price,
            Evaluator(table, (KAnonymity(1),), metric, 0),
        )  # for its way of counting classes
        # a row is in one class, whose charge moves by `rate` at most; each class is rounded to the grid,
        # which adds one, and floats another
        self.sensitivity = math.ceil(rate * GRID) + 2

    def __call__(self, node: tuple[int, ...]) -> int:
        label, number = self.evaluate.classes(node)
        rows = np.bincount(label, self.table.counts, number) * self.rate
        low = np.zeros(number)
        low[label] = sum(
            (p[level][self.table.codes[:, j]] for j, (p, level) in enumerate(zip(self.price, node))),
            np.zeros(len(label)),
        ) / len(node)
        charge = np.where(rows >= self.k, rows * low, np.minimum(rows, self.k * low + self.k - rows))
        return -int(np.floor(charge * GRID).astype(np.int64).sum())


def _declared_shares(table: Encoded) -> tuple[np.ndarray, ...]:
    """What cells cost, from the declared hierarchies alone: that a null occurs in the table, which adds one
    to its hierarchy, must not move a price.
    """
    made = []
    for c in table.columns:
        null = np.array([v == NULL for v in c.hierarchy.values])
        declared = ~null
        leaves = np.stack([np.bincount(u, declared)[u] for u in c.up])
        share = np.clip((leaves - 1) / max(int(declared.sum()) - 1, 1), 0, 1)
        share[:-1, null] = 0.0  # a null is no other value until the top
        made.append(share)
    return tuple(made)
