"""What the steps of one training run cost together: the accountant that belongs to the way rows were
drawn.

poisson   each row by a coin of its own with probability q: the sampled Gaussian mechanism (M. Abadi et al., CCS 2016), composed by PLD or RDP;
          a neighbour has one row more or less
fixed     a fixed number without replacement, anew for every step: RDP of Wang, Balle, Kasiviswanathan 2019; a neighbour has one row exchanged
shuffle   each epoch deals the rows into batches of fixed size. A row is in one batch of every epoch, so an epoch is one Gaussian release and nothing is
          gained by the order being secret: amplification as if by Poisson is not proven for it, and L.
          Chua, B. Ghazi, P. Kamath, R. Kumar, P. Manurangsi, A. Sinha, C. Zhang: "How Private are DP-SGD
          Implementations?", ICML 2024, shows it can be far off. A row exchanged: distance 2C
tree      no sampling at all: rows in any order, noise by a binary tree over the steps of an epoch (P. Kairouz, B. McMahan, S. Song, O. Thakkar,
          A. Thakurta, Z. Xu: "Practical and Private (Deep) Learning without Sampling or Shuffling", ICML
          2021, Theorem 4.1). A row's gradient is in at most ⌊log₂ steps⌋ + 1 nodes; a neighbour has one
          row left out of its place
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
    """One step of a training run. `multiplier` is σ/C, whatever the neighbours; how far apart they lie is
    counted here.
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
                f"accounting: accountant is {self.accountant!r} and the rows are drawn by "
                f"{self.sampling!r}, which it does not describe; "
                f"its ε would be "
                f"of another run. Use accountant={' or '.join(map(repr, allowed))}, or sampling='poisson'."
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
            self.multiplier / self._far(steps), 1.0, "fixed" if self.sampling == "shuffle" else "everyone"
        ), 1

    def epsilon(self, steps: int, delta: float, width: float | None = None) -> float:
        if not steps:
            return 0.0
        release, times = self.plain(steps)
        return release.epsilon(times, delta, width)

    def _far(self, steps: int) -> float:
        """How far two neighbours' releases lie apart, all of them together, in clipping norms: each pass of
        one row is one coordinate of a long vector.
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
    """A run's release: with the multiplier given, or the least one, to about a thousandth, whose `steps`
    steps cost no more than ε.

    `earlier` are releases made before the steps, each once, for which the same ε pays.
    """
    if accountant == "auto":
        accountant = {"poisson": "pld", "fixed": "rdp"}.get(sampling, "gaussian")
    made = check(
        Training(
            1.0 if multiplier is None else multiplier,
            rate,
            accountant=accountant,
            sampling=sampling,
            per_epoch=per_epoch,
        )
    )
    if multiplier is not None:
        return made
    assert epsilon is not None
    budget = epsilon
    if earlier:  # were all of it Gaussian, 1/z² would add up; what that leaves is where the search begins
        left = gaussian_multiplier(epsilon, delta) ** -2 - sum(r.multiplier**-2 for r in earlier)
        if left <= 0:
            raise bad(
                "accounting", "epsilon", epsilon, "larger: what is released before the first step spends it"
            )
        epsilon = gaussian_epsilon(left**-0.5, delta)
    if accountant == "gaussian":
        made = replace(made, multiplier=gaussian_multiplier(epsilon, delta) * made._far(steps))
        if not earlier:
            return made  # exact
    else:
        z = noise_for(
            epsilon=epsilon,
            delta=delta,
            sampling_rate=rate,
            steps=steps,
            accountant=accountant,
            sampling=sampling,
        )
        made = replace(made, multiplier=2 * z if sampling == "fixed" else z)
    while (
        mixed_epsilon([(made, steps), *((r, 1) for r in earlier)], delta) > budget
    ):  # the account's cells are a little wider than those the search used
        made = replace(made, multiplier=made.multiplier * 1.001)
    return made
