"""Ranking of generators, metric by metric.

C. Yan, Y. Yan, Z. Wan, Z. Zhang, L. Omberg, J. Guinney, S. D. Mooney, B. A. Malin: *A Multifaceted
benchmarking of synthetic electronic health record generation models*, Nature Communications 2022. They
average weighted ranks over all metrics for a use case; here ranks are averaged within a facet only, so that
fidelity cannot compensate for a lack of privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import BadData
from ..parameters import bad, nearest
from .evaluate import FACETS, Evaluation

if TYPE_CHECKING:
    from pandas import DataFrame


def rank(
    evaluations: Sequence[Evaluation], weights: Mapping[str, float] | None = None, detail: bool = False
) -> DataFrame:
    """Return the mean rank of each generator in each facet; 1 is the best, ties share a rank.

    `weights` are the metrics' weights for a use case (default 1; 0 excludes one). `detail` returns the rank
    in each metric instead. Metrics that not all evaluations have are left out. A membership AUC below chance
    counts as chance.
    """
    import pandas as pd

    names = [e.name for e in evaluations]
    if len(names) < 2:
        raise BadData(
            f"rank: there {'is one evaluation' if names else 'are no evaluations'}; give at least two to "
            "compare."
        )
    if len(set(names)) < len(names):
        raise BadData(
            f"rank: two evaluations are called {next(n for n in names if names.count(n) > 1)!r}. Give each "
            "a name: evaluate(…, name='CTGAN')."
        )
    scores = [{s.name: s for s in e.scores} for e in evaluations]
    shared = [n for n in scores[0] if all(n in h and math.isfinite(h[n].value) for h in scores)]
    for name, weight in (weights or {}).items():
        if name not in shared:
            raise BadData(f"rank: there is no metric {name!r} in all evaluations. {nearest(name, shared)}")
        if not weight >= 0:
            raise bad("rank", f"the weight of {name!r}", weight, "a number of at least 0")
    columns = {}
    for name in shared:
        metric = scores[0][name].metric
        values = pd.Series(
            [max(0.5, h[name].value) if name.startswith("membership AUC") else h[name].value for h in scores],
            index=names,
        )
        columns[metric.facet, name] = values.rank(ascending=metric.better == "lower")
    ranks = pd.DataFrame(columns)
    if detail:
        return ranks
    out = {}
    for facet in FACETS:
        part = [(key, (weights or {}).get(key[1], 1.0)) for key in ranks.columns if key[0] == facet]
        total = sum(w for _, w in part)
        if total > 0:
            out[facet] = sum(ranks[key] * w for key, w in part) / total
    return pd.DataFrame(out, index=names)
