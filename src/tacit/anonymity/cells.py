"""Cell-level generalization with the fewest changed cells, exactly, for small tables.

Meyerson, Williams: "On the Complexity of Optimal K-Anonymity", PODS 2004: the problem, its NP-hardness, and
that groups of k to 2k − 1 rows suffice (a larger group can be split, and no cell gets worse). So: choose
groups that cover every row once. A group shows in each column the lowest word that covers it, and pays for
the cells that change. Equal rows are one kind with a count; a group takes a number of rows of each kind:

    minimize Σ_g cost(g)·x_g
    subject to  Σ_g taken(g, kind)·x_g + suppressed(kind) = rows(kind),   Σ suppressed ≤ limit,   x integer
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..parameters import bad, choice, real, whole
from .exact import minimize
from .forest import Forest
from .release import AnonymizationRequest, TableRelease, format_count, make_step
from .table import EncodedTable


def _choices(rows: list[int], size: int, first: int = 0) -> Iterator[dict[int, int]]:
    """Every choice of `size` rows, as rows taken of each kind, in lexicographic order."""
    if size == 0:
        yield {}
        return
    for kind in range(first, len(rows)):
        for n in range(min(rows[kind], size), 0, -1):
            for others in _choices(rows, size - n, kind + 1):
                yield {kind: n, **others}


@dataclass(frozen=True)
class Cells:
    """The fewest changed cells (or the lowest loss) of all k-anonymous tables, by an exact solver.

    For small tables.
    """

    cost: str = choice(
        "changed",
        ("changed", "loss"),
        doc="what to minimize: the number of changed cells, or the mean share of the domain they cover",
    )
    groups: int = whole(
        300_000, least=1, doc="maximum number of groups of rows; a table with more is refused"
    )
    seconds: float = real(120.0, above=0, doc="time limit of the solver")

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        request.require_rows("cells", table)
        k = request.require_only_k("cells")
        kinds = np.flatnonzero(table.counts > 0)
        rows = table.counts[kinds]
        sizes = range(k, min(2 * k - 1, table.rows) + 1)
        possible = sum(math.comb(len(kinds) + s - 1, s) for s in sizes)
        if possible > self.groups:
            raise bad(
                "anonymize",
                "method",
                "cells",
                f"another method for {len(kinds):,} different rows and k = {k}: there are {possible:,} "
                f"groups (at most {self.groups:,})",
                "Use method='cluster' or 'mondrian', or fewer rows.",
            )
        forest = Forest(table.columns)
        nodes = forest.nodes(table.codes[kinds])
        groups: list[tuple[tuple[int, ...], dict[int, int]]] = []  # node, rows taken of each kind
        cost: list[float] = []
        # breaks ties between tables with equally many changed cells by loss: all losses together are below 1
        tie = 0.5 / (table.rows * len(table.columns))
        entries: list[tuple[int, int, int]] = []  # rows, kind, group
        for size in sizes:
            for taken in _choices(rows.tolist(), size):
                node = forest.span(list(taken), nodes)
                entries += [(n, kind, len(groups)) for kind, n in taken.items()]
                cost.append(self._price(forest, node, size, tie))
                groups.append((node, taken))
        g, q = len(groups), len(table.columns)
        entries += [(1, kind, g + kind) for kind in range(len(kinds))]
        entries += [(1, len(kinds), g + kind) for kind in range(len(kinds))]  # the limit on suppressed rows
        values, constraints, variables = (np.array(x) for x in zip(*entries))
        solution = minimize(
            np.array(cost + [float(q)] * len(kinds)),
            (values, constraints, variables),
            np.append(rows, 0),
            np.append(rows, request.limit(table)),
            np.append(np.full(g, float(rows.sum())), rows),
            "method='cells'",
            self.seconds,
        )
        return self._build_release(table, forest, kinds, groups, solution, request)

    def _price(self, forest: Forest, node: tuple[int, ...], size: int, tie: float) -> float:
        if self.cost == "loss":
            return forest.share(node) * size
        cells = forest.cells(np.array(node)[:, None])
        changed = sum(bool(tree.level[c[0]] > 0) for tree, c in zip(forest.trees, cells))
        return size * (changed + tie * forest.share(node))

    def _build_release(
        self,
        table: EncodedTable,
        forest: Forest,
        kinds: np.ndarray,
        groups: list[tuple[tuple[int, ...], dict[int, int]]],
        solution: np.ndarray,
        request: AnonymizationRequest,
    ) -> TableRelease:
        unassigned = {
            kind: list(np.flatnonzero(table.inverse == combination)) for kind, combination in enumerate(kinds)
        }
        record = np.full(len(table.inverse), -1, np.int64)
        records: list[tuple[int, ...]] = []
        for g in np.flatnonzero(solution[: len(groups)]):
            node, taken = groups[g]
            for _ in range(int(solution[g])):
                for kind, n in taken.items():
                    for _ in range(n):
                        record[unassigned[kind].pop(0)] = len(records)
                records.append(node)
        cells = forest.cells(np.array(records).reshape(len(records), len(forest.fused)).T)
        published = record[record >= 0]
        suppressed = int((record < 0).sum() - (table.inverse < 0).sum())
        columns = [(tree, c[published]) for tree, c in zip(forest.trees, cells)]
        changed = sum(int((tree.level[c] > 0).sum()) for tree, c in columns) + suppressed * len(cells)
        share = sum(float(tree.share[c].sum()) for tree, c in columns) + suppressed * len(cells)
        loss = share / (table.rows * len(cells))
        trace = [
            make_step(
                f"{format_count(len(kinds), 'kind')} of rows and {format_count(len(groups), 'group')} of "
                f"{request.k} to {2 * request.k - 1} were considered.",
                kinds=len(kinds),
                groups=len(groups),
            ),
            make_step(
                f"The optimum changes {format_count(changed, 'cell')} of {table.rows * len(cells):,}, in "
                f"{format_count(len(records), 'class')}, and suppresses {format_count(suppressed)}; loss "
                f"{loss:.4f}.",
                changed=changed,
                classes=len(records),
                suppressed=suppressed,
                loss=loss,
            ),
        ]
        levels: list[int | None] = [0 if not tree.level[c].any() else None for tree, c in columns]
        return TableRelease(record, cells, [tree.words for tree in forest.trees], loss, levels, trace)
