"""Datafly. L. Sweeney: "Achieving k-Anonymity Privacy Protection Using Generalization and Suppression",
International Journal on Uncertainty, Fuzziness and Knowledge-based Systems 10(5), 2002 (the core algorithm);
first in "Guaranteeing Anonymity when Sharing Medical Data", 1997.

1. freq ← the distinct sequences of the quasi-identifiers and how often each occurs
2. while sequences occurring fewer than k times account for more than k tuples:
3.     generalize the attribute with the most distinct values in freq
4. suppress the sequences that occur fewer than k times
5. if 0 < suppressed < k: suppress more tuples, until k are
6. the table is constructed from the rest of freq
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..errors import BadData
from .losses import CellMetric
from .models import PrivacyModel, check_models
from .release import (
    AnonymizationRequest,
    TableRelease,
    format_count,
    make_step,
    price_levels,
    published_classes,
    release_levels,
)
from .result import Step
from .table import EncodedTable


@dataclass(frozen=True)
class Datafly:
    """Generalize the column with the most distinct values until few rows violate the models; suppress those.

    Fast, but not the lowest loss. Extensions of Sweeney's algorithm: models other than k-anonymity are
    supported, and `max_suppressed` replaces the k of line 2 by a fraction of the rows.
    """

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        request.require_rows("datafly", table)
        k, models = request.k, request.models
        allowed = k if request.max_suppressed is None else request.limit(table)
        violating = f"occurring fewer than {k} times" if len(models) == 1 else "violating a privacy model"
        levels = [0] * len(table.columns)
        trace: list[Step] = []
        while True:
            is_outlier, classes = find_outliers(table, levels, models)  # line 1
            distinct = _count_distinct(table, levels)
            outliers = int(table.counts[is_outlier].sum())
            values = ", ".join(f"{c.name} {d:,}" for c, d in zip(table.columns, distinct))
            state = (
                f"Distinct values: {values}. {format_count(outliers)} in "
                f"{'combinations' if outliers != 1 else 'a combination'} {violating}"
            )
            counts = {
                "levels": dict(zip(table.quasi, levels)),
                "distinct": dict(zip(table.quasi, distinct)),
                "rare": outliers,
                "classes": classes,
            }
            if outliers <= allowed:  # line 2
                trace.append(make_step(f"{state}: at most {allowed:,}, so generalization ends.", **counts))
                break
            candidates = [j for j, c in enumerate(table.columns) if levels[j] < c.height]
            if not candidates:
                if request.max_suppressed is not None or outliers == table.rows:
                    raise BadData(
                        f"Every quasi-identifier is at its top level and {format_count(outliers)} still "
                        f"violate the privacy models, more than the {allowed:,} that may be suppressed. "
                        "Relax the models (a smaller k or l, a larger t), or raise max_suppressed."
                    )
                trace.append(
                    make_step(
                        f"{state}: more than {allowed:,}, but every column is at its top level.", **counts
                    )
                )
                break
            j = max(candidates, key=lambda j: distinct[j])  # line 3; the first of several
            levels[j] += 1
            before = f"level {levels[j] - 1}" if levels[j] > 1 else "the values themselves"
            trace.append(
                make_step(
                    f"{state}: more than {allowed:,}, so {table.columns[j].name}, which has the most "
                    f"distinct values, is generalized from {before} to level {levels[j]}.",
                    **counts,
                    generalize=table.columns[j].name,
                )
            )
        suppressed = np.flatnonzero(is_outlier)  # line 4
        trace.append(
            make_step(
                f"{format_count(outliers)} {violating} {'is' if outliers == 1 else 'are'} suppressed.",
                suppressed=outliers,
            )
        )
        loss = price_levels(table, levels, suppressed, request.build_metric(table))
        release = release_levels(table, levels, suppressed, loss, trace)
        if 0 < outliers < k:  # line 5
            _suppress_more(table, levels, is_outlier, k - outliers, request, release)
        return release


def find_outliers(
    table: EncodedTable, levels: list[int], models: tuple[PrivacyModel, ...]
) -> tuple[np.ndarray, int]:
    """(which combinations are in a class that violates a model, the number of classes)."""
    classes = table.classes(levels)
    violates = ~check_models(models, classes, is_table=True)[classes.label]
    if violates.any() and not all(m.allows_suppression for m in models):
        return np.ones(len(violates), bool), classes.number  # one violating class rules out the table
    return violates, int((classes.sizes > 0).sum())


def _count_distinct(table: EncodedTable, levels: list[int]) -> list[int]:
    """Distinct values of each column; combinations that only the population has do not count."""
    codes = table.codes[table.counts > 0]
    return [
        len(np.unique(c.up[level][codes[:, j]])) for j, (c, level) in enumerate(zip(table.columns, levels))
    ]


def _suppress_more(
    table: EncodedTable,
    levels: list[int],
    is_outlier: np.ndarray,
    missing: int,
    request: AnonymizationRequest,
    release: TableRelease,
) -> None:
    """Suppress more rows until k are, since a single suppressed row would be known to be the only one.

    They come from the largest class if it stays anonymous without them, else the smallest class is
    suppressed.
    """
    classes = table.classes(levels)
    label, sizes = classes.label, classes.sizes.copy()
    sizes[label[is_outlier]] = 0
    if not sizes.any():
        return
    can_spare = len(request.models) == 1 and sizes.max() >= request.k + missing
    source = int(np.argmax(sizes) if can_spare else np.argmin(np.where(sizes > 0, sizes, np.inf)))
    rows = np.flatnonzero((release.record >= 0) & (label[release.record] == source))
    suppressed = rows[-missing:] if can_spare else rows
    number = len(suppressed)
    if request.max_suppressed is not None and request.k - missing + number > request.limit(table):
        release.trace.append(
            make_step(
                f"{format_count(number)} more would have to be suppressed to reach k = {request.k}; "
                "max_suppressed does not allow it.",
                more=0,
            )
        )
        return
    if any(m.compares_with_table for m in request.models):
        smaller = replace(release, record=release.record.copy())
        smaller.record[suppressed] = -1
        if not check_models(request.models, published_classes(table, smaller)).all():
            release.trace.append(
                make_step(
                    f"{format_count(number)} more would have to be suppressed to reach k = {request.k}; the "
                    "table without them violates the privacy models.",
                    more=0,
                )
            )
            return
    metric = request.build_metric(table)
    combinations, times = np.unique(release.record[suppressed], return_counts=True)
    release.record[suppressed] = -1
    if isinstance(metric, CellMetric):
        codes = table.codes[combinations]
        charge = metric.charge_suppressed(codes) - metric.charge(codes, tuple(levels))
        release.loss += float(charge @ times) / metric.scale
    else:
        counts = np.where(is_outlier, 0, table.counts)
        counts[combinations] -= times
        published = np.bincount(label, counts, classes.number).astype(np.int64)
        published = published[published > 0]
        rest = table.rows - int(published.sum())
        is_published = np.append(np.ones(len(published), bool), False)
        release.loss = metric.value(np.append(published, rest), is_published)
    release.trace.append(
        make_step(
            f"{format_count(number)} more {'is' if number == 1 else 'are'} suppressed, so that at least "
            f"k = {request.k} are.",
            more=number,
        )
    )
