"""Between an algorithm and a published table: what an algorithm is asked (`Request`), what it answers
(`Release`), and the data frame made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas

from ..errors import BadData
from ..parameters import bad
from .encoded import Encoded, Sensitive, packed, ranked
from .hierarchies import NULL, STAR
from .losses import CELLS, CLASSES, METRICS, CellMetric, ClassMetric
from .models import Classes, KAnonymity, Model, held
from .result import Step, Visited


@dataclass(frozen=True)
class Request:
    """What is asked of an algorithm."""

    models: tuple[Model, ...]
    max_suppressed: float | None = None  # part of the rows; None leaves it to the algorithm
    metric: str = "loss"
    seed: int = 0

    @property
    def k(self) -> int:
        return max((m.k for m in self.models if isinstance(m, KAnonymity)), default=1)

    def limit(self, table: Encoded, otherwise: float = 0.0) -> int:
        """Rows that may be suppressed."""
        return int((otherwise if self.max_suppressed is None else self.max_suppressed) * table.rows + 1e-9)

    def price(self, table: Encoded) -> CellMetric | ClassMetric:
        if self.metric in CELLS:
            return CELLS[self.metric](table)
        if self.metric in CLASSES:
            return ClassMetric(self.metric, table.rows, max(self.k, 1))
        raise bad("anonymize", "metric", self.metric, "one of " + ", ".join(map(repr, METRICS)))

    def only_k(self, method: str) -> int:
        """k, where k-anonymity is all that is asked; other models are refused with the reason."""
        others = [type(m).__name__ for m in self.models if not isinstance(m, KAnonymity)]
        if others:
            raise bad(
                "anonymize",
                "method",
                method,
                "another one when " + " and ".join(others) + " is asked for",
                "This one knows k alone; 'optimal', 'datafly', 'mondrian' and 'cluster' take every model.",
            )
        return self.k

    def class_by_class(self, method: str) -> None:
        """Refuse thresholds on the whole table, and levels that may not depend on it, where classes are made
        one at a time.
        """
        others = [type(m).__name__ for m in self.models if not m.by_class]
        if others:
            raise bad(
                "anonymize",
                "method",
                method,
                "'optimal', 'datafly' or Fixed(levels=…) when " + " and ".join(others) + " is asked for",
                "It looks at the whole table, and this method makes one class after the other.",
            )


@dataclass
class Release:
    """Each row's record, and each record's cells: `words[j][cells[j][record]]`."""

    record: np.ndarray  # of each row of the frame; −1: suppressed
    cells: list[np.ndarray]
    words: list[Sequence[str]]
    loss: float
    levels: list[int | None]
    trace: list[Step] = field(default_factory=list)
    lattice: list[Visited] | None = None
    warnings: list[str] = field(default_factory=list)
    alike: bool = True  # rows of a class show the same cells (k-ambiguity is the exception)


class Method(Protocol):
    def run(self, table: Encoded, request: Request) -> Release: ...


def full_domain(
    table: Encoded,
    levels: Sequence[int],
    lost: np.ndarray,
    loss: float,
    trace: list[Step],
    lattice: list[Visited] | None = None,
) -> Release:
    """The release of one level a column, without the lost combinations."""
    gone = np.zeros(len(table.codes), bool)
    gone[lost] = True
    record = np.where((table.inverse >= 0) & ~gone[table.inverse], table.inverse, -1)
    cells = [c.up[level][table.codes[:, j]] for j, (c, level) in enumerate(zip(table.columns, levels))]
    return Release(
        record,
        cells,
        [c.words[level] for c, level in zip(table.columns, levels)],
        loss,
        [int(v) for v in levels],
        trace,
        lattice,
    )


def priced(
    table: Encoded, levels: Sequence[int], lost: np.ndarray, metric: CellMetric | ClassMetric
) -> float:
    """The loss of one level a column, the lost combinations suppressed."""
    gone = np.zeros(len(table.codes), bool)
    gone[lost] = True
    if isinstance(metric, CellMetric):
        charge = np.where(gone, metric.suppressed(table), metric.rows(table, tuple(levels)))
        return float(charge @ table.counts) / metric.scale
    label, number = table.classes(levels)
    sizes = Classes(table, label, number).sizes
    kept = np.ones(number, bool)
    kept[label[gone]] = False
    there = sizes > 0
    return metric.value(sizes[there], kept[there])


def frame_of(frame: pandas.DataFrame, table: Encoded, release: Release, starred: bool) -> pandas.DataFrame:
    """The table to publish: suppressed rows left out, or * in every quasi-identifier. Columns at level 0 keep
    their own cells and kind.
    """
    published = release.record >= 0
    out = (frame if starred or published.all() else frame[published]).copy(deep=False)
    record = release.record if starred else release.record[published]
    for column, cells, words, level in zip(table.columns, release.cells, release.words, release.levels):
        if level == 0 and not (starred and not published.all()):
            continue
        texts = pandas.array([None if w == NULL else w for w in words] + [STAR], dtype="str")
        place = np.where(
            record >= 0, cells[record], len(words)
        )  # a record of −1 reads the last cell, and is replaced here
        out[column.name] = pandas.Series(texts.take(place), index=out.index)
    return out


def published_classes(release: Release) -> tuple[np.ndarray, int]:
    """(class of each published row, how many): rows whose every quasi-identifier shows the same."""
    rows = release.record[release.record >= 0]
    if not len(rows):
        return rows, 0
    used = np.zeros(len(release.cells[0]), bool)
    used[rows] = True
    key, _ = packed([cells[used] for cells in release.cells], [len(w) for w in release.words])
    label = np.zeros(len(used), np.int64)
    label[used], number = ranked(key)
    return label[rows], number


def verify(
    table: Encoded, release: Release, models: tuple[Model, ...], label: np.ndarray, number: int
) -> None:
    """Hold the published classes to the models once more, from the release alone: no mistake of an algorithm
    may reach a published table. (Models that compare with a population are left to the algorithms: which of
    its people fit a class is not in the release.)
    """
    rows = np.flatnonzero(release.record >= 0)
    sensitive = {
        name: Sensitive(
            name, np.arange(len(rows)), s.rows[rows], np.ones(len(rows), np.int64), s.words, s.overall
        )
        for name, s in table.sensitive.items()
    }
    shown = Encoded(table.columns, np.zeros((0, 0), np.int32), np.ones(len(rows), np.int64), rows, sensitive)
    fine = held(tuple(m for m in models if not m.needs_population), Classes(shown, label, number))
    if not fine.all():
        raise RuntimeError(
            f"{count(int((~fine).sum()), 'class')} of the table that was about to be published fail a "
            "privacy model. This is a defect of "
            "tacit, and nothing was published; please report it with the method and the models."
        )


def whole_fails() -> BadData:
    return BadData(
        "The whole table as one class fails the privacy models, so nothing can be published. Ask for less "
        "(a smaller k or l, a larger t)."
    )


def count(n: int, word: str = "row") -> str:
    """'1 row', '2,000 rows', '3 classes'."""
    return f"{n:,} {word}" + ("" if n == 1 else "es" if word.endswith("s") else "s")


def told(step: str, **counts: Any) -> Step:
    return Step(step, counts)
