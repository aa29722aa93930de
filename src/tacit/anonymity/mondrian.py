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
*Relaxed*: rows at the median go to either side so that both are half; and children too small to stand alone
may stand together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import BadData
from ..parameters import flag
from .encoded import Column, Encoded, Sensitive
from .hierarchies import STAR
from .models import Classes, KAnonymity, held
from .release import Release, Request, count, told, whole_fails


@dataclass(frozen=True)
class Mondrian:
    """Cut the table in two along its widest column again and again, as long as both halves stay anonymous:
    each class gets its own ranges.
    """

    strict: bool = flag(True, doc="rows with equal values stay together; False lets a cut fall between them")

    def run(self, table: Encoded, request: Request) -> Release:
        request.class_by_class("mondrian")
        work = table if self.strict else by_row(table)
        cutter = Cutter(work, request, self.strict)
        live = np.flatnonzero(work.counts > 0)
        if not cutter.fine([live]):
            raise whole_fails()
        label = np.full(len(work.codes), -1, np.int64)
        summaries: list[list[tuple[int, float]]] = []
        book: list[dict[str, int]] = [{} for _ in table.columns]
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
                [_word(c, work.codes[part, j], b) for j, (c, b) in enumerate(zip(table.columns, book))]
            )
        cells = [np.array([s[j][0] for s in summaries], dtype=np.int64) for j in range(len(table.columns))]
        shares = np.array([[s[1] for s in row] for row in summaries])
        sizes = np.bincount(label[live], work.counts[live], len(summaries))
        loss = float(shares.sum(axis=1) @ sizes) / (table.rows * len(table.columns))
        trace = [
            told(
                f"{count(cuts, 'cut')} made {count(len(summaries), 'class')} of {sizes.min():.0f} to "
                f"{sizes.max():.0f} rows; loss {loss:.4f}.",
                cuts=cuts,
                classes=len(summaries),
                smallest=int(sizes.min()),
                largest=int(sizes.max()),
                loss=loss,
            )
        ]
        record = np.where(work.inverse >= 0, label[work.inverse], -1)
        levels: list[int | None] = [0 if not shares[:, j].any() else None for j in range(len(table.columns))]
        return Release(record, cells, [list(b) for b in book], loss, levels, trace)


class Cutter:
    """Which cut a partition gets."""

    def __init__(self, table: Encoded, request: Request, strict: bool):
        self.table, self.models, self.strict = table, request.models, strict
        self.k = request.k if all(isinstance(m, KAnonymity) for m in request.models) else None
        self.paths = [np.stack(c.up) for c in table.columns]
        self.order = {name: np.argsort(s.combination, kind="stable") for name, s in table.sensitive.items()}
        self.first = {
            name: np.searchsorted(s.combination[self.order[name]], np.arange(len(table.codes) + 1))
            for name, s in table.sensitive.items()
        }

    def fine(self, pieces: list[np.ndarray]) -> bool:
        """Every piece satisfies the models."""
        if self.k is not None:
            return all(int(self.table.counts[p].sum()) >= self.k for p in pieces)
        return bool(self._held(pieces).all())

    def _held(self, pieces: list[np.ndarray]) -> np.ndarray:
        both = np.concatenate(pieces)
        label = np.repeat(np.arange(len(pieces)), [len(p) for p in pieces])
        return held(self.models, Classes(self._only(both), label, len(pieces)))

    def _only(self, part: np.ndarray) -> Encoded:
        """The combinations of a partition alone, with their sensitive values; what is compared with stays the
        whole table's.
        """
        t = self.table
        sensitive = {}
        for name, s in t.sensitive.items():
            starts, ends = self.first[name][part], self.first[name][part + 1]
            lengths = ends - starts
            at = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths) + np.arange(
                int(lengths.sum())
            )
            mine = self.order[name][at]
            sensitive[name] = Sensitive(
                name,
                np.repeat(np.arange(len(part)), lengths),
                s.value[mine],
                s.count[mine],
                s.words,
                s.overall,
            )
        return Encoded(
            t.columns,
            t.codes[part],
            t.counts[part],
            np.zeros(0, np.int64),
            sensitive,
            None if t.population is None else t.population[part],
        )

    def cut(self, part: np.ndarray) -> list[np.ndarray] | None:
        """Lines 1 to 5: the pieces of the widest allowable cut, or None."""
        if len(part) < 2 or (self.k is not None and int(self.table.counts[part].sum()) < 2 * self.k):
            return None
        widths = [width(c, self.table.codes[part, j]) for j, c in enumerate(self.table.columns)]
        for j in sorted(range(len(widths)), key=lambda j: -widths[j]):
            if widths[j] <= 0:
                break
            column, codes = self.table.columns[j], self.table.codes[part, j]
            pieces = self._numbers(column, codes, part) if column.ranges else self._children(j, codes, part)
            if pieces and len(pieces) > 1 and self.fine(pieces):
                return pieces
        return None

    def _numbers(self, column: Column, codes: np.ndarray, part: np.ndarray) -> list[np.ndarray] | None:
        values, counts = column.numbers[codes], self.table.counts[part]
        null = np.isnan(values)
        if null.any():  # a null is no number: it parts from the numbers first
            return [part[null], part[~null]] if not null.all() else None
        order = np.argsort(values, kind="stable")
        total = np.cumsum(counts[order])
        middle = int(np.searchsorted(total, total[-1] / 2))
        if not self.strict:
            middle = min(max(middle + 1, 1), len(part) - 1)
            return [part[order[:middle]], part[order[middle:]]]
        median = values[order[middle]]
        low = values <= median
        if low.all():  # half the rows or more are the largest value
            low = values < median
        return [part[low], part[~low]]

    def _children(self, j: int, codes: np.ndarray, part: np.ndarray) -> list[np.ndarray] | None:
        paths = self.paths[j][:, codes]
        level = lowest(paths)
        if level == 0:
            return None
        below = paths[level - 1]
        pieces = [part[below == child] for child in np.unique(below)]
        if self.strict:
            return pieces
        able = self._held(pieces)
        alone = [p for p, fine in zip(pieces, able) if fine]
        rest = [p for p, fine in zip(pieces, able) if not fine]
        if not rest:
            return pieces
        alone.sort(key=lambda p: int(self.table.counts[p].sum()))
        pool = np.concatenate(rest)
        while alone and not self.fine(
            [pool]
        ):  # the small ones together, and with the smallest of the others if they need it
            pool = np.concatenate([pool, alone.pop(0)])
        return [*alone, pool]


def lowest(paths: np.ndarray) -> int:
    """The lowest level at which all values of [levels, values] are one."""
    return int(np.argmax((paths == paths[:, :1]).all(axis=1)))


def width(column: Column, codes: np.ndarray) -> float:
    """How much of the column's domain a partition spans, from 0 to 1."""
    if column.ranges:
        values = column.numbers[codes]
        null = np.isnan(values)
        if null.any():
            return 0.0 if null.all() else 1.0
        return float(values.max() - values.min()) / column.spread
    level = lowest(np.stack(column.up)[:, codes])
    return float(column.share[level, codes[0]])


def _word(column: Column, codes: np.ndarray, book: dict[str, int]) -> tuple[int, float]:
    """(what a class shows in a column, as a number in the book of its words; the share of the domain that
    stands for).
    """
    share = width(column, codes)
    if column.ranges and share > 0:
        values = column.numbers[codes]
        word = STAR if np.isnan(values).any() else f"{values.min():.12g} – {values.max():.12g}"
    elif column.ranges:
        word = column.hierarchy.values[codes[0]]
    else:
        level = lowest(np.stack(column.up)[:, codes])
        word = column.words[level][column.up[level][codes[0]]]
    return book.setdefault(word, len(book)), share


def by_row(table: Encoded) -> Encoded:
    """The same table with every row a combination of its own, so that equal rows can part."""
    live = np.flatnonzero(table.inverse >= 0)
    inverse = np.full(len(table.inverse), -1, np.int64)
    inverse[live] = np.arange(len(live))
    if table.population is not None:
        raise BadData(
            "Relaxed cuts tell equal rows apart, which a population cannot be asked about. Use strict=True "
            "with k-map and δ-presence."
        )
    sensitive = {
        name: Sensitive(
            name,
            np.arange(len(live)),
            s.rows[live],
            np.ones(len(live), np.int64),
            s.words,
            s.overall,
            s.rows[live],
        )
        for name, s in table.sensitive.items()
    }
    return Encoded(
        table.columns, table.codes[table.inverse[live]], np.ones(len(live), np.int64), inverse, sensitive
    )


def blocks(table: Encoded, part: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """A partition cut at medians of its widest column into pieces of at most `most` combinations; siblings of
    a hierarchy lie next to each other.
    """
    ranks = []
    for c in table.columns:
        rank = np.empty(len(c.hierarchy), np.int64)
        rank[np.lexsort(c.up)] = np.arange(len(rank))  # the last key, the top, sorts first
        ranks.append(rank)
    stack = [part]
    while stack:
        piece = stack.pop()
        if len(piece) <= most:
            yield piece
            continue
        wide = [float(np.ptp(r[table.codes[piece, j]])) / max(len(r) - 1, 1) for j, r in enumerate(ranks)]
        j = int(np.argmax(wide))
        order = np.argsort(ranks[j][table.codes[piece, j]], kind="stable")
        stack += [piece[order[: len(piece) // 2]], piece[order[len(piece) // 2 :]]]
