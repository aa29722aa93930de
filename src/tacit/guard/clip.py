"""Bound the L2 norm of each client's update.

Flat and per layer: H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: "Learning Differentially Private Recurrent
Language Models", ICLR 2018, Section 3. Adaptive: G. Andrew, O. Thakkar, H. B. McMahan, S. Ramaswamy:
"Differentially Private Learning with Adaptive Clipping", NeurIPS 2021, Algorithm 1: the norm follows a
quantile of the updates' norms, which clients report as one bit each, under the same noise as the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import choice, real
from .stage import Clients, Form, Stage, State, needs


@dataclass(frozen=True)
class Clip(Stage):
    """Scale an update down to the L2 norm `norm` if it is longer.

    `per="layer"` clips each of L layers to norm/√L. With a `quantile`, the norm adapts to the updates.
    """

    norm: float = real(
        above=0, doc="S, the largest L2 norm of one client's update; with a quantile, that of the first round"
    )
    per: str = choice("update", ("update", "layer"), doc="what is clipped: the whole update, or each layer")
    quantile: float | None = real(
        None,
        above=0,
        below=1,
        none=True,
        doc="γ, the share of updates that should not be clipped; None: a fixed norm",
    )
    rate: float = real(0.2, above=0, doc="η_C, the learning rate of the norm")
    place: ClassVar[int] = 30

    def check(self) -> None:
        if self.quantile is not None and self.per == "layer":
            raise BadParameter(
                "Clip: quantile cannot be combined with per='layer', because one bit from each client cannot "
                "adapt the norms of several layers. Leave one of them out."
            )

    def bound(self, state: State) -> float:
        return float(state["clip"]) if self.quantile is not None else self.norm

    def bit_scale(self, form: Form, state: State) -> float:
        """The scale of the bit in the vector.

        With noise z·S the bit has the noise σ_b ≈ z·n/20 of Andrew et al., Section 3.1; the bound becomes
        √(1 + (10/n)²) times as large.
        """
        return self.bound(state) * min(1.0, 20 / form.clients)

    def server_state(self, form: Form) -> State:
        return {"clip": torch.tensor(self.norm, dtype=torch.float64)} if self.quantile is not None else {}

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "real")
        if self.quantile is None:
            return replace(form, bound=self.norm)
        return replace(
            form,
            dimension=form.dimension + 1,
            layers=(),
            bound=math.hypot(self.bound(state), self.bit_scale(form, state) / 2),
        )

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        if self.per == "layer" and len(form.layers) > 1:
            norm = self.norm / math.sqrt(len(form.layers))
            pieces = [clip_rows(piece, norm) for piece in torch.split(vector, list(form.layers), 1)]
            me.events["clipped"] = me.events.get("clipped", 0) + int(
                torch.stack([long for _, long in pieces]).any(0).sum()
            )
            return torch.cat([piece for piece, _ in pieces], 1)
        short, long = clip_rows(vector, self.bound(me.state))
        me.events["clipped"] = me.events.get("clipped", 0) + int(long.sum())
        if self.quantile is None:
            return short
        # b_i − ½ has half the sensitivity of b_i
        return torch.cat(
            [short, ((~long).to(torch.float64) - 0.5)[:, None] * self.bit_scale(form, me.state)], 1
        )

    def back(self, total: Tensor, n: float, form: Form, state: State) -> tuple[Tensor, State]:
        if self.quantile is None:
            return total, state
        # b̃, the noisy share of updates within the norm
        inside = min(1.0, max(0.0, float(total[-1]) / n / self.bit_scale(form, state) + 0.5))
        # C ← C · exp(−η_C (b̃ − γ))
        norm = self.bound(state) * math.exp(-self.rate * (inside - self.quantile))
        return total[:-1], {**state, "clip": torch.tensor(norm, dtype=torch.float64)}


def clip_rows(rows: Tensor, norm: float) -> tuple[Tensor, Tensor]:
    """The rows, clipped to `norm`, and which of them were longer."""
    lengths = rows.square().sum(1).sqrt()
    long = lengths > norm
    return rows * torch.where(long, norm / lengths.clamp(min=1e-300), torch.ones_like(lengths))[:, None], long
