"""Mondrian. K. LeFevre, D. J. DeWitt, R. Ramakrishnan: "Mondrian Multidimensional k-Anonymity", ICDE 2006.

    Anonymize(partition):
1.      if no allowable cut: return the partition's summary
2.      dim ← choose_dimension()           the widest, of those with an allowable cut
3.      fs ← frequency_set(partition, dim)
4.      splitVal ← find_median(fs)
5.      lhs ← {t : t.dim ≤ splitVal};  rhs ← {t : t.dim > splitVal}
6.      return Anonymize(rhs) ∪ Anonymize(lhs)

Numbers without a hierarchy are cut at the median and shown as ranges. A column with a hierarchy is cut into
the children of the lowest node that covers the partition. *Strict*: rows with equal values stay together.
*Relaxed*: rows at the median go to either side so that both have half of the rows, and children that are too
small are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import BadData
from ..parameters import flag
from .classes import Classes, SensitiveColumn
from .hierarchies import STAR
from .models import KAnonymity, check_models
from .release import AnonymizationRequest, TableRelease, format_count, make_step, whole_table_fails
from .table import Column, EncodedTable


@dataclass(frozen=True)
class Mondrian:
    """Cut the table along its widest column, recursively, as long as all pieces satisfy the models.

    Each class gets its own ranges.
    """

    strict: bool = flag(True, doc="rows with equal values stay together; False allows cuts between them")

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        request.require_rows("mondrian", table)
        request.require_per_class("mondrian")
        work = table if self.strict else split_rows(table)
        cutter = Cutter(work, request, self.strict)
        live = np.flatnonzero(work.counts > 0)
        if not cutter.is_allowed([live]):
            raise whole_table_fails()
        label = np.full(len(work.codes), -1, np.int64)
        summaries: list[list[tuple[int, float]]] = []
        vocabulary: list[dict[str, int]] = [{} for _ in table.columns]
        stack, cuts = [live], 0
        while stack:
            part = stack.pop()
            pieces = cutter.cut(part)
            if pieces:
                stack.extend(pieces)
                cuts += 1
                continue
            label[part] = len(summaries)
            summaries.append(
                [
                    _summarize(c, work.codes[part, j], v)
                    for j, (c, v) in enumerate(zip(table.columns, vocabulary))
                ]
            )
        cells = [np.array([s[j][0] for s in summaries], dtype=np.int64) for j in range(len(table.columns))]
        shares = np.array([[s[1] for s in row] for row in summaries])
        sizes = np.bincount(label[live], work.counts[live], len(summaries))
        loss = float(shares.sum(axis=1) @ sizes) / (table.rows * len(table.columns))
        trace = [
            make_step(
                f"{format_count(cuts, 'cut')} produced {format_count(len(summaries), 'class')} of "
                f"{sizes.min():.0f} to {sizes.max():.0f} rows; loss {loss:.4f}.",
                cuts=cuts,
                classes=len(summaries),
                smallest=int(sizes.min()),
                largest=int(sizes.max()),
                loss=loss,
            )
        ]
        record = np.where(work.inverse >= 0, label[work.inverse], -1)
        levels: list[int | None] = [0 if not shares[:, j].any() else None for j in range(len(table.columns))]
        return TableRelease(record, cells, [list(v) for v in vocabulary], loss, levels, trace)


class Cutter:
    """Choose the cut of a partition (an array of combinations)."""

    def __init__(self, table: EncodedTable, request: AnonymizationRequest, strict: bool):
        self.table, self.models, self.strict = table, request.models, strict
        self.k = request.k if all(isinstance(m, KAnonymity) for m in request.models) else None
        # triples of combination i are first[i] to first[i + 1]
        self.first = {
            name: np.searchsorted(s.item, np.arange(len(table.codes) + 1))
            for name, s in table.sensitive.items()
        }

    def is_allowed(self, pieces: list[np.ndarray]) -> bool:
        """Whether every piece satisfies the models."""
        if self.k is not None:
            return all(int(self.table.counts[p].sum()) >= self.k for p in pieces)
        return bool(self._check(pieces).all())

    def _check(self, pieces: list[np.ndarray]) -> np.ndarray:
        """Which pieces satisfy the models. Their sensitive values are compared with the whole table's."""
        t, part = self.table, np.concatenate(pieces)
        label = np.repeat(np.arange(len(pieces)), [len(p) for p in pieces])
        sensitive = {}
        for name, s in t.sensitive.items():
            starts = self.first[name][part]
            lengths = self.first[name][part + 1] - starts
            ends = np.cumsum(lengths)
            triples = np.repeat(starts - ends + lengths, lengths) + np.arange(int(lengths.sum()))
            item = np.repeat(np.arange(len(part)), lengths)
            count = None if s.count is None else s.count[triples]
            sensitive[name] = SensitiveColumn(name, item, s.value[triples], count, s.words, s.overall)
        population = None if t.population is None else t.population[part]
        return check_models(self.models, Classes(label, len(pieces), t.counts[part], sensitive, population))

    def cut(self, part: np.ndarray) -> list[np.ndarray] | None:
        """Lines 1 to 5: the pieces of the widest allowable cut, or None."""
        if len(part) < 2 or (self.k is not None and int(self.table.counts[part].sum()) < 2 * self.k):
            return None
        widths = [width(c, self.table.codes[part, j]) for j, c in enumerate(self.table.columns)]
        for j in sorted(range(len(widths)), key=lambda j: -widths[j]):
            if widths[j] <= 0:
                break
            column, codes = self.table.columns[j], self.table.codes[part, j]
            cut = (
                self._cut_numbers(column, codes, part)
                if column.has_ranges
                else self._cut_tree(column, codes, part)
            )
            if cut and len(cut) > 1 and self.is_allowed(cut):
                return cut
        return None

    def _cut_numbers(self, column: Column, codes: np.ndarray, part: np.ndarray) -> list[np.ndarray] | None:
        values, counts = column.numbers[codes], self.table.counts[part]
        is_null = np.isnan(values)
        if is_null.any():  # nulls are separated from the numbers first
            return [part[is_null], part[~is_null]] if not is_null.all() else None
        order = np.argsort(values, kind="stable")
        total = np.cumsum(counts[order])
        middle = int(np.searchsorted(total, total[-1] / 2))
        if not self.strict:
            middle = min(max(middle + 1, 1), len(part) - 1)
            return [part[order[:middle]], part[order[middle:]]]
        median = values[order[middle]]
        low = values <= median
        if low.all():  # at least half of the rows have the largest value
            low = values < median
        return [part[low], part[~low]]

    def _cut_tree(self, column: Column, codes: np.ndarray, part: np.ndarray) -> list[np.ndarray] | None:
        paths = column.paths[:, codes]
        level = lowest_level(paths)
        if level == 0:
            return None
        below = paths[level - 1]
        pieces = [part[below == child] for child in np.unique(below)]
        if self.strict:
            return pieces
        allowed = self._check(pieces)
        alone = [p for p, is_allowed in zip(pieces, allowed) if is_allowed]
        rest = [p for p, is_allowed in zip(pieces, allowed) if not is_allowed]
        if not rest:
            return pieces
        alone.sort(key=lambda p: int(self.table.counts[p].sum()))
        merged = np.concatenate(rest)
        while alone and not self.is_allowed([merged]):  # add the smallest of the others if needed
            merged = np.concatenate([merged, alone.pop(0)])
        return [*alone, merged]


def lowest_level(paths: np.ndarray) -> int:
    """The lowest level at which all values of [levels, values] are equal."""
    return int(np.argmax((paths == paths[:, :1]).all(axis=1)))


def width(column: Column, codes: np.ndarray) -> float:
    """The share of the column's domain that a partition spans, from 0 to 1."""
    if column.has_ranges:
        values = column.numbers[codes]
        is_null = np.isnan(values)
        if is_null.any():
            return 0.0 if is_null.all() else 1.0
        return float(values.max() - values.min()) / column.spread
    return float(column.share[lowest_level(column.paths[:, codes]), codes[0]])


def _summarize(column: Column, codes: np.ndarray, vocabulary: dict[str, int]) -> tuple[int, float]:
    """(number of the class's word in the vocabulary of a column, share of the domain it covers)."""
    share = width(column, codes)
    if column.has_ranges and share > 0:
        values = column.numbers[codes]
        word = STAR if np.isnan(values).any() else f"{values.min():.12g} – {values.max():.12g}"
    elif column.has_ranges:
        word = column.hierarchy.values[codes[0]]
    else:
        level = lowest_level(column.paths[:, codes])
        word = column.words[level][column.up[level][codes[0]]]
    return vocabulary.setdefault(word, len(vocabulary)), share


def split_rows(table: EncodedTable) -> EncodedTable:
    """The same table with every row a combination of its own, so that equal rows can be separated."""
    if table.population is not None:
        raise BadData(
            "strict=False separates equal rows, which is not defined for a population. Use strict=True with "
            "k-map and δ-presence."
        )
    live = np.flatnonzero(table.inverse >= 0)
    inverse = np.full(len(table.inverse), -1, np.int64)
    inverse[live] = np.arange(len(live))
    sensitive = {
        name: SensitiveColumn.from_rows(name, s.rows[live], s.words, s.overall)
        for name, s in table.sensitive.items()
    }
    codes = table.codes[table.inverse[live]]
    return EncodedTable(table.columns, codes, np.ones(len(live), np.int64), inverse, sensitive)


def cut_blocks(table: EncodedTable, part: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Cut a partition at medians of its widest column into pieces of at most `size` combinations.

    Siblings of a hierarchy are sorted next to each other.
    """
    ranks = []
    for c in table.columns:
        rank = np.empty(len(c.hierarchy), np.int64)
        rank[np.lexsort(c.up)] = np.arange(len(rank))  # lexsort's primary key is the last one, the top level
        ranks.append(rank)
    stack = [part]
    while stack:
        piece = stack.pop()
        if len(piece) <= size:
            yield piece
            continue
        widths = [float(np.ptp(r[table.codes[piece, j]])) / max(len(r) - 1, 1) for j, r in enumerate(ranks)]
        j = int(np.argmax(widths))
        order = np.argsort(ranks[j][table.codes[piece, j]], kind="stable")
        stack += [piece[order[: len(piece) // 2]], piece[order[len(piece) // 2 :]]]
