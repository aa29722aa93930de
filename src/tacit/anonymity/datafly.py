"""Datafly. L. Sweeney: "Achieving k-Anonymity Privacy Protection Using Generalization and Suppression",
International Journal on Uncertainty, Fuzziness and Knowledge-based Systems 10(5), 2002 (the core algorithm);
first in "Guaranteeing Anonymity when Sharing Medical Data", 1997.

1. freq ← the distinct sequences of the quasi-identifiers and how often each occurs
2. while sequences occurring fewer than k times account for more than k tuples:
3.     generalise the attribute with the most distinct values in freq
4. suppress the sequences that occur fewer than k times
5. if 0 < suppressed < k: suppress more tuples, until k are
6. the table is what remains of freq
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import BadData
from .encoded import Encoded
from .losses import CellMetric
from .models import Classes, Model, held
from .release import Release, Request, count, full_domain, priced, told
from .result import Step


@dataclass(frozen=True)
class Datafly:
    """Generalise the column with the most distinct values until few enough rows stand out, and suppress
    those: quick, and not the least loss.

    Beyond Sweeney: other privacy models may join k, and `max_suppressed` replaces the k of line 2 by a part
    of the rows.
    """

    def run(self, table: Encoded, request: Request) -> Release:
        k, models = request.k, request.models
        allowed = k if request.max_suppressed is None else request.limit(table)
        levels = [0] * len(table.columns)
        trace: list[Step] = []
        while True:
            small, classes = outliers(table, levels, models)  # line 1
            distinct = _distinct(table, levels)
            rare = int(table.counts[small].sum())
            words = ", ".join(f"{c.name} {d:,}" for c, d in zip(table.columns, distinct))
            state = (
                f"Distinct values: {words}. {count(rare)} in "
                f"{'combinations' if rare != 1 else 'a combination'} {_failing(models, k)}"
            )
            counts = {
                "levels": dict(zip(table.quasi, levels)),
                "distinct": dict(zip(table.quasi, distinct)),
                "rare": rare,
                "classes": classes,
            }
            if rare <= allowed:  # line 2
                trace.append(told(f"{state}: no more than {allowed:,}, so generalising ends.", **counts))
                break
            open_ = [j for j, c in enumerate(table.columns) if levels[j] < c.height]
            if not open_:
                if request.max_suppressed is not None or rare == table.rows:
                    raise BadData(
                        f"Every quasi-identifier is at its top and {count(rare)} still fail, more than the "
                        f"{allowed:,} that may be suppressed. "
                        "Ask for less (a smaller k or l, a larger t), or raise max_suppressed."
                    )
                trace.append(
                    told(f"{state}: more than {allowed:,}, but every column is at its top.", **counts)
                )
                break
            j = max(open_, key=lambda j: distinct[j])  # line 3; the first of several
            levels[j] += 1
            before = f"level {levels[j] - 1}" if levels[j] > 1 else "the values themselves"
            trace.append(
                told(
                    f"{state}: more than {allowed:,}, so {table.columns[j].name}, with the most distinct "
                    f"values, is generalised from {before} "
                    f"to level {levels[j]}.",
                    **counts,
                    generalise=table.columns[j].name,
                )
            )
        lost = np.flatnonzero(small)  # line 4
        trace.append(
            told(
                f"{count(rare)} {_failing(models, k)} {'is' if rare == 1 else 'are'} suppressed.",
                suppressed=rare,
            )
        )
        release = full_domain(table, levels, lost, priced(table, levels, lost, request.price(table)), trace)
        if 0 < rare < k:  # line 5
            _more(table, levels, small, k - rare, request, release)
        return release


def outliers(table: Encoded, levels: list[int], models: tuple[Model, ...]) -> tuple[np.ndarray, int]:
    """(which combinations lie in a class that fails, number of classes)."""
    label, number = table.classes(levels)
    classes = Classes(table, label, number)
    fine = held(models, classes)
    if not all(m.suppressible for m in models) and not fine[label].all():
        return np.ones(len(label), bool), number  # one failing class fails the table
    return ~fine[label], int((classes.sizes > 0).sum())


def _failing(models: tuple[Model, ...], k: int) -> str:
    return f"occurring fewer than {k} times" if len(models) == 1 else "failing a privacy model"


def _distinct(table: Encoded, levels: list[int]) -> list[int]:
    """Different values a column has now; combinations only the population has do not count."""
    there = table.counts > 0
    return [
        len(np.unique(c.up[level][table.codes[there, j]]))
        for j, (c, level) in enumerate(zip(table.columns, levels))
    ]


def _more(
    table: Encoded, levels: list[int], small: np.ndarray, need: int, request: Request, release: Release
) -> None:
    """A lone suppressed row would be known to be the only one: suppress as many more as make k, from the
    largest class that stays anonymous without them, else the smallest class whole.
    """
    label, number = table.classes(levels)
    sizes = Classes(table, label, number).sizes.copy()
    sizes[label[small]] = 0
    if not sizes.any():
        return
    spare = len(request.models) == 1 and sizes.max() >= request.k + need
    chosen = (
        int(np.argmax(sizes)) if spare else int(np.argmin(np.where(sizes > 0, sizes, np.iinfo(np.int64).max)))
    )
    rows = np.flatnonzero((release.record >= 0) & (label[release.record] == chosen))
    gone = rows[-need:] if spare else rows
    if request.max_suppressed is not None and request.k - need + len(gone) > request.limit(table):
        release.trace.append(
            told(
                f"{count(len(gone))} more would have to be suppressed to make k = {request.k}; "
                "max_suppressed does not allow it.",
                more=0,
            )
        )
        return
    metric = request.price(table)
    combos, times = np.unique(release.record[gone], return_counts=True)
    release.record[gone] = -1
    counts = table.counts.copy()
    counts[combos] -= times
    if isinstance(metric, CellMetric):
        charge = metric.suppressed(table)[combos] - metric.rows(table, tuple(levels))[combos]
        release.loss += float(charge @ times) / metric.scale
    else:
        left = np.bincount(label, np.where(small, 0, counts), number).astype(np.int64)
        there = left > 0
        lost = np.array([table.rows - int(left.sum())])
        release.loss = metric.value(
            np.concatenate([left[there], lost]), np.append(np.ones(int(there.sum()), bool), False)
        )
    release.trace.append(
        told(
            f"{count(len(gone))} more {'is' if len(gone) == 1 else 'are'} suppressed, so that no fewer than "
            f"k = {request.k} are.",
            more=len(gone),
        )
    )
