"""Noise for differential privacy: an update, or the sum of many, reveals little about any one client.

The discrete Gaussian of Canonne, Kamath and Steinke (NeurIPS 2020) is sampled exactly from the operating
system's randomness and added to integers. Nothing is rounded afterwards, so the attack on the lowest bits
of floating-point noise (Mironov, CCS 2012) does not apply.

    central      the server adds σ = z·bound to the sum: protects against everyone who sees the models, but
                 not against the server
    local        each client adds σ = z·bound to its update: protects against the server too
    distributed  each client adds σ/√m, and a stage hides single updates; any m of them have σ = z·bound
                 together: protects against the server too, if m clients are honest. P. Kairouz, Z. Liu, T.
                 Steinke, ICML 2021; or with Skellam noise, whose sums are exactly Skellam, also on a coarse
                 grid: N. Agarwal, P. Kairouz, Z. Liu, NeurIPS 2021

`bound` is the largest L2 norm of one client's integers, after rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..accounting import discrete, skellam
from ..errors import BadParameter
from ..parameters import choice, real
from .stage import Clients, Form, Source, Stage, State, needs, refuse

# units: a Skellam number of variance μ is outside ±(10√μ + 16) with probability below 10⁻²², also for a
# small μ with long tails
SLACK = 16


@dataclass(frozen=True)
class Noise(Stage):
    """Add Gaussian noise with a standard deviation of `multiplier` times the bound.

    With `epsilon` and `delta` for the whole run instead, the multiplier is computed.
    """

    multiplier: float | None = real(
        None,
        above=0,
        none=True,
        doc="z, the noise's standard deviation in multiples of the bound; None: computed from ε and δ",
    )
    epsilon: float | None = real(
        None, above=0, none=True, doc="ε of the whole run: the run stops before a round that would exceed it"
    )
    delta: float = real(1e-5, above=0, below=1, doc="δ; well below one over the number of clients")
    placement: str = choice(
        "central",
        ("central", "local", "distributed"),
        doc="who adds it: the server, each client in full, or the clients together",
    )
    sampling: str = choice(
        "as run",
        ("as run", "everyone", "poisson", "fixed"),
        doc="the sampling that ε assumes; the run must use it",
    )
    distribution: str = choice(
        "gaussian", ("gaussian", "skellam"), doc="of the noise; skellam for placement='distributed' only"
    )
    accountant: str = choice(
        "auto", ("auto", "pld", "rdp"), doc="how ε is computed: pld if it applies (tighter), else rdp"
    )
    place: ClassVar[int] = 40

    def check(self) -> None:
        if self.multiplier is None and self.epsilon is None:
            raise BadParameter(
                "Noise: multiplier and epsilon are both None. Set multiplier=1.0, or epsilon=3.0 and "
                "delta=1e-5 for the whole run."
            )
        if self.distribution == "skellam" and self.placement != "distributed":
            raise BadParameter(
                f"Noise: distribution is 'skellam' and placement is {self.placement!r}; Skellam noise is for "
                "distributed noise. Use placement='distributed', or distribution='gaussian'."
            )

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "real")
        if math.isinf(form.bound):
            raise refuse(self, "needs a bound on each update, and there is no Clip before it.")
        if self.multiplier is None:
            raise refuse(self, "has no multiplier yet; it is computed from ε when the job is planned.")
        own = {"central": 0.0, "local": 1.0, "distributed": 1 / math.sqrt(form.least)}
        return replace(
            form,
            noise=self.multiplier,
            own_noise=own[self.placement] * self.multiplier,
            slack=SLACK if self.distribution == "skellam" else 0,
        )

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        if not form.own_noise:
            return vector
        needs(self, form, "ring")
        sigma = form.own_noise * form.bound / form.step
        make = draw_skellam if self.distribution == "skellam" else draw
        noisy = vector + torch.from_numpy(
            me.draw("noise", lambda n, source: make(sigma, n, source), vector.shape[1])
        )
        # with probability below 10⁻²² (quantize.TAIL); counted, because a wrapped number would silently
        # change the sum
        if outside := int((noisy.abs() > form.limit).sum()):
            me.events["out of range"] = me.events.get("out of range", 0) + outside
        return noisy.clamp(-form.limit, form.limit)

    def server(self, total: Tensor, form: Form, source: Source) -> Tensor:
        """Add the server's noise to the sum."""
        if self.placement != "central":
            return total
        return total + torch.from_numpy(draw(form.noise * form.bound / form.step, total.shape[0], source))


def draw(sigma: float, n: int, source: Source) -> np.ndarray:
    """`n` discrete Gaussian numbers with at least this σ.

    σ is rounded up, by less than half a percent, to a value that the sampler handles in machine words.
    """
    if sigma >= 256:
        return discrete.gaussian_whole(math.ceil(sigma), n, source)
    return discrete.gaussian(Fraction(math.ceil(Fraction(sigma) ** 2 * 1024), 1024), n, source)


def draw_skellam(sigma: float, n: int, source: Source) -> np.ndarray:
    """`n` Skellam numbers with at least this deviation.

    The variance is rounded up to a multiple of 1/1024, or, if it is large, to an integer.
    """
    variance = Fraction(sigma) ** 2
    return skellam.skellam(
        math.ceil(variance) if variance > 1 << 20 else Fraction(math.ceil(variance * 1024), 1024), n, source
    )
