"""FedPA. M. Al-Shedivat, J. Gillenwater, E. Xing, A. Rostamizadeh: "Federated Learning via Posterior
Averaging: A New Perspective and Practical Algorithms", ICLR 2021, Sections 3 and 4.

If every party's posterior over the weights is a Gaussian N(μ_k, Σ_k), the posterior given all rows is their
product, and its mode is the zero of Σ_k q_k·Σ_k⁻¹(θ − μ_k). A party samples its own posterior and sends its
term of this sum; the server steps along the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import real, whole
from .local import Averaging
from .types import Batch, Batches, LocalState, LocalTask, State, Upload


@dataclass(frozen=True)
class FedPA(Averaging):
    """Each party sends the direction to its posterior mean, scaled by the inverse posterior covariance.

    With one sample of one step it is FedAvg. It assumes that posteriors are nearly Gaussian and that SGD is
    stationary after its burn-in; `warmup` rounds of FedAvg come first.
    """

    server_lr: float = real(1.0, above=0, doc="η_g, the server's learning rate")
    samples: int = whole(
        4,
        least=1,
        doc="ℓ, the posterior samples, each the mean of several SGD steps; fewer for few steps",
    )
    rho: float = real(
        0.1,
        least=0,
        doc="ρ, the weight of the samples' covariance relative to the identity; 0 uses only their mean",
    )
    burn_in: float = real(0.5, least=0, below=1, doc="the share of a round's steps before the first sample")
    warmup: int = whole(0, least=0, doc="rounds of plain FedAvg at the start")

    def sample(
        self, current: LocalState, batch: Batch, task: LocalTask, down: State, plan: State
    ) -> LocalState:
        memory = dict(current.memory)
        samples = memory.pop("drawn")
        after = current.steps - plan["burn"]  # steps since the burn-in
        g, current = task.gradient(current._replace(memory=memory), batch)
        current = self.solver.step(current, g, self.solver.rate(self.lr, down))
        into = torch.where(after >= 0, (after * plan["many"] / plan["left"]).floor(), -1.0)
        mark = (torch.arange(self.samples, device=current.w.device) == into).to(current.w.dtype)
        return current._replace(
            memory={
                **current.memory,
                "drawn": samples + mark[:, None] * current.w,
                "of": current.memory["of"] + mark,
            }
        )

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        steps = (batches.live.sum(-1) > 0).to(batches.live.dtype).sum()  # without the padding of a stack
        burn = (self.burn_in * steps).floor()
        plan = {"burn": burn, "left": steps - burn, "many": (steps - burn).clamp(max=self.samples)}
        begin = self.solver.start(down)
        none = torch.zeros(self.samples, device=begin.w.device, dtype=begin.w.dtype)
        memory = {**begin.memory, "drawn": none[:, None] * begin.w, "of": none}
        # iterate-averaged stochastic gradient samples
        current = batches.fold(self.sample, begin._replace(memory=memory), task, down, plan)
        samples = current.memory["drawn"] / current.memory["of"].clamp(min=1)[:, None]
        direction = posterior_direction(down["w"], samples, plan["many"], self.rho)
        direction = torch.where(down["round"] < self.warmup, down["w"] - current.w, direction)
        return self.upload(batches, -direction, current.buffers), mine

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w + self.server_lr * mean["delta"], state


def posterior_direction(x0: Tensor, x: Tensor, many: Tensor, rho: float | Tensor) -> Tensor:
    """Σ̂⁻¹(x₀ − x̄) over the first `many` of the samples x [ℓ, D], by dynamic programming.

    It takes O(ℓ²·D) operations and no D × D matrix.

    Σ̂ = ρ_ℓ·I + (1 − ρ_ℓ)·S with S the samples' covariance and ρ_ℓ = 1/(1 + (ℓ − 1)ρ) is ρ_ℓ times Σ̃ = I +
    ρ·Σ(x_i − x̄)(x_i − x̄)ᵀ, to which every new sample adds one outer product: γ·u·uᵀ with u = x_l − x̄ and γ
    = ρ(l − 1)/l. Its inverse follows by the Sherman–Morrison formula.
    """
    mean, result = x[0], x0 - x[0]  # x̄₁; Σ̃₁ = I
    # (v, γ/(1 + γ·uᵀv)) of the samples so far, where v = Σ̃⁻¹u with the Σ̃ before the sample
    factors: list[tuple[Tensor, Tensor]] = []
    for i in range(1, len(x)):
        n = i + 1
        exists = (many > i).to(x.dtype)  # a sample that was not drawn changes nothing
        u = exists * (x[i] - mean)
        v = u
        for old, factor in factors:
            v = v - factor * (old @ u) * old
        factor = rho * i / n / (1 + rho * i / n * (u @ v))
        result = result - (1 / n + factor * (u @ result - u @ v / n)) * v
        mean = mean + u / n
        factors.append((v, factor))
    return (1 + (many - 1) * rho) * result
