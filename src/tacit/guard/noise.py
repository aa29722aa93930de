"""Noise that makes an update, or the sum of many, say little about any one client.

The discrete Gaussian of Canonne, Kamath and Steinke (NeurIPS 2020), drawn exactly from the operating
system's randomness and added to whole numbers: nothing is rounded after it, so the attack on the lowest
bits of floating-point noise (Mironov, CCS 2012) finds nothing.

    central      the server adds σ = z·bound to the sum      → whoever sees the models, but not the server itself
    local        each client adds σ = z·bound to its update  → the server too
    distributed  each client adds σ/√m, and a stage hides single updates; any m of them carry σ = z·bound together
                 → the server too, as long as m clients are honest: P. Kairouz, Z. Liu, T. Steinke, ICML 2021; or with Skellam noise, whose
                 sums are exactly Skellam again, also on a coarse grid: N. Agarwal, P. Kairouz, Z. Liu,
                 NeurIPS 2021

`bound` is the largest L2 norm of one client's whole numbers, after rounding.
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

# units: a Skellam number of variance μ lies beyond ±(10√μ + 16) less than once in 10²², also where μ is small
# and its tails are long
SLACK = 16


@dataclass(frozen=True)
class Noise(Stage):
    """Add Gaussian noise of `multiplier` times the bound; or give ε and δ for the whole run, and the
    multiplier is found.
    """

    multiplier: float | None = real(
        None,
        above=0,
        none=True,
        doc="z, the noise's standard deviation in multiples of the bound; None: found from ε and δ",
    )
    epsilon: float | None = real(
        None, above=0, none=True, doc="ε for the whole run: the run stops before a round that would exceed it"
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
        doc="the sampling you assume; one that the run does not use is refused",
    )
    distribution: str = choice(
        "gaussian", ("gaussian", "skellam"), doc="of the noise; skellam for placement='distributed' only"
    )
    accountant: str = choice(
        "auto", ("auto", "pld", "rdp"), doc="how ε is composed: pld where it applies (tighter), else rdp"
    )
    place: ClassVar[int] = 40

    def check(self) -> None:
        if self.multiplier is None and self.epsilon is None:
            raise BadParameter(
                "Noise: neither multiplier nor epsilon is given. Give multiplier=1.0, or epsilon=3.0 and "
                "delta=1e-5 for the whole run."
            )
        if self.distribution == "skellam" and self.placement != "distributed":
            raise BadParameter(
                f"Noise: distribution is 'skellam' and placement is {self.placement!r}; it is for noise "
                "that many add up together. Use "
                "placement='distributed', or distribution='gaussian'."
            )

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "real")
        if math.isinf(form.bound):
            raise refuse(self, "needs a bound on each update, and there is no Clip before it.")
        if self.multiplier is None:
            raise refuse(self, "has no multiplier yet; it is found from ε when the job is planned.")
        own = {"central": 0.0, "local": 1.0, "distributed": 1 / math.sqrt(form.least)}[
            self.placement
        ] * self.multiplier
        return replace(
            form, noise=self.multiplier, own_noise=own, slack=SLACK if self.distribution == "skellam" else 0
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
        outside = int((noisy.abs() > form.limit).sum())
        # fewer than one number in 10²² (quantize.TAIL); counted, since a wrapped number would spoil the sum
        # unseen
        if outside:
            me.events["out of range"] = me.events.get("out of range", 0) + outside
        return noisy.clamp(-form.limit, form.limit)

    def server(self, total: Tensor, form: Form, source: Source) -> Tensor:
        """The server's half, on the sum."""
        if self.placement != "central":
            return total
        return total + torch.from_numpy(draw(form.noise * form.bound / form.step, total.shape[0], source))


def draw(sigma: float, n: int, source: Source) -> np.ndarray:
    """`n` discrete Gaussian numbers of at least this σ: rounded up, by less than half a percent, to what the
    sampler handles in machine words.
    """
    if sigma >= 256:
        return discrete.gaussian_whole(math.ceil(sigma), n, source)
    return discrete.gaussian(Fraction(math.ceil(Fraction(sigma) ** 2 * 1024), 1024), n, source)


def draw_skellam(sigma: float, n: int, source: Source) -> np.ndarray:
    """`n` Skellam numbers of at least this deviation: the variance is rounded up to a multiple of 1/1024, or
    where it is large to a whole number.
    """
    variance = Fraction(sigma) ** 2
    return skellam.skellam(
        math.ceil(variance) if variance > 1 << 20 else Fraction(math.ceil(variance * 1024), 1024), n, source
    )
