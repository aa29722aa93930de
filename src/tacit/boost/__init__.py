"""Gradient-boosted trees across organizations.

    model = tacit.boost.train({"north": frame, "south": frame}, label="disease", trees=100, depth=6)
    model.predict(frame); model.save("model.json")

Modules of this room, from small to large:

    bins          columns as small integers: cuts of numbers, levels of categories
    trees         a tree over bins, and its form on the wire
    kernels       the loops over rows: histograms, the way down a tree
    objectives    losses: gradients, Hessians, predictions
    splits        the best split of a node from its histogram
    grower        the trees of one round from histograms, level by level or best first
    model         a booster: bins, trees, predictions, importance
    xgboost_json  XGBoost's file format
    cut_search    cuts by federated quantiles
    rows          a party's rows in training
    agreement     what parties agree on before the first tree
    program       horizontal boosting as a program of sums
    woe_bins      weight of evidence: bins of a column from counts
    woe_program   binning as a program of sums
    scorecard     points by bin
    ensemble      trees of any origin as complete trees, for secret shares
    read_model    models of tacit, XGBoost and scikit-learn as ensembles

    vertical_bins     one party's own columns as cells, and its splits
    vertical_grower   trees over columns of several parties: the label holder's part

Functions that users call are composed in `jobs/boost/` and fetched when they are used. A module here must not
have the name of such a function.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME: dict[str, str] = {
    "load": "tacit.jobs.boost.train",
    "load_scorecard": "tacit.boost.scorecard",
    "train": "tacit.jobs.boost.train",
    "woe": "tacit.jobs.boost.woe",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
