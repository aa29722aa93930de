"""Statistics across organizations: every number is computed from sums over all parties.

    table = tacit.stats.describe({"north": frame, "south": frame}, by="arm")
    fit = tacit.stats.glm(fed, "death ~ age + sex", family="binomial")

The modules of this room hold the mathematics: what a party computes from its rows, and what follows from the
sums (`protocols.sum_program`). The functions that users call are composed in `jobs/stats/`, and fetched when
they are used. A module here must not have the name of such a function, which it would hide.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME: dict[str, str] = {  # function or class: its module in tacit.jobs.stats
    "aalen_johansen": "survival",
    "correlation": "comparing",
    "cox": "cox",
    "gee": "sites",
    "meta": "sites",
    "mixed": "sites",
    "crosstab": "tables",
    "describe": "describe",
    "glm": "glm",
    "heavy_hitters": "tables",
    "histogram": "tables",
    "kaplan_meier": "survival",
    "logrank": "survival",
    "mann_whitney": "comparing",
    "nelson_aalen": "survival",
    "quantile": "tables",
    "ttest": "comparing",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"tacit.jobs.stats.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
