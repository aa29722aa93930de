"""`tacit.boost.train`: boosted trees over parties."""

from __future__ import annotations

from typing import Any

from ...boost.result import BoostResult
from ...config.boost import BOOST_OPTIONS, BoostConfig
from ...config.signature import with_options
from ...parameters import check
from .horizontal import train_horizontal


@with_options(BOOST_OPTIONS)
def train(fed: Any, *, runtime: Any = "cohort", guard: Any = None, **options: Any) -> BoostResult:
    """Train gradient-boosted trees on the rows of all parties; only sums over all of them are opened.

    `fed` is {party: DataFrame} with the same columns, and `label` names one of them; or a federation made
    from tables, which has its label, and whose training rows are used. The trees are those of the pooled
    rows. `runtime` is "cohort" (simulation), "inprocess" or "processes" (real secure sums), `guard` a
    `tacit.guard.SecAgg(…)`; without one, every sum is over all parties.

    With `epsilon`, the structure of trees is drawn at random and their leaves have noise.
    """
    return train_horizontal(fed, options, runtime, guard)


def read_options(options: dict[str, Any], label: str = "") -> BoostConfig:
    """Return the checked options; `label` is that of a federation."""
    return check(BoostConfig(**{**({"label": label} if label else {}), **options}), "boost.train")
