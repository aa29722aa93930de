"""ε of releases of different kinds, such as two training runs with different noise on the same rows.

Releases of one kind are composed by their own accountant. Different kinds are composed by the tightest bound
that covers all of them:

    without sampling, all "pld"       one Gaussian: 1/z² adds up (exact)
    without sampling, no Skellam      zCDP: 1/(2z²) adds up
    all "pld", some Poisson-sampled   the privacy-loss distributions are convolved
    anything else                     Rényi divergences at a shared grid of orders add up

For "everyone", "poisson" and "tree", neighbors differ by adding or removing a record; for "fixed" and
"shuffle", by replacing one. If both occur, all are counted for replacement and without sampling: replacement
has at most twice the sensitivity, and sampling never increases a divergence. That bound also holds for adding
or removing.

The bounds assume that later settings do not depend on earlier outcomes. If every release is unsampled, or
accounted by Rényi divergence, they also hold for settings chosen adaptively (V. Feldman, T. Zrnic:
"Individual Privacy Accounting via a Rényi Filter", NeurIPS 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from . import discrete
from .compose import Release, divergence, google_accounting, one_step
from .gaussian import gaussian_epsilon
from .skellam import WHOLE_ORDERS

WIDTH = 5e-4  # discretization interval of a PLD
SAMPLED_ORDERS = 512  # largest integer order for sampled Gaussians, whose divergence has as many terms
# an unsampled Gaussian with a smaller multiplier costs ε > 50; its PLD would have millions of values, and
# Rényi divergence is as good there
STRONG = 0.1

Groups = tuple[tuple[Release, int], ...]


def mixed_epsilon(spent: Iterable[tuple[Release, int]], delta: float) -> float:
    """An upper bound on ε at this δ, for (release, steps) pairs together."""
    counts: dict[Release, int] = {}
    for release, steps in spent:
        if steps:
            plain, times = release.plain(steps)
            counts[plain] = counts.get(plain, 0) + times
    groups = tuple(sorted(counts.items(), key=lambda item: repr(item[0])))
    if not groups:
        return 0.0
    return groups[0][0].epsilon(groups[0][1], delta) if len(groups) == 1 else _mixed(groups, delta)


@lru_cache(maxsize=1024)
def _mixed(groups: Groups, delta: float) -> float:
    if len({r.sampling == "fixed" for r, _ in groups}) == 2:
        return mixed_epsilon([(_with_replacement(r), n) for r, n in groups], delta)
    kinds = {r.accountant for r, _ in groups}
    if "skellam" not in kinds and all(r.rate == 1 for r, _ in groups):
        inverse = sum(n / r.multiplier**2 for r, n in groups)
        return (
            gaussian_epsilon(1 / math.sqrt(inverse), delta)
            if kinds == {"pld"}
            else discrete.epsilon_of(inverse / 2, delta)
        )
    if kinds == {"pld"}:
        whole = sum(n / r.multiplier**2 for r, n in groups if r.rate == 1)
        if whole < 1 / STRONG**2:
            parts = [_composed(r.multiplier, r.rate, n) for r, n in groups if r.rate < 1]
            total = parts[0]
            for part in [*parts[1:], *([one_step(1 / math.sqrt(whole), 1.0, WIDTH)] if whole else [])]:
                total = total.compose(part)
            return float(total.get_epsilon_for_delta(delta))
    return _by_divergence(groups, delta)


def _with_replacement(r: Release) -> Release:
    """A bound for replacing one record, without sampling."""
    if r.sampling == "fixed":
        return replace(r, rate=1.0)
    return replace(r, multiplier=r.multiplier / 2, rate=1.0, sampling="fixed", distance=2 * r.distance)


@lru_cache(maxsize=16)
def _composed(multiplier: float, rate: float, steps: int) -> Any:
    return one_step(multiplier, rate, WIDTH).self_compose(steps)


def _by_divergence(groups: Groups, delta: float) -> float:
    google = google_accounting()
    whole = any(r.accountant == "skellam" for r, _ in groups)
    orders = np.array(
        WHOLE_ORDERS if whole else google.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, dtype=float
    )
    if any(r.rate < 1 for r, _ in groups):
        orders = orders[orders <= SAMPLED_ORDERS]
    total = sum((n * divergence(r, orders) for r, n in groups), np.zeros(len(orders)))
    return float(google.rdp.rdp_privacy_accountant.compute_epsilon(orders, total, delta)[0])
