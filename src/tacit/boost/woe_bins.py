"""Weight of evidence: the bins of a column from counts of events, merged until every bin is large enough.

    WOE of a bin   ln( its share of all other rows / its share of all events )     Siddiqi: Credit Risk
    IV of a bin    (share of others − share of events) · WOE                        Scorecards, 2006
    IV of a column the sum over its bins

A number's bins are intervals of adjacent quantile bins, merged

    1. where a bin is too small, with the neighbor of the closer event rate
    2. where the event rate changes direction: pool adjacent violators, in the direction with the larger IV
    3. down to the number of bins asked for, where the loss of IV is least

A category's bins are sets of levels: small levels are "other", then rule 3 in the order of event rates.
Missing values have a bin of their own. Other levels and missing values that are too few join the largest bin,
so no bin is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .bins import Feature

MISSING, OTHER = "missing", "other"
Counts = np.ndarray  # bins × 2: other rows, events


@dataclass(frozen=True)
class WoeRules:
    """How small a bin may be, and how many a column may have."""

    bins: int
    monotone: bool
    share_rows: int  # the smallest share of rows, of intervals and levels
    min_rows: int
    min_cell: int

    def is_small(self, counts: Counts, share: bool = True) -> np.ndarray:
        least = max(self.min_rows, self.share_rows) if share else self.min_rows
        return np.asarray((counts.sum(axis=-1) < least) | (counts.min(axis=-1) < self.min_cell))


@dataclass(frozen=True)
class WoeBin:
    """One bin of a column: what is in it, and its counts over all parties."""

    name: str
    others: int
    events: int
    woe: float
    iv: float

    @property
    def rows(self) -> int:
        return self.others + self.events


@dataclass(frozen=True)
class WoeColumn:
    """A column's bins. `place` is the bin of each of the feature's cells, −1 for one that no row was in."""

    feature: Feature
    place: tuple[int, ...]
    bins: tuple[WoeBin, ...]

    @property
    def name(self) -> str:
        return self.feature.name

    @property
    def iv(self) -> float:
        return float(sum(b.iv for b in self.bins))


def weigh(counts: Counts, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return WOE and IV of bins. A bin without rows of one kind is given half a row of each."""
    counts = np.asarray(counts, dtype=np.float64)
    counts = np.where((counts == 0).any(axis=-1, keepdims=True), counts + 0.5, counts)
    shares = counts / totals
    woe = np.log(shares[..., 0] / shares[..., 1])
    return woe, (shares[..., 0] - shares[..., 1]) * woe


def bin_column(feature: Feature, counts: Counts, totals: np.ndarray, rules: WoeRules) -> WoeColumn:
    """Return the bins of a column from the counts of its cells (the last is that of missing values)."""
    missing = len(counts) - 1
    if feature.levels is None:
        groups = merge_ordered([[k] for k in range(missing)], counts, totals, rules)
        cuts = feature.cuts or ()
        feature = replace(feature, cuts=tuple(cuts[g[0] - 1] for g in groups[1:]))  # a cut is below its cell
        names = _intervals(feature.cuts or ())
        cells = list(range(len(groups)))
    else:
        levels = feature.levels
        small = rules.is_small(counts[: len(levels)])
        groups = [[k] for k in np.flatnonzero(~small).tolist()]
        order = np.argsort(_rate(_tally(groups, counts)), kind="stable")
        groups = _limit([groups[k] for k in order], counts, totals, rules.bins)
        names = [", ".join(levels[k] for k in sorted(g)) for g in groups]
        groups, names = [*groups, [*np.flatnonzero(small).tolist(), len(levels)]], [*names, OTHER]
        cells = [next(i for i, g in enumerate(groups) if k in g) for k in range(missing)]
    groups, names, cells = [*groups, [missing]], [*names, MISSING], [*cells, len(groups)]
    tally = _tally(groups, counts)
    to = _join_small(names, tally, rules)
    for k, target in enumerate(to):
        if target not in (k, -1):
            names[target], tally[target] = f"{names[target]}, {names[k]}", tally[target] + tally[k]
    kept = [k for k, target in enumerate(to) if target == k]
    woe, iv = weigh(tally[kept], totals)
    bins = tuple(
        WoeBin(names[k], int(tally[k, 0]), int(tally[k, 1]), float(w), float(v))
        for k, w, v in zip(kept, woe, iv)
    )
    return WoeColumn(feature, tuple(kept.index(to[c]) if to[c] >= 0 else -1 for c in cells), bins)


def _join_small(names: Sequence[str], tally: Counts, rules: WoeRules) -> list[int]:
    """Return the bin that each one becomes: itself, the largest if it is too small, −1 if it has no rows."""
    rows = tally.sum(axis=1)
    largest = int(np.argmax(rows))
    small = rules.is_small(tally, share=False)
    return [-1 if not rows[k] else largest if small[k] and k != largest else k for k in range(len(names))]


def merge_ordered(
    groups: list[list[int]], counts: Counts, totals: np.ndarray, rules: WoeRules
) -> list[list[int]]:
    """Return adjacent cells merged by rules (1) to (3)."""
    groups = _drop_small(groups, counts, rules)
    if rules.monotone:
        both = [_pool(groups, counts, sign) for sign in (1, -1)]
        values = [weigh(_tally(g, counts), totals)[1].sum() for g in both]
        groups = both[int(values[1] > values[0])]
    return _limit(groups, counts, totals, rules.bins)


def _drop_small(groups: list[list[int]], counts: Counts, rules: WoeRules) -> list[list[int]]:
    """(1) Merge the smallest of the bins that are too small, until none is."""
    groups = [list(g) for g in groups]
    while len(groups) > 1:
        tally = _tally(groups, counts)
        small = np.flatnonzero(rules.is_small(tally))
        if not len(small):
            break
        k = int(small[np.argmin(tally[small].sum(axis=1))])
        if k == 0 or k == len(groups) - 1:
            left = min(k, len(groups) - 2)
        else:
            rates = _rate(tally)
            left = k - 1 if abs(rates[k - 1] - rates[k]) <= abs(rates[k + 1] - rates[k]) else k
        groups[left : left + 2] = [groups[left] + groups[left + 1]]
    return groups


def _pool(groups: Sequence[list[int]], counts: Counts, sign: int) -> list[list[int]]:
    """(2) Merge adjacent bins until sign · event rate rises from each to the next."""
    out: list[tuple[list[int], np.ndarray]] = []
    for group in groups:
        out.append((list(group), counts[group].sum(axis=0)))
        while len(out) > 1 and sign * _rate(out[-2][1]) >= sign * _rate(out[-1][1]):
            (second, b), (first, a) = out.pop(), out.pop()
            out.append((first + second, a + b))
    return [group for group, _ in out]


def _limit(groups: list[list[int]], counts: Counts, totals: np.ndarray, most: int) -> list[list[int]]:
    """(3) Merge the pair of adjacent bins that loses the least IV, until there are few enough."""
    groups = [list(g) for g in groups]
    while len(groups) > most:
        tally = _tally(groups, counts)
        iv = weigh(tally, totals)[1]
        loss = iv[:-1] + iv[1:] - weigh(tally[:-1] + tally[1:], totals)[1]
        k = int(np.argmin(loss))
        groups[k : k + 2] = [groups[k] + groups[k + 1]]
    return groups


def _tally(groups: Sequence[list[int]], counts: Counts) -> Counts:
    return np.array([counts[g].sum(axis=0) for g in groups], dtype=np.int64).reshape(len(groups), 2)


def _rate(counts: Counts) -> np.ndarray:
    return np.asarray(counts[..., 1] / np.maximum(counts.sum(axis=-1), 1))


def _intervals(cuts: Sequence[float]) -> list[str]:
    ends = [f"{c:g}" for c in cuts]
    if len(set(ends)) < len(ends):  # %g has six digits
        ends = [repr(c) for c in cuts]
    return [f"[{a}, {b})" for a, b in zip(["-inf", *ends], [*ends, "inf"])]
