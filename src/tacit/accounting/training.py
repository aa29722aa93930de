"""The privacy cost of a training run, by the accountant that matches how rows were drawn.

poisson   Each row is drawn independently with probability q: the sampled Gaussian mechanism (M. Abadi et al.,
          CCS 2016), composed by PLD or RDP. Neighbors differ by adding or removing one row.
fixed     A fixed number without replacement, independently for every step: RDP of Wang, Balle,
          Kasiviswanathan 2019. Neighbors differ by replacing one row.
shuffle   Each epoch partitions the rows into batches of fixed size. A row is in one batch of every epoch, so
          an epoch is one Gaussian release, and a secret order adds nothing: amplification as for Poisson
          sampling is not proven, and L. Chua, B. Ghazi, P. Kamath, R. Kumar, P. Manurangsi, A. Sinha,
          C. Zhang: "How Private are DP-SGD Implementations?", ICML 2024, shows that it can be far off.
          Neighbors differ by replacing one row: sensitivity 2C.
tree      No sampling: rows in any order, noise by a binary tree over the steps of an epoch (P. Kairouz,
          B. McMahan, S. Song, O. Thakkar, A. Thakurta, Z. Xu: "Practical and Private (Deep) Learning without
          Sampling or Shuffling", ICML 2021, Theorem 4.1). A row's gradient is in at most ⌊log₂ steps⌋ + 1
          nodes. Neighbors differ by leaving out one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import BadParameter
from ..parameters import bad, check, choice, whole
from .compose import ACCOUNTANTS, Release, noise_for
from .gaussian import gaussian_epsilon, gaussian_multiplier
from .mixture import mixed_epsilon

TRAINING = ("poisson", "fixed", "shuffle", "tree")


@dataclass(frozen=True)
class Training(Release):
    """One step of a training run.

    `multiplier` is σ/C for every kind of neighbors; the sensitivity is accounted for here.
    """

    sampling: str = choice("poisson", TRAINING, doc="how the rows of a step were drawn")
    accountant: str = choice(
        "pld",
        (*ACCOUNTANTS, "gaussian"),
        doc="how steps are composed; gaussian: as one release, for shuffle and tree",
    )
    per_epoch: int = whole(1, least=1, doc="steps in one pass over the rows, for shuffle and tree")

    def check(self) -> None:
        allowed = {
            "poisson": ACCOUNTANTS,
            "fixed": ("rdp",),
            "shuffle": ("gaussian",),
            "tree": ("gaussian",),
        }[self.sampling]
        if self.accountant not in allowed:
            raise BadParameter(
                f"accounting: accountant is {self.accountant!r}, which does not apply to sampling="
                f"{self.sampling!r}. Use accountant={' or '.join(map(repr, allowed))}, or sampling='poisson'."
            )

    @property
    def by_pass(self) -> bool:
        return self.sampling in ("shuffle", "tree")

    def plain(self, steps: int) -> tuple[Release, int]:
        if self.sampling == "poisson":
            return Release(
                self.multiplier, self.rate, "everyone" if self.rate == 1 else "poisson", self.accountant
            ), steps
        if self.sampling == "fixed":
            return Release(self.multiplier / 2, self.rate, "fixed", "rdp"), steps
        return Release(
            self.multiplier / self._sensitivity(steps),
            1.0,
            "fixed" if self.sampling == "shuffle" else "everyone",
        ), 1

    def _sensitivity(self, steps: int) -> float:
        """The sensitivity of all releases together, in clipping norms: each pass of one row is a coordinate
        of one long vector.
        """
        passes = -(-steps // self.per_epoch)
        return (
            2 * math.sqrt(passes)
            if self.sampling == "shuffle"
            else math.sqrt(passes * self.per_epoch.bit_length())
        )


def training(
    *,
    multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float,
    sampling: str,
    rate: float,
    per_epoch: int,
    steps: int,
    accountant: str = "auto",
    earlier: Sequence[Release] = (),
) -> Training:
    """The release of a run: with the given multiplier, or the smallest one (to about 0.1%) for which `steps`
    steps cost no more than ε.

    `earlier` are releases before the first step, each once, that are part of the same ε.
    """
    if accountant == "auto":
        accountant = {"poisson": "pld", "fixed": "rdp"}.get(sampling, "gaussian")
    release = check(
        Training(
            1.0 if multiplier is None else multiplier,
            rate,
            accountant=accountant,
            sampling=sampling,
            per_epoch=per_epoch,
        )
    )
    if multiplier is not None:
        return release
    assert epsilon is not None
    budget = epsilon
    if earlier:  # if all were Gaussian, 1/z² would add up; the rest is the start of the search
        left = gaussian_multiplier(epsilon, delta) ** -2 - sum(r.multiplier**-2 for r in earlier)
        if left <= 0:
            raise bad(
                "accounting", "epsilon", epsilon, "larger: the releases before the first step use it up"
            )
        epsilon = gaussian_epsilon(left**-0.5, delta)
    if accountant == "gaussian":
        release = replace(
            release, multiplier=gaussian_multiplier(epsilon, delta) * release._sensitivity(steps)
        )
        if not earlier:
            return release  # exact
    else:
        z = noise_for(
            epsilon=epsilon,
            delta=delta,
            sampling_rate=rate,
            steps=steps,
            accountant=accountant,
            sampling=sampling,
        )
        release = replace(release, multiplier=2 * z if sampling == "fixed" else z)
    # the account's discretization is a little coarser than that of the search
    while mixed_epsilon([(release, steps), *((r, 1) for r in earlier)], delta) > budget:
        release = replace(release, multiplier=release.multiplier * 1.001)
    return release
