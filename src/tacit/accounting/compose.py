"""Composition: ε of several releases together, computed by Google's dp-accounting.

    pld   privacy-loss distributions: tightest; everyone in every step, or Poisson sampling
    rdp   Rényi divergence: looser, faster; also for a fixed number sampled without replacement

Neighboring data sets differ by adding or removing one client (or row) under "everyone" and "poisson", and by
replacing one under "fixed". The noise multiplier is always σ over the sensitivity, the largest distance of
two neighbors' sums: the clipping norm, and twice that for replacement.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import BadParameter, MissingExtra
from ..parameters import bad, check, choice, real, whole
from . import discrete
from .gaussian import gaussian_epsilon, gaussian_multiplier
from .skellam import skellam_epsilon, skellam_rdp_curve

SAMPLINGS = ("everyone", "poisson", "fixed")
ACCOUNTANTS = ("pld", "rdp")
FINE = 1e-4  # discretization interval of a PLD


@dataclass(frozen=True)
class Release:
    """The privacy cost of one step of a run, to be composed with others."""

    multiplier: float = real(above=0, doc="σ over the sensitivity")
    rate: float = real(
        1.0,
        above=0,
        most=1,
        doc="the probability, or fraction, with which a client (or row) takes part in a step",
    )
    sampling: str = choice(
        "everyone",
        SAMPLINGS,
        doc="who takes part: everyone; each independently (Poisson); a fixed number without replacement",
    )
    accountant: str = choice(
        "pld",
        (*ACCOUNTANTS, "zcdp", "skellam"),
        doc="how steps are composed; zcdp: only a zCDP guarantee is known; "
        "skellam: Skellam noise, by its Rényi divergence",
    )
    distance: float = real(0.0, least=0, doc="skellam: the sensitivity in units of the grid")
    dimension: int = whole(1, least=1, doc="skellam: the dimension of the sum")

    def check(self) -> None:
        if self.sampling == "everyone" and self.rate != 1:
            raise bad("Release", "rate", self.rate, "1 where everyone takes part")
        if self.sampling == "fixed" and self.rate < 1 and self.accountant != "rdp":
            raise BadParameter(
                f"accounting: accountant is {self.accountant!r}, which does not support sampling a fixed "
                "number without replacement. Use accountant='rdp', or Poisson sampling."
            )
        if self.sampling != "everyone" and self.rate < 1 and self.accountant in ("zcdp", "skellam"):
            raise BadParameter(
                "accounting: there is no amplification by sampling for a zCDP guarantee or for Skellam "
                "noise. Account without sampling."
            )

    def epsilon(self, steps: int, delta: float, width: float | None = None) -> float:
        """ε of this number of steps at this δ."""
        if not steps:
            return 0.0
        release, times = self.plain(steps)
        return _epsilon(release, times, delta, 5e-4 if width is None else width)

    @property
    def by_pass(self) -> bool:
        """Whether the cost is counted by passes over the rows, so that a session's steps belong together."""
        return False

    def plain(self, steps: int) -> tuple[Release, int]:
        """An equivalent (release, steps) without training-specific settings, for `mixture.py`."""
        return self, steps


def most_steps(cost: Callable[[int], float], epsilon: float, most: int) -> int:
    """The largest number of steps, at most `most`, that costs no more than ε, for a monotone `cost`.

    `most` itself is tried first.
    """
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2 if low or high <= most else most
        low, high = (middle, high) if cost(middle) <= epsilon else (low, middle)
    return low


@lru_cache(maxsize=4096)
def _epsilon(release: Release, steps: int, delta: float, width: float) -> float:
    z, q = release.multiplier, release.rate
    if release.accountant == "zcdp":
        return discrete.epsilon_of(steps / (2 * z * z), delta)
    if release.accountant == "skellam":
        return skellam_epsilon(z, release.distance, release.dimension, steps, delta)
    if release.accountant == "rdp":
        return _rdp(release, steps, delta)
    return (
        gaussian_epsilon(z / math.sqrt(steps), delta)
        if q == 1
        else float(one_step(z, q, width).self_compose(steps).get_epsilon_for_delta(delta))
    )


def google_accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld.privacy_loss_distribution
        import dp_accounting.rdp
    except ImportError:
        raise MissingExtra("composing sampled steps", "dp", "dp-accounting") from None
    return dp_accounting


@lru_cache(maxsize=64)
def one_step(multiplier: float, rate: float, width: float) -> Any:
    return google_accounting().pld.privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=rate, value_discretization_interval=width, use_connect_dots=True
    )


def _rdp(release: Release, steps: int, delta: float) -> float:
    rdp = google_accounting().rdp.rdp_privacy_accountant
    orders = np.array(rdp.DEFAULT_RDP_ORDERS, dtype=float)
    return float(rdp.compute_epsilon(orders, steps * divergence(release, orders), delta)[0])


def divergence(r: Release, orders: np.ndarray) -> np.ndarray:
    """The Rényi divergence of one step at each order."""
    if r.accountant == "skellam":
        return skellam_rdp_curve(orders, r.multiplier, r.distance, r.dimension)
    if r.rate == 1:
        return orders / (2 * r.multiplier**2)
    return _sampled_divergence(r, tuple(orders))


@lru_cache(maxsize=256)
def _sampled_divergence(r: Release, orders: tuple[float, ...]) -> np.ndarray:
    """The same for a step with sampling; it does not depend on the number of steps or on δ."""
    google = google_accounting()
    event: Any = google.GaussianDpEvent(r.multiplier)
    if r.sampling == "fixed":
        # the event has numbers of clients; the bound depends on their ratio only
        share = Fraction(r.rate).limit_denominator(10**9)
        event, relation = (
            google.SampledWithoutReplacementDpEvent(share.denominator, share.numerator, event),
            google.NeighboringRelation.REPLACE_ONE,
        )
    else:
        event, relation = (
            google.PoissonSampledDpEvent(r.rate, event),
            google.NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
    accountant = google.rdp.RdpAccountant(np.array(orders), relation)
    log = logging.getLogger("absl")
    before = log.level
    # it warns of orders whose series did not converge; they count as infinite, which is an upper bound
    log.setLevel(logging.ERROR)
    try:
        accountant.compose(event)
    finally:
        log.setLevel(before)
    curve = np.asarray(accountant.rdp)
    curve.setflags(write=False)
    return curve


def _release(noise_multiplier: float, sampling_rate: float, accountant: str, sampling: str) -> Release:
    if sampling not in SAMPLINGS[1:]:
        raise bad("accounting", "sampling", sampling, "'poisson' or 'fixed'")
    if accountant not in ACCOUNTANTS:
        raise bad("accounting", "accountant", accountant, "'pld' or 'rdp'")
    return check(
        Release(
            noise_multiplier,
            sampling_rate,
            "everyone" if sampling_rate == 1 and sampling == "poisson" else sampling,
            accountant,
        )
    )


def _check_arguments(steps: Any, delta: Any) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise bad("accounting", "steps", steps, "a whole number of at least 1")
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise bad("accounting", "delta", delta, "a probability above 0 and below 1")


def epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float = 1.0,
    steps: int = 1,
    delta: float,
    accountant: str = "pld",
    sampling: str = "poisson",
) -> float:
    """ε of `steps` Gaussian releases.

    `sampling` must describe what was done: shuffling is neither "poisson" nor "fixed".
    """
    release = _release(noise_multiplier, sampling_rate, accountant, sampling)
    _check_arguments(steps, delta)
    return release.epsilon(steps, float(delta), FINE)


def noise_for(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float = 1.0,
    steps: int = 1,
    accountant: str = "pld",
    sampling: str = "poisson",
) -> float:
    """The smallest noise multiplier with which `steps` releases cost no more than ε, to about 0.1% above."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
        raise bad("accounting", "epsilon", epsilon, "a number above 0")
    _check_arguments(steps, delta)
    if sampling_rate == 1 and accountant == "pld" and sampling == "poisson":
        return gaussian_multiplier(epsilon, delta) * math.sqrt(steps)

    # wider intervals are faster and overestimate ε: by 0.7·steps·width², measured
    width = min(1e-3, max(FINE, math.sqrt(1.4e-3 * epsilon / steps)))

    def cost(z: float) -> float:
        return _release(z, sampling_rate, accountant, sampling).epsilon(steps, float(delta), width)

    # ε decreases in z, nearly linearly in log-log: a few secant steps inside the bracket; `high` always meets
    # the budget
    all_in = gaussian_multiplier(epsilon, delta) * math.sqrt(steps)  # without sampling
    low, high = 0.0, max(1.1 * sampling_rate * all_in, min(all_in, 0.6))
    at_low, at_high = math.inf, cost(high)
    while at_high > epsilon:
        low, at_low, high = high, at_high, 1.5 * high
        at_high = cost(high)
        if high > 1e7:
            raise bad(
                "accounting",
                "epsilon",
                epsilon,
                "larger: no representable noise makes this number of steps so private",
            )
    while not low:
        half = high / 1.5
        if half < 1e-3:
            return high
        at_half = cost(half)
        if at_half > epsilon:
            low, at_low = half, at_half
        else:
            high, at_high = half, at_half
    for _ in range(30):
        if high / low < 1.001 or at_high > 0.999 * epsilon:
            break
        slope = (
            math.log(at_high / at_low) / math.log(high / low)
            if at_high > 0 and math.isfinite(at_low)
            else -1.0
        )
        guess = (
            low * (epsilon / at_low) ** (1 / slope)
            if math.isfinite(at_low) and slope < 0
            else math.sqrt(low * high)
        )
        guess = min(max(guess * 1.0004, low * (high / low) ** 0.02), low * (high / low) ** 0.98)
        at = cost(guess)
        if at <= epsilon:
            high, at_high = guess, at
        else:
            low, at_low = guess, at
    return high
