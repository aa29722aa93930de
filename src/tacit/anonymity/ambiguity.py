"""k-ambiguity: compatible rows instead of equal rows.

S. A. Vinterbo: "Privacy: A Machine Learning View", IEEE TKDE 16(8), 2004. A released record is *compatible*
with an original one if every cell of it is the original's value or a word above it. Released records need not
be equal to each other, so fewer cells change than for k-anonymity.
  one-way  every original record is compatible with at least k released ones: an attacker who knows a person
           finds k candidates in the table. ((1,k)-anonymity in Gionis, Mazza, Tassa: "k-Anonymization
           Revisited", ICDE 2008.)
  two-way  also, every released record is compatible with at least k original ones: an attacker who knows
           everybody finds k candidates for a record. ((k,k)-anonymity there.)
One-way ambiguity alone is weak: k − 1 rows of * satisfy it while all others are published unchanged. A
warning gives the number of released rows that are compatible with fewer than k originals. A k-anonymous
table is k-ambiguous in both ways. Neither protects against an attacker who knows *all* people and looks for
perfect matchings; k-anonymity does.

Small tables are solved exactly. Larger ones start from a clustering and restore the values of cells as long
as all records stay ambiguous:

    minimize Σ price(i, j, l)·x[i, j, l]     x: row i shows column j at level l, one level each
    subject to  y[i, o] ≤ Σ {x[i, j, l] : the word covers original o}  for every column j
                Σ_i y[i, o] ≥ k for every original o
                two-way: also Σ_o y[i, o]·rows(o) ≥ k for every released i
    y[i, o]: released row i is compatible with original o
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..parameters import choice, flag, real, whole
from .cluster import Cluster
from .exact import minimize
from .release import AnonymizationRequest, TableRelease, format_count, make_step
from .table import EncodedTable

CHUNK = 256  # released rows compared with all combinations at once


@dataclass(frozen=True)
class Ambiguity:
    """Every original row is compatible with at least k released rows, which need not be equal.

    Changes fewer cells than k-anonymity, and gives a weaker guarantee.
    """

    two_way: bool = flag(False, doc="every released row must also be compatible with at least k originals")
    cost: str = choice(
        "changed",
        ("changed", "loss"),
        doc="what to minimize: the number of changed cells, or the mean share of the domain they cover",
    )
    exact: int = whole(12, least=0, doc="rows up to which the optimum is found; beyond, a good table")
    block: int = whole(1000, least=10, doc="rows that are compared with each other")
    seconds: float = real(120.0, above=0, doc="time limit of the solver")

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        request.require_rows("ambiguity", table)
        k = request.require_only_k("ambiguity")
        live = np.flatnonzero(table.inverse >= 0)
        codes = table.codes[table.inverse[live]]
        is_small = len(live) <= self.exact
        levels = self._solve(table, codes, k) if is_small else self._restore(table, request, live, codes, k)
        cells: list[np.ndarray] = []
        words: list[Sequence[str]] = []
        shares: list[np.ndarray] = []
        for j, c in enumerate(table.columns):
            starts = np.cumsum([0] + [len(w) for w in c.words])
            cells.append(starts[levels[:, j]] + c.paths[levels[:, j], codes[:, j]])
            words.append([word for level in c.words for word in level])
            shares.append(c.share[levels[:, j], codes[:, j]])
        record = np.full(len(table.inverse), -1, np.int64)
        record[live] = np.arange(len(live))
        loss = float(np.mean(shares))
        changed = int((levels > 0).sum())
        trace = [
            make_step(
                f"{'The optimum' if is_small else 'The best table found'} changes "
                f"{format_count(changed, 'cell')} of {levels.size:,}; loss {loss:.4f}.",
                changed=changed,
                loss=loss,
                exact=is_small,
            )
        ]
        exposed = 0 if self.two_way else count_exposed(table, codes, levels, k)
        warnings = (
            [
                f"{format_count(exposed)} of the release are compatible with fewer than k = {k} originals "
                "each: one-way k-ambiguity allows this. Use Ambiguity(two_way=True) unless no attacker "
                "knows all the originals."
            ]
            if exposed
            else []
        )
        column_levels: list[int | None] = [
            0 if not levels[:, j].any() else None for j in range(levels.shape[1])
        ]
        return TableRelease(
            record, cells, words, loss, column_levels, trace, warnings=warnings, has_classes=False
        )

    def _solve(self, table: EncodedTable, codes: np.ndarray, k: int) -> np.ndarray:
        n, q = codes.shape
        originals, rows = np.unique(codes, axis=0, return_counts=True)
        m = len(originals)
        choices = [
            (i, j, level)
            for i in range(n)
            for j, c in enumerate(table.columns)
            for level in range(c.height + 1)
        ]
        index = {c: x for x, c in enumerate(choices)}
        price = np.array([table.columns[j].share[level, codes[i, j]] for i, j, level in choices])
        if self.cost == "changed":
            # break ties between equally many changed cells by loss; all losses add up to less than 1
            tie = 0.5 / (n * q)
            price = np.array([float(level > 0) for _, _, level in choices]) + tie * price
        y = len(choices)  # y[i, o] is variable y + i·m + o
        entries: list[tuple[float, int, int]] = []
        low: list[float] = []
        high: list[float] = []

        def constrain(terms: list[tuple[float, int]], least: float, most: float) -> None:
            entries.extend((value, len(low), variable) for value, variable in terms)
            low.append(least)
            high.append(most)

        for i in range(n):
            for j, c in enumerate(table.columns):
                constrain([(1.0, index[i, j, level]) for level in range(c.height + 1)], 1, 1)
                for o in range(m):
                    covers = [
                        index[i, j, level]
                        for level in range(c.height + 1)
                        if c.up[level][codes[i, j]] == c.up[level][originals[o, j]]
                    ]
                    constrain([(1.0, y + i * m + o), *((-1.0, x) for x in covers)], -np.inf, 0)
            if self.two_way:
                constrain([(float(rows[o]), y + i * m + o) for o in range(m)], k, np.inf)
        for o in range(m):
            constrain([(1.0, y + i * m + o) for i in range(n)], k, np.inf)
        values, constraints, variables = (np.array(x) for x in zip(*entries))
        solution = minimize(
            np.concatenate([price, np.zeros(n * m)]),
            (values, constraints, variables),
            np.array(low),
            np.array(high),
            np.ones(y + n * m),
            "method='ambiguity'",
            self.seconds,
        )
        levels = np.zeros((n, q), np.int64)
        for x in np.flatnonzero(solution[:y]):
            i, j, level = choices[x]
            levels[i, j] = level
        return levels

    def _restore(
        self,
        table: EncodedTable,
        request: AnonymizationRequest,
        live: np.ndarray,
        codes: np.ndarray,
        k: int,
    ) -> np.ndarray:
        """Start from classes of k rows and restore the value of every cell if possible."""
        start = Cluster().run(table, request)
        group = start.record[live]
        levels = np.zeros(codes.shape, np.int64)
        for j, c in enumerate(table.columns):
            level_of = np.repeat(np.arange(c.height + 1), [len(w) for w in c.words])
            levels[:, j] = level_of[start.cells[j][group]]
        # sort classes by the codes of their first row, so that similar ones are in the same block
        first = np.unique(group, return_index=True)[1]
        order = np.lexsort((group, *codes[first][group].T[::-1]))
        ends = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
        low = 0
        for end in ends[1:]:
            if end - low >= self.block or end == len(order):
                self._restore_block(table, codes, levels, order[low:end], k)
                low = end
        return levels

    def _restore_block(
        self, table: EncodedTable, codes: np.ndarray, levels: np.ndarray, rows: np.ndarray, k: int
    ) -> None:
        inside = codes[rows]
        fits = match(table, inside, levels[rows], inside)
        matches = fits.sum(axis=0)
        for i, row in enumerate(rows):
            share = [c.share[levels[row, j], inside[i, j]] for j, c in enumerate(table.columns)]
            for j in np.argsort(share)[::-1]:  # the most expensive cell first
                up = table.columns[j].up
                for level in range(levels[row, j]) if self.cost == "loss" else range(min(1, levels[row, j])):
                    remaining = fits[i] & (up[level][inside[:, j]] == up[level][inside[i, j]])
                    lost = fits[i] & ~remaining
                    if (matches[lost] > k).all() and (not self.two_way or remaining.sum() >= k):
                        matches -= lost
                        fits[i] = remaining
                        levels[row, j] = level
                        break


def match(table: EncodedTable, codes: np.ndarray, levels: np.ndarray, originals: np.ndarray) -> np.ndarray:
    """[released, originals]: whether each released row (codes at levels) is compatible with each original."""
    fits = np.ones((len(codes), len(originals)), bool)
    for j, c in enumerate(table.columns):
        words = c.paths[levels[:, j], codes[:, j]]
        fits &= c.paths[levels[:, j]][:, originals[:, j]] == words[:, None]
    return fits


def count_exposed(table: EncodedTable, codes: np.ndarray, levels: np.ndarray, k: int) -> int:
    """Released rows that are compatible with fewer than k originals."""
    exposed = 0
    for low in range(0, len(codes), CHUNK):
        fits = match(table, codes[low : low + CHUNK], levels[low : low + CHUNK], table.codes)
        exposed += int((fits @ table.counts < k).sum())
    return exposed
