"""Bound what one client can do: its update's L2 norm.

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
    """Shorten an update that is longer than `norm`. `per="layer"` gives each of L layers norm/√L; a
    `quantile` lets the norm follow the updates.
    """

    norm: float = real(
        above=0, doc="S, the largest L2 norm of one client's update; with a quantile, that of the first round"
    )
    per: str = choice(
        "update", ("update", "layer"), doc="what is shortened: the whole update, or each layer by itself"
    )
    quantile: float | None = real(
        None,
        above=0,
        below=1,
        none=True,
        doc="γ, the share of updates that should not be shortened; None keeps the norm",
    )
    rate: float = real(0.2, above=0, doc="η_C, how fast the norm follows the quantile")
    place: ClassVar[int] = 30

    def check(self) -> None:
        if self.quantile is not None and self.per == "layer":
            raise BadParameter(
                "Clip: quantile and per='layer' are both given; one bit a client cannot move the norms of "
                "several layers. Leave one out."
            )

    def bound(self, state: State) -> float:
        return float(state["clip"]) if self.quantile is not None else self.norm

    def lever(self, form: Form, state: State) -> float:
        """What the bit weighs in the vector. With noise z·S it then has the noise σ_b ≈ z·n/20 of Andrew et
        al., Section 3.1, at the price of a bound that is √(1 + (10/n)²) times as large.
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
            bound=math.hypot(self.bound(state), self.lever(form, state) / 2),
        )

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        if self.per == "layer" and len(form.layers) > 1:
            each = self.norm / math.sqrt(len(form.layers))
            pieces = [shorten(piece, each) for piece in vector.split(list(form.layers), 1)]
            me.events["clipped"] = me.events.get("clipped", 0) + int(
                torch.stack([late for _, late in pieces]).any(0).sum()
            )
            return torch.cat([piece for piece, _ in pieces], 1)
        state = me.state
        short, late = shorten(vector, self.bound(state))
        me.events["clipped"] = me.events.get("clipped", 0) + int(late.sum())
        if self.quantile is None:
            return short
        return torch.cat(
            [short, ((~late).to(torch.float64) - 0.5)[:, None] * self.lever(form, state)], 1
        )  # b_i − ½: half the sensitivity of b_i

    def back(self, total: Tensor, n: float, form: Form, state: State) -> tuple[Tensor, State]:
        if self.quantile is None:
            return total, state
        inside = min(
            1.0, max(0.0, float(total[-1]) / n / self.lever(form, state) + 0.5)
        )  # b̃, the noisy share of updates within the norm
        norm = self.bound(state) * math.exp(
            -self.rate * (inside - self.quantile)
        )  # C ← C · exp(−η_C (b̃ − γ))
        return total[:-1], {**state, "clip": torch.tensor(norm, dtype=torch.float64)}


def shorten(rows: Tensor, norm: float) -> tuple[Tensor, Tensor]:
    """Rows no longer than `norm`, and which had been."""
    lengths = rows.square().sum(1).sqrt()
    late = lengths > norm
    return rows * torch.where(late, norm / lengths.clamp(min=1e-300), torch.ones_like(lengths))[:, None], late
