"""FedPA. M. Al-Shedivat, J. Gillenwater, E. Xing, A. Rostamizadeh: "Federated Learning via Posterior
Averaging: A New Perspective and Practical Algorithms", ICLR 2021, Sections 3 and 4.

If every party's posterior over the weights is a Gaussian N(μ_k, Σ_k), the posterior given everybody's rows is
their product, and its mode is where Σ_k q_k·Σ_k⁻¹(θ − μ_k) vanishes. A party samples its own posterior and
sends that vector; the server steps along the mean of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..parameters import flag, part, real, whole
from .solvers import SGD, SOLVER
from .types import Algorithm, Batch, Batches, LocalState, LocalTask, Solver, State, Upload, share


@dataclass(frozen=True)
class FedPA(Algorithm):
    """Each party sends its way to the mean of its posterior, stretched where that is narrow. With one sample
    of one step it is FedAvg.

    It assumes that posteriors are near Gaussian, and that SGD has settled by the end of its burn-in: `warmup`
    rounds of FedAvg come before.
    """

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    server_lr: float = real(1.0, above=0, doc="η_g, the server's learning rate")
    samples: int = whole(
        4,
        least=1,
        doc="ℓ, posterior samples: each the mean of a run of SGD's steps (fewer where a party has fewer "
        "steps)",
    )
    rho: float = real(
        0.1,
        least=0,
        doc="ρ: how much the samples' covariance counts against the unit matrix; 0 counts the mean of the "
        "samples alone",
    )
    burn_in: float = real(0.5, least=0, below=1, doc="the share of a round's steps before the first sample")
    warmup: int = whole(0, least=0, doc="rounds of plain FedAvg at the beginning")
    weighted: bool = flag(True, doc="weight clients by their rows n_k (else equally)")
    solver: Solver = part(SGD(), doc="the local step: SGD(…) or Adam(…)", of=SOLVER)

    def step(
        self, current: LocalState, batch: Batch, task: LocalTask, down: State, plan: State
    ) -> LocalState:
        memory = dict(current.memory)
        drawn = memory.pop("drawn")
        after = current.steps - plan["burn"]  # steps since the burn-in
        g, current = task.gradient(current._replace(memory=memory), batch)
        current = self.solver.step(current, g, self.solver.rate(self.lr, down))
        into = torch.where(after >= 0, (after * plan["many"] / plan["left"]).floor(), -1.0)
        mark = (torch.arange(self.samples, device=current.w.device) == into).to(current.w.dtype)
        return current._replace(
            memory={
                **current.memory,
                "drawn": drawn + mark[:, None] * current.w,
                "of": current.memory["of"] + mark,
            }
        )

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        steps = (
            (batches.live.sum(-1) > 0).to(batches.live.dtype).sum()
        )  # its own, without the padding of a stack
        burn = (self.burn_in * steps).floor()
        plan = {"burn": burn, "left": steps - burn, "many": (steps - burn).clamp(max=self.samples)}
        begin = self.solver.start(down)
        none = torch.zeros(self.samples, device=begin.w.device, dtype=begin.w.dtype)
        memory = {**begin.memory, "drawn": none[:, None] * begin.w, "of": none}
        current = batches.fold(
            self.step, begin._replace(memory=memory), task, down, plan
        )  # iterate-averaged stochastic gradient samples
        drawn = current.memory["drawn"] / current.memory["of"].clamp(min=1)[:, None]
        way = posterior_way(down["w"], drawn, plan["many"], self.rho)
        way = torch.where(down["round"] < self.warmup, down["w"] - current.w, way)
        return Upload(share(batches, self.weighted), {"delta": -way, **current.buffers}), mine

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w + self.server_lr * mean["delta"], state


def posterior_way(x0: Tensor, x: Tensor, many: Tensor, rho: Any) -> Tensor:
    """Σ̂⁻¹(x₀ − x̄) over the first `many` of the samples x [ℓ, D], in O(ℓ²·D) and without a D × D matrix: the
    dynamic programme.

    Σ̂ = ρ_ℓ·I + (1 − ρ_ℓ)·S with S the samples' covariance and ρ_ℓ = 1/(1 + (ℓ − 1)ρ) is ρ_ℓ times Σ̃ = I +
    ρ·Σ(x_i − x̄)(x_i − x̄)ᵀ, to which every new sample adds one outer product: γ·u·uᵀ with u = x_l − x̄ and γ
    = ρ(l − 1)/l. So its inverse follows by Sherman and Morrison.
    """
    mean, way = x[0], x0 - x[0]  # x̄₁; Σ̃₁ = I
    found: list[
        tuple[Tensor, Tensor]
    ] = []  # (v, γ/(1 + γ·uᵀv)) of the samples so far, where v is the Σ̃⁻¹u of its time
    for i in range(1, len(x)):
        n = i + 1
        there = (many > i).to(x.dtype)  # a sample that was not drawn changes nothing
        u = there * (x[i] - mean)
        v = u
        for old, factor in found:
            v = v - factor * (old @ u) * old
        factor = rho * i / n / (1 + rho * i / n * (u @ v))
        way = way - (1 / n + factor * (u @ way - u @ v / n)) * v
        mean = mean + u / n
        found.append((v, factor))
    return (1 + (many - 1) * rho) * way
