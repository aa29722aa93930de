"""k-ambiguity: compatibility instead of identity.

S. A. Vinterbo: "Privacy: A Machine Learning View", IEEE TKDE 16(8), 2004. A released record is
*compatible* with an original one if every cell of it is the original's value or a word above it. Released
records need not be equal to each other, so fewer cells change than for k-anonymity.
  one way   every original record is compatible with at least k released ones: whoever knows a person finds k candidates in the table.
            ((1,k)-anonymity in Gionis, Mazza, Tassa: "k-Anonymization Revisited", ICDE 2008.)
  two ways  and every released record is compatible with at least k original ones: whoever knows everybody
  finds k candidates for a record.
            ((k,k)-anonymity there.)
One way alone is a weak promise: k − 1 rows of nothing but * keep it while all others are published as they
are. A warning says how many released rows fit fewer than k originals. A k-anonymous table is k-ambiguous
in both ways. Neither resists someone who knows *all* people and looks for perfect matchings; k-anonymity
does.

Small tables are solved exactly; larger ones start from a clustering and give cells their values back, as
long as all stay ambiguous:

    minimise Σ price(i, j, l)·x[i, j, l]     x: row i shows column j at level l, one level each
    with  y[i, o] ≤ Σ {x[i, j, l] : the word covers original o}  for every column j       y: released i is compatible with original o
          Σ_i y[i, o] ≥ k for every original o;   two ways: also Σ_o y[i, o]·rows(o) ≥ k for every released i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..parameters import choice, flag, real, whole
from .cluster import Cluster
from .encoded import Encoded
from .exact import minimise
from .release import Release, Request, count, told

CHUNK = 256  # released rows compared with all combinations at once


@dataclass(frozen=True)
class Ambiguity:
    """Every original row fits at least k released ones, which need not look alike: fewer changes than
    k-anonymity, and a weaker promise.
    """

    two_way: bool = flag(False, doc="every released row must also fit at least k originals")
    cost: str = choice(
        "changed",
        ("changed", "loss"),
        doc="what is minimised: cells that change, or the share of the domain they come to stand for",
    )
    exact: int = whole(12, least=0, doc="rows up to which the optimum is found; beyond, a good table")
    block: int = whole(1000, least=10, doc="rows whose candidates are looked for among each other")
    seconds: float = real(120.0, above=0, doc="time for the solver")

    def run(self, table: Encoded, request: Request) -> Release:
        k = request.only_k("ambiguity")
        live = np.flatnonzero(table.inverse >= 0)
        codes = table.codes[table.inverse[live]]
        small = len(live) <= self.exact
        levels = self._optimum(table, codes, k) if small else self._restored(table, request, live, codes, k)
        cells: list[np.ndarray] = []
        words: list[Sequence[str]] = []
        shares: list[np.ndarray] = []
        for j, c in enumerate(table.columns):
            starts = np.cumsum([0] + [len(w) for w in c.words])
            up = np.stack(c.up)
            cells.append(starts[levels[:, j]] + up[levels[:, j], codes[:, j]])
            words.append([word for level in c.words for word in level])
            shares.append(c.share[levels[:, j], codes[:, j]])
        record = np.full(len(table.inverse), -1, np.int64)
        record[live] = np.arange(len(live))
        loss = float(np.mean(shares))
        changed = int((levels > 0).sum())
        how = "The optimum" if small else "The best table found"
        trace = [
            told(
                f"{how} changes {count(changed, 'cell')} of {levels.size:,}; loss {loss:.4f}.",
                changed=changed,
                loss=loss,
                exact=small,
            )
        ]
        plain = 0 if self.two_way else exposed(table, codes, levels, k)
        warnings = (
            [
                f"{count(plain)} of the release fit fewer than k = {k} originals each: k-ambiguity one way "
                "does not ask them to. "
                "Use Ambiguity(two_way=True) unless nobody knows all the originals."
            ]
            if plain
            else []
        )
        steady: list[int | None] = [0 if not levels[:, j].any() else None for j in range(levels.shape[1])]
        return Release(record, cells, words, loss, steady, trace, warnings=warnings, alike=False)

    def _optimum(self, table: Encoded, codes: np.ndarray, k: int) -> np.ndarray:
        n, q = codes.shape
        originals, rows = np.unique(codes, axis=0, return_counts=True)
        m = len(originals)
        choices = [
            (i, j, level)
            for i in range(n)
            for j, c in enumerate(table.columns)
            for level in range(c.height + 1)
        ]
        place = {c: x for x, c in enumerate(choices)}
        tie = 0.5 / (
            n * q
        )  # of two tables with as many changed cells the one with less loss; all losses together stay below 1
        share = np.array([table.columns[j].share[level, codes[i, j]] for i, j, level in choices])
        price = (
            share
            if self.cost == "loss"
            else np.array([float(level > 0) for _, _, level in choices]) + tie * share
        )
        y = len(choices)  # y[i, o] stands at y + i·m + o
        entries: list[tuple[float, int, int]] = []
        low: list[float] = []
        high: list[float] = []

        def rule(terms: list[tuple[float, int]], least: float, most: float) -> None:
            entries.extend((v, len(low), at) for v, at in terms)
            low.append(least)
            high.append(most)

        for i in range(n):
            for j, c in enumerate(table.columns):
                rule([(1.0, place[i, j, level]) for level in range(c.height + 1)], 1, 1)
                for o in range(m):
                    covers = [
                        place[i, j, level]
                        for level in range(c.height + 1)
                        if c.up[level][codes[i, j]] == c.up[level][originals[o, j]]
                    ]
                    rule([(1.0, y + i * m + o), *((-1.0, at) for at in covers)], -np.inf, 0)
            if self.two_way:
                rule([(float(rows[o]), y + i * m + o) for o in range(m)], k, np.inf)
        for o in range(m):
            rule([(1.0, y + i * m + o) for i in range(n)], k, np.inf)
        values, at, of = (np.array(x) for x in zip(*entries))
        found = minimise(
            np.concatenate([price, np.zeros(n * m)]),
            (values, at, of),
            np.array(low),
            np.array(high),
            np.ones(y + n * m),
            "method='ambiguity'",
            self.seconds,
        )
        levels = np.zeros((n, q), np.int64)
        for x in np.flatnonzero(found[:y]):
            i, j, level = choices[x]
            levels[i, j] = level
        return levels

    def _restored(
        self, table: Encoded, request: Request, live: np.ndarray, codes: np.ndarray, k: int
    ) -> np.ndarray:
        """From classes of k, every cell's value is tried back, the dearest first."""
        start = Cluster().run(table, request)
        group = start.record[live]
        levels = np.zeros(codes.shape, np.int64)
        for j, c in enumerate(table.columns):
            of = np.repeat(np.arange(c.height + 1), [len(w) for w in c.words])
            levels[:, j] = of[start.cells[j][group]]
        order = np.lexsort(
            (group, *codes[_first(group)][group].T[::-1])
        )  # classes that begin alike lie together
        sizes = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
        lo = 0
        for end in sizes[1:]:
            if end - lo >= self.block or end == len(order):
                self._give_back(table, codes, levels, order[lo:end], k)
                lo = end
        return levels

    def _give_back(
        self, table: Encoded, codes: np.ndarray, levels: np.ndarray, rows: np.ndarray, k: int
    ) -> None:
        mine = codes[rows]
        fits = compatible(table, mine, levels[rows], mine)
        found = fits.sum(axis=0)
        for i, row in enumerate(rows):
            share = [c.share[levels[row, j], mine[i, j]] for j, c in enumerate(table.columns)]
            for j in np.argsort(share)[::-1]:
                up = table.columns[j].up
                for level in range(levels[row, j]) if self.cost == "loss" else range(min(1, levels[row, j])):
                    still = fits[i] & (up[level][mine[:, j]] == up[level][mine[i, j]])
                    if (found[fits[i] & ~still] > k).all() and (not self.two_way or still.sum() >= k):
                        found -= fits[i] & ~still
                        fits[i] = still
                        levels[row, j] = level
                        break


def _first(group: np.ndarray) -> np.ndarray:
    """A row of each class, at its number."""
    first = np.zeros(int(group.max()) + 1, np.int64)
    first[group[::-1]] = np.arange(len(group) - 1, -1, -1)
    return first


def compatible(table: Encoded, codes: np.ndarray, levels: np.ndarray, originals: np.ndarray) -> np.ndarray:
    """[released, originals]: whether each released row (its own codes at its own levels) covers each
    original.
    """
    fits = np.ones((len(codes), len(originals)), bool)
    for j, c in enumerate(table.columns):
        up = np.stack(c.up)
        mine = up[levels[:, j], codes[:, j]]
        fits &= up[levels[:, j]][:, originals[:, j]] == mine[:, None]
    return fits


def exposed(table: Encoded, codes: np.ndarray, levels: np.ndarray, k: int) -> int:
    """Released rows that fit fewer than k originals."""
    few = 0
    for lo in range(0, len(codes), CHUNK):
        few += int(
            (
                compatible(table, codes[lo : lo + CHUNK], levels[lo : lo + CHUNK], table.codes) @ table.counts
                < k
            ).sum()
        )
    return few


def ambiguity(table: Encoded, codes: np.ndarray, levels: np.ndarray) -> tuple[int, int]:
    """(released rows that fit the worst-off original, originals that fit the worst-off released row): k both
    ways.
    """
    fits = compatible(table, codes, levels, codes)
    return int(fits.sum(axis=0).min()), int(fits.sum(axis=1).min())
