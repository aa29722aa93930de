"""Cell-level generalisation with the fewest changed cells, exactly, for small tables.

Meyerson, Williams: "On the Complexity of Optimal K-Anonymity", PODS 2004: the problem, that it is NP-hard,
and that groups of k to 2k − 1 rows suffice (a larger group falls in two, and no cell gets worse). So:
choose groups that cover every row once; a group shows in each column the lowest word that covers it, and
pays for the cells that change. Equal rows are one kind with a number, and a group is how many it takes of
each kind:

    minimise Σ_g cost(g)·x_g    with    Σ_g taken(g, kind)·x_g + left_out(kind) = rows(kind),   Σ left_out ≤ the limit,   x whole
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ..parameters import bad, choice, real, whole
from .encoded import Encoded
from .exact import minimise
from .forest import Forest
from .improve import spanned
from .release import Release, Request, count, told


@dataclass(frozen=True)
class Cells:
    """The fewest changed cells (or the least loss) of all k-anonymous tables, by an exact solver; for small
    tables.
    """

    cost: str = choice(
        "changed",
        ("changed", "loss"),
        doc="what is minimised: cells that change, or the share of the domain they come to stand for",
    )
    groups: int = whole(
        300_000, least=1, doc="groups of rows to consider at most; a table with more is refused"
    )
    seconds: float = real(120.0, above=0, doc="time for the solver")

    def run(self, table: Encoded, request: Request) -> Release:
        k = request.only_k("cells")
        kinds = np.flatnonzero(table.counts > 0)
        rows = table.counts[kinds]
        sizes = range(k, min(2 * k - 1, table.rows) + 1)
        possible = sum(math.comb(len(kinds) + s - 1, s) for s in sizes)
        if possible > self.groups:
            raise bad(
                "anonymize",
                "method",
                "cells",
                f"another one for {len(kinds):,} different rows and k = {k}: there are {possible:,} groups "
                f"(at most {self.groups:,})",
                "Use method='cluster' or 'mondrian', or fewer rows.",
            )
        forest = Forest(table.columns)
        nodes = forest.nodes(table.codes[kinds])
        spans: list[tuple[tuple[int, ...], dict[int, int]]] = []
        cost: list[float] = []
        tie = 0.5 / (
            table.rows * len(table.columns)
        )  # of two tables with as many changed cells the one with less loss; all losses together stay below 1
        entries: list[tuple[int, int, int]] = []  # how many, kind, group
        for size in sizes:
            for group in itertools.combinations_with_replacement(range(len(kinds)), size):
                taken = {kind: sum(1 for _ in same) for kind, same in itertools.groupby(group)}
                if any(n > rows[kind] for kind, n in taken.items()):
                    continue
                span = spanned(forest, list(taken), nodes)
                entries += [(n, kind, len(spans)) for kind, n in taken.items()]
                cost.append(self._price(forest, span, size, tie))
                spans.append((span, taken))
        limit = request.limit(table)
        g, q = len(spans), len(table.columns)
        entries += [(1, kind, g + kind) for kind in range(len(kinds))] + [
            (1, len(kinds), g + kind) for kind in range(len(kinds))
        ]
        values, at, of = (np.array(x) for x in zip(*entries))
        chosen = minimise(
            np.array(cost + [float(q)] * len(kinds)),
            (values, at, of),
            np.append(rows, 0),
            np.append(rows, limit),
            np.append(np.full(g, float(rows.sum())), rows),
            "method='cells'",
            self.seconds,
        )
        return self._release(table, forest, kinds, spans, chosen, request)

    def _price(self, forest: Forest, span: tuple[int, ...], size: int, tie: float) -> float:
        if self.cost == "loss":
            return forest.share(span) * size
        # a cell is changed unless its node is a value; a fused node's parts tell
        changed = sum(
            bool(tree.level[c[0]] > 0) for tree, c in zip(forest.trees, forest.cells(np.array(span)[:, None]))
        )
        return size * (changed + tie * forest.share(span))

    def _release(
        self,
        table: Encoded,
        forest: Forest,
        kinds: np.ndarray,
        spans: list[tuple[tuple[int, ...], dict[int, int]]],
        chosen: np.ndarray,
        request: Request,
    ) -> Release:
        waiting = {
            kind: list(np.flatnonzero(table.inverse == combination)) for kind, combination in enumerate(kinds)
        }
        record = np.full(len(table.inverse), -1, np.int64)
        records: list[tuple[int, ...]] = []
        for g in np.flatnonzero(chosen[: len(spans)]):
            span, taken = spans[g]
            for _ in range(int(chosen[g])):
                for kind, n in taken.items():
                    for _ in range(n):
                        record[waiting[kind].pop(0)] = len(records)
                records.append(span)
        cells = forest.cells(np.array(records).reshape(len(records), len(forest.fused)).T)
        shown = record[record >= 0]
        gone = int((record < 0).sum() - (table.inverse < 0).sum())
        changed = sum(
            int((tree.level[c[shown]] > 0).sum()) for tree, c in zip(forest.trees, cells)
        ) + gone * len(cells)
        loss = (
            sum(float(tree.share[c[shown]].sum()) for tree, c in zip(forest.trees, cells)) + gone * len(cells)
        ) / (table.rows * len(cells))
        trace = [
            told(
                f"{count(len(kinds), 'kind')} of rows and {count(len(spans), 'group')} of {request.k} to "
                f"{2 * request.k - 1} were weighed.",
                kinds=len(kinds),
                groups=len(spans),
            ),
            told(
                f"The optimum changes {count(changed, 'cell')} of {table.rows * len(cells):,}, in "
                f"{count(len(records), 'class')}, and suppresses "
                f"{count(gone)}; loss {loss:.4f}.",
                changed=changed,
                classes=len(records),
                suppressed=gone,
                loss=loss,
            ),
        ]
        levels: list[int | None] = [
            0 if not tree.level[c[shown]].any() else None for tree, c in zip(forest.trees, cells)
        ]
        return Release(record, cells, [tree.words for tree in forest.trees], loss, levels, trace)
