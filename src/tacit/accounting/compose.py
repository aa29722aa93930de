"""How much many releases say together. The integrals are those of Google's dp-accounting; what is ours is
what they are asked.

    pld   privacy-loss distributions: tightest; everyone in every step, or Poisson sampling
    rdp   Rényi: looser, faster; the one that also knows sampling of a fixed number without replacement

Two neighbours differ by one client (or row) being there under "everyone" and "poisson", and by one exchanged
for another under "fixed"; the noise multiplier is always σ over how far apart the sums of two neighbours can
lie: the clipping norm, and twice that where one is exchanged.
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
FINE = 1e-4  # the width of a PLD's cells


@dataclass(frozen=True)
class Release:
    """What one step of a run gives away, to be composed with the others."""

    multiplier: float = real(above=0, doc="σ over the distance of two neighbours' sums")
    rate: float = real(
        1.0,
        above=0,
        most=1,
        doc="the probability, or share, with which a client (or row) takes part in a step",
    )
    sampling: str = choice(
        "everyone",
        SAMPLINGS,
        doc="who takes part: everyone; each by a coin of its own; a fixed number without replacement",
    )
    accountant: str = choice(
        "pld",
        (*ACCOUNTANTS, "zcdp", "skellam"),
        doc="how steps are composed; zcdp: for what is only known to be concentrated; "
        "skellam: Skellam noise, by its Rényi divergence",
    )
    distance: float = real(
        0.0, least=0, doc="skellam: how many units of the grid two neighbours' sums lie apart"
    )
    dimension: int = whole(1, least=1, doc="skellam: how many numbers a sum has")

    def check(self) -> None:
        if self.sampling == "everyone" and self.rate != 1:
            raise bad("Release", "rate", self.rate, "1 where everyone takes part")
        if self.sampling == "fixed" and self.rate < 1 and self.accountant != "rdp":
            raise BadParameter(
                f"accounting: accountant is {self.accountant!r}, and a fixed number without replacement is "
                "sampled, for which there is no tight "
                "bound of that kind. Use accountant='rdp', or Poisson sampling."
            )
        if self.sampling != "everyone" and self.rate < 1 and self.accountant in ("zcdp", "skellam"):
            raise BadParameter(
                "accounting: sampling does not lower a guarantee that is only known as zCDP, or of Skellam "
                "noise. Account without sampling."
            )

    def epsilon(self, steps: int, delta: float, width: float | None = None) -> float:
        """ε of so many steps at this δ."""
        return _epsilon(self, steps, delta, 5e-4 if width is None else width)

    @property
    def by_pass(self) -> bool:
        """Whether cost is counted by passes over the rows, so that the steps of one session belong
        together.
        """
        return False

    def plain(self, steps: int) -> tuple[Release, int]:
        """(release, steps) of the same cost that say nothing of training: what `mixture.py` composes."""
        return self, steps

    def steps_within(self, epsilon: float, delta: float, most: int) -> int:
        """How many of at most `most` steps cost no more than ε."""
        return most_steps(lambda steps: self.epsilon(steps, delta), epsilon, most)


def most_steps(cost: Callable[[int], float], epsilon: float, most: int) -> int:
    """The largest number of steps, at most `most`, that costs no more than ε. `cost` must not decrease;
    `most` itself is tried first.
    """
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2 if low or high <= most else most
        low, high = (middle, high) if cost(middle) <= epsilon else (low, middle)
    return low


@lru_cache(maxsize=4096)
def _epsilon(release: Release, steps: int, delta: float, width: float) -> float:
    if not steps:
        return 0.0
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
    google = google_accounting()
    event: Any = google.GaussianDpEvent(r.multiplier)
    if r.sampling == "fixed":
        share = Fraction(r.rate).limit_denominator(
            10**9
        )  # the event counts clients; the bound looks at their share alone
        event, relation = (
            google.SampledWithoutReplacementDpEvent(share.denominator, share.numerator, event),
            google.NeighboringRelation.REPLACE_ONE,
        )
    else:
        event, relation = (
            google.PoissonSampledDpEvent(r.rate, event),
            google.NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
    accountant = google.rdp.RdpAccountant(orders, relation)
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(
        logging.ERROR
        # it warns of orders whose series did not converge; they are infinite, which is never less than the
        # truth
    )
    try:
        accountant.compose(event)
    finally:
        log.setLevel(before)
    return np.asarray(accountant.rdp)


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


def _given(steps: Any, delta: Any) -> None:
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
    """ε of `steps` Gaussian releases. `sampling` must be what was really done: shuffling through the data is
    neither of the two.
    """
    release = _release(noise_multiplier, sampling_rate, accountant, sampling)
    _given(steps, delta)
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
    """The least noise multiplier with which `steps` releases cost no more than ε, from above and to about a
    thousandth.
    """
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
        raise bad("accounting", "epsilon", epsilon, "a number above 0")
    _given(steps, delta)
    if sampling_rate == 1 and accountant == "pld" and sampling == "poisson":
        return gaussian_multiplier(epsilon, delta) * math.sqrt(steps)

    width = min(
        1e-3, max(FINE, math.sqrt(1.4e-3 * epsilon / steps))
    )  # wider cells are faster and only ever say more ε: measured, 0.7·steps·width² more

    def cost(z: float) -> float:
        return _release(z, sampling_rate, accountant, sampling).epsilon(steps, float(delta), width)

    # ε falls in z, nearly along a line in log-log: a few secants, each kept inside what is known; `high` is
    # always affordable
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
                "larger: no noise that a computer can add makes so many steps so private",
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
