"""Quantization: integers take fewer bits than real numbers, and their sums are exact.

Stochastic rounding as in QSGD (D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnović, NeurIPS 2017),
unbiased; where noise is calibrated to the result, conditional as in P. Kairouz, Z. Liu, T. Steinke: "The
Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation", ICML 2021, Algorithm
1: rounding is repeated until its norm is within the bound of their Lemma 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..parameters import flag, whole
from .stage import Clients, Form, Source, Stage, State, needs, refuse

# Kairouz et al., Section 5: a try succeeds with probability at least 1 − β = 0.39, and the bound hardly grows
BETA = math.exp(-0.5)
TAIL = (
    10  # standard deviations of a client's own noise for which there is room; beyond: probability below 1e-22
)


@dataclass(frozen=True)
class Quantize(Stage):
    """Round each number to a grid of 2^bits points.

    If updates are hidden, each client has a part of the grid, so that the sum of all clients fits the bits.
    """

    bits: int = whole(
        16,
        least=1,
        most=48,
        doc="bits of a number in a message; hidden updates share them: 2^bits/clients points each",
    )
    stochastic: bool = flag(True, doc="round up or down at random, unbiased (else to the nearest)")
    place: ClassVar[int] = 50

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "real")
        if math.isinf(form.bound):  # no Clip: each client has its own scale, which it sends
            if self.bits > 24:
                raise refuse(
                    self,
                    f"has {self.bits} bits, and without Clip before it a number has 24. Use at most 24 "
                    "bits, or add Clip.",
                )
            return replace(
                form, space="ring", step=0.0, limit=max(1, 2 ** (self.bits - 1) - 1), bits=self.bits
            )
        room = form.clients if form.hidden else 1
        limit = (2**self.bits - 1) // (2 * room)
        # ± limit has room for the number, one unit of rounding, and TAIL·σ of the client's own noise, where
        # σ = own_noise · (bound after rounding) and that bound is at most bound + √d·step
        units = limit - 1 - form.slack - TAIL * form.own_noise * math.sqrt(form.dimension)
        if units < 1:
            raise refuse(
                self,
                f"has {self.bits} bits for the sum of {room} clients of {form.dimension} numbers"
                f"{' with their noise' if form.own_noise else ''}: each number has {2 * limit + 1} points, "
                "which are too few. Use more bits.",
            )
        step = form.bound * (1 + TAIL * form.own_noise) / units
        return replace(
            form,
            space="ring",
            step=step,
            limit=limit,
            bits=self.bits,
            bound=self.rounded_bound(form, step),
            modulus=2**self.bits if form.hidden else 0,
        )

    def rounded_bound(self, form: Form, step: float) -> float:
        """The largest L2 norm of a client's vector after rounding."""
        d, c = form.dimension, form.bound
        if not self.stochastic:
            return c + math.sqrt(d) * step / 2  # every number changes by at most half a unit
        likely = (
            c * c
            + d * step * step / 4
            + math.sqrt(2 * math.log(1 / BETA)) * step * (c + math.sqrt(d) * step / 2)
        )
        return min(c + math.sqrt(d) * step, math.sqrt(likely))

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        after = self.form(form, {})
        if not after.step:
            scale = vector.abs().amax(1, keepdim=True)
            scaled = self._round(vector / scale.clamp(min=1e-300) * after.limit, me, None).clamp(
                -after.limit, after.limit
            )
            return torch.cat(
                [scaled.to(torch.float64), (scale / after.limit).to(torch.float32).to(torch.float64)], 1
            )
        most = after.bound / after.step if form.noise else None  # only noise depends on the bound
        return self._round(vector / after.step, me, most).to(torch.int64)

    def _round(self, x: Tensor, me: Clients, most: float | None) -> Tensor:
        if not self.stochastic:
            return x.round()
        low = x.floor()
        up = x - low
        rows = low + (_uniform(me, x.shape[1], 0) < up)
        tries = 1
        while most is not None and len(long := torch.nonzero(rows.square().sum(1).sqrt() > most).flatten()):
            again = replace(me, names=tuple(me.names[i] for i in long.tolist()))
            rows[long] = low[long] + (_uniform(again, x.shape[1], tries) < up[long])
            tries += 1
        return rows

    def read(self, rows: Tensor, form: Form) -> Tensor:
        """Integer rows → real numbers."""
        return rows[:, :-1] * rows[:, -1:] if not form.step else rows.to(torch.float64) * form.step


@dataclass(frozen=True)
class Fine(Quantize):
    """The grid for noise without Quantize: so fine that rounding has no visible effect.

    It rounds towards zero, so that no norm grows.
    """

    bits: int = 32
    stochastic: bool = False

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "real")
        step = form.bound * form.noise / 2**20  # σ is 2²⁰ units, which the sampler handles in machine words
        limit = math.floor(form.bound * (1 + TAIL * form.own_noise) / step) + 1
        return replace(form, space="ring", step=step, limit=limit, bits=32 if limit < 2**31 else 64)

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        after = self.form(form, {})
        most = form.bound / after.step
        x = vector / after.step
        rows = x.trunc()
        # float64 rounding in Clip may leave a norm above the bound by a part in 10¹⁵; integers must not
        # exceed it
        while len(long := torch.nonzero(rows.square().sum(1) > most * most).flatten()):
            x[long] *= 1 - 1e-9
            rows[long] = x[long].trunc()
        return rows.to(torch.int64)


def _uniform(me: Clients, n: int, again: int) -> Tensor:
    def make(count: int, source: Source) -> np.ndarray:
        return (np.frombuffer(source(8 * count), dtype="<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53

    return torch.from_numpy(me.draw(f"round/{again}", make, n))
