"""The interface of anonymization methods: a request in, a release out, and the data frame built from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas

from ..errors import BadData
from ..parameters import bad
from .classes import Classes, SensitiveColumn, count_overall
from .codes import pack_keys, rank_keys
from .hierarchies import NULL, STAR
from .losses import CELL_METRICS, CLASS_METRICS, METRICS, CellMetric, ClassMetric
from .models import KAnonymity, PrivacyModel, check_models
from .result import LatticeNode, Step
from .table import EncodedTable


@dataclass(frozen=True)
class AnonymizationRequest:
    """What a method must achieve."""

    models: tuple[PrivacyModel, ...]
    max_suppressed: float | None = None  # fraction of the rows; None: the method's own limit
    metric: str = "loss"

    @property
    def k(self) -> int:
        return max((m.k for m in self.models if isinstance(m, KAnonymity)), default=1)

    def limit(self, table: EncodedTable) -> int:
        """Rows that may be suppressed; none by default."""
        return int((self.max_suppressed or 0.0) * table.rows + 1e-9)

    def build_metric(self, table: EncodedTable) -> CellMetric | ClassMetric:
        if self.metric in CELL_METRICS:
            return CELL_METRICS[self.metric](table)
        if self.metric in CLASS_METRICS:
            return ClassMetric(self.metric, table.rows, max(self.k, 1))
        raise bad("anonymize", "metric", self.metric, "one of " + ", ".join(map(repr, METRICS)))

    def require_rows(self, method: str, table: EncodedTable) -> None:
        """Raise if people have several rows: the method counts rows."""
        if table.person is not None:
            raise bad(
                "anonymize",
                "method",
                method,
                "'optimal' or Fixed(levels=…) with person=",
                "This method counts rows, not people.",
            )

    def require_only_k(self, method: str) -> int:
        """Return k. Raise if a model other than k-anonymity is requested."""
        others = [type(m).__name__ for m in self.models if not isinstance(m, KAnonymity)]
        if others:
            raise bad(
                "anonymize",
                "method",
                method,
                "another method for " + " and ".join(others),
                "This method supports only k; 'optimal', 'datafly', 'mondrian' and 'cluster' support every "
                "model.",
            )
        return self.k

    def require_per_class(self, method: str) -> None:
        """Raise if a model limits a statistic of the whole table: the method builds classes one at a time."""
        others = [type(m).__name__ for m in self.models if not m.is_per_class]
        if others:
            raise bad(
                "anonymize",
                "method",
                method,
                "'optimal', 'datafly' or Fixed(levels=…) for " + " and ".join(others),
                "It depends on the whole table, and this method builds one class at a time.",
            )


@dataclass
class TableRelease:
    """Each row's record, and each record's cells: `words[j][cells[j][record]]`."""

    record: np.ndarray  # of each row of the frame; −1: suppressed
    cells: list[np.ndarray]
    words: list[Sequence[str]]
    loss: float
    levels: list[int | None]
    trace: list[Step] = field(default_factory=list)
    lattice: list[LatticeNode] | None = None
    warnings: list[str] = field(default_factory=list)
    has_classes: bool = True  # every row must equal k − 1 others; False for k-ambiguity


class Method(Protocol):
    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease: ...


def release_levels(
    table: EncodedTable,
    levels: Sequence[int],
    suppressed: np.ndarray,
    loss: float,
    trace: list[Step],
    lattice: list[LatticeNode] | None = None,
) -> TableRelease:
    """The release with one level per column, without the suppressed combinations."""
    is_published = np.ones(len(table.codes), bool)
    is_published[suppressed] = False
    record = np.where((table.inverse >= 0) & is_published[table.inverse], table.inverse, -1)
    cells = [c.up[level][table.codes[:, j]] for j, (c, level) in enumerate(zip(table.columns, levels))]
    words: list[Sequence[str]] = [c.words[level] for c, level in zip(table.columns, levels)]
    return TableRelease(record, cells, words, loss, [int(v) for v in levels], trace, lattice)


def price_levels(
    table: EncodedTable, levels: Sequence[int], suppressed: np.ndarray, metric: CellMetric | ClassMetric
) -> float:
    """The loss with one level per column and these combinations suppressed."""
    if isinstance(metric, CellMetric):
        charge = metric.charge(table.codes, tuple(levels))
        charge[suppressed] = metric.charge_suppressed(table.codes)[suppressed]
        return float(charge @ table.counts) / metric.scale
    classes = table.classes(levels)
    is_published = np.ones(classes.number, bool)
    is_published[classes.label[suppressed]] = False
    occupied = classes.sizes > 0
    return metric.value(classes.sizes[occupied], is_published[occupied])


def price_rows(table: EncodedTable, levels: Sequence[int], record: np.ndarray, metric: CellMetric) -> float:
    """The loss with one level per column and only these rows published."""
    published = np.bincount(record[record >= 0], minlength=len(table.codes))
    charge = metric.charge(table.codes, tuple(levels)) @ published
    return float(charge + metric.charge_suppressed(table.codes) @ (table.counts - published)) / metric.scale


def publish_rows(
    frame: pandas.DataFrame, table: EncodedTable, release: TableRelease, starred: bool
) -> tuple[pandas.DataFrame, np.ndarray]:
    """The published rows in an order that depends on their content only, and where each is in `frame`.

    The order of the original often has a meaning (admission, household), and row labels may be ids. Columns
    are hashed and built one at a time, in their final order: with ten million rows, a table and its copy in
    another order would be gigabytes.
    """
    texts = _published_texts(table, release, starred)
    rows = np.arange(len(frame)) if starred else np.flatnonzero(release.record >= 0)
    record = release.record[rows]
    order = np.argsort(_hash_rows(frame, rows, record, texts), kind="stable")
    rows, record = rows[order], record[order]
    del order
    columns = {
        i: pandas.Series(_take_texts(texts[name][0], texts[name][1], record))
        if name in texts
        else pandas.Series(frame.iloc[:, i].array.take(rows))  # without an index of the old places
        for i, name in enumerate(frame.columns)
    }
    out = pandas.DataFrame(columns, copy=False)
    out.columns = frame.columns
    return out, rows


Texts = dict[str, tuple[pandas.api.extensions.ExtensionArray, np.ndarray]]


def _published_texts(table: EncodedTable, release: TableRelease, starred: bool) -> Texts:
    """Of columns that do not stay as they are: the words, the last for suppression, and cells of records."""
    is_complete = bool((release.record >= 0).all())
    return {
        column.name: (pandas.array([None if w == NULL else w for w in words] + [STAR], dtype="str"), cells)
        for column, cells, words, level in zip(table.columns, release.cells, release.words, release.levels)
        if level != 0 or (starred and not is_complete)
    }


def _take_texts(words: Any, cells: np.ndarray, record: np.ndarray) -> Any:
    # record −1 reads the last cell, and is replaced here
    return words.take(np.where(record >= 0, cells[record], len(words) - 1))


def _hash_rows(frame: pandas.DataFrame, rows: np.ndarray, record: np.ndarray, texts: Texts) -> np.ndarray:
    """The hash of each row by `pandas.util.hash_pandas_object`, whose combination of columns this repeats."""
    out = np.full(len(rows), 0x345678, np.uint64)
    factor = 1_000_003
    for i, name in enumerate(frame.columns):
        if name in texts:
            words, cells = texts[name]
            hashed = pandas.util.hash_pandas_object(pandas.Series(words), index=False).to_numpy()
            out ^= hashed[np.where(record >= 0, cells[record], len(words) - 1)]
        else:
            try:
                hashed = pandas.util.hash_pandas_object(frame.iloc[:, i], index=False).to_numpy()
            except TypeError:
                raise BadData(
                    f"the column {name!r} has cells that are lists or the like, which are not compared. "
                    "Convert them to text, or drop the column."
                ) from None
            out ^= hashed[rows]
        out *= np.uint64(factor)
        factor += 82_520 + 2 * (len(frame.columns) - i)
    out += np.uint64(97_531)
    return out


def build_frame(
    frame: pandas.DataFrame, table: EncodedTable, release: TableRelease, starred: bool
) -> pandas.DataFrame:
    """The published rows, in the original order.

    Suppressed rows are left out, or `starred`: * in every quasi-identifier. Columns at level 0 keep their
    cells and dtype.
    """
    published = release.record >= 0
    out = (frame if starred or published.all() else frame[published]).copy(deep=False)
    record = release.record if starred else release.record[published]
    for name, (words, cells) in _published_texts(table, release, starred).items():
        out[name] = pandas.Series(_take_texts(words, cells, record), index=out.index)
    return out


def published_classes(table: EncodedTable, release: TableRelease) -> Classes:
    """The classes of the published rows, from the released cells alone."""
    rows = np.flatnonzero(release.record >= 0)
    record = release.record[rows]
    label, number = record, 0
    if len(rows):
        used = np.zeros(len(release.cells[0]), bool)
        used[record] = True
        key, _ = pack_keys([cells[used] for cells in release.cells], [len(w) for w in release.words])
        label = np.zeros(len(used), np.int64)
        label[used], number = rank_keys(key)
        label = label[record]
    person = None if table.person is None else table.person[rows]
    sensitive = {
        name: SensitiveColumn.from_rows(
            name, s.rows[rows], s.words, count_overall(s.rows[rows], s.words, person), person
        )
        for name, s in table.sensitive.items()
    }
    return Classes(
        label, number, sensitive=sensitive, members=None if person is None else (np.arange(len(rows)), person)
    )


def verify(classes: Classes, models: Sequence[PrivacyModel]) -> None:
    """Check the published classes against the models once more: no bug of a method may reach a publication.

    Models that compare with a population are skipped: which of its people match a class, or the classes from
    which it was estimated, are not in the release.
    """
    satisfied = check_models([m for m in models if m.is_verifiable], classes)
    if not satisfied.all():
        raise RuntimeError(
            "internal error (please report it with the method and the models): "
            f"{format_count(int((~satisfied).sum()), 'class')} of the anonymized table violate a privacy "
            "model. Nothing was published."
        )


def whole_table_fails() -> BadData:
    return BadData(
        "The whole table as one class violates the privacy models, so nothing can be published. Relax the "
        "models (a smaller k or l, a larger t)."
    )


def format_count(n: int, word: str = "row") -> str:
    """'1 row', '2,000 rows', '3 classes'."""
    return f"{n:,} {word}" + ("" if n == 1 else "es" if word.endswith("s") else "s")


def make_step(sentence: str, **counts: Any) -> Step:
    return Step(sentence, counts)
