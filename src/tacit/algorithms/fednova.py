"""FedNova. J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", NeurIPS 2020, Section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import choice, part, real
from .solvers import SGD, SOLVER
from .types import Algorithm, Batch, Batches, LocalState, LocalTask, Solver, State, Upload


@dataclass(frozen=True)
class FedNova(Algorithm):
    """Normalized averaging: the mean direction d_k of the clients, times τ_eff steps.

    Clients that take more steps do not count for more. The update of a client is −η·G_k·a_k, where a_k is
    the weight of each of the τ_k gradients: all ones for plain SGD, more with momentum ρ, less with a
    proximal term μ. ‖a_k‖₁ comes from the solver's own recursion with every gradient set to one, so that it
    is exact for momentum and μ together.

    This needs a solver whose steps are sums of gradients. `count="steps"` divides by τ_k for any solver,
    which is the same for plain SGD. `count="epochs"` divides by the passes over a client's rows, as some
    published code does; clients with more rows then still count for more.

    τ_eff is the mean of the τ_k, as in the paper's experiments; its theory leaves the choice open. The step
    is then a weighted mean of the clients' updates, times Σ p_k·τ_k · Σ p_k/τ_k. This factor is at least 1,
    and above 2 if a few clients have most of the rows: the model then overshoots more in every round
    (`benchmarks/fednova_step.py`). With `tau="harmonic"`, τ_eff is 1 / Σ p_k/τ_k, and the factor is 1. With
    either τ_eff, the weight of a client is p_k/τ_k: clients that train for equally many epochs count nearly
    equally, whatever their number of rows.
    """

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    mu: float = real(0.0, least=0, doc="μ, the proximal term, as in FedProx")
    solver: Solver = part(SGD(), doc="the local step: SGD(…), with or without momentum", of=SOLVER)
    count: str = choice(
        "gradients",
        ("gradients", "steps", "epochs"),
        doc="what a client's update is divided by: ‖a_k‖₁, its steps, or its epochs",
    )
    tau: str = choice(
        "mean",
        ("mean", "harmonic"),
        doc="τ_eff, the server's number of steps: the mean of the clients', or their harmonic mean",
    )

    scales = False  # a direction and a number of steps are sent: scaling would reduce both

    @property
    def divides(self) -> bool:  # type: ignore[override]
        return self.tau == "harmonic"

    def step(self, current: LocalState, batch: Batch, task: LocalTask, down: State) -> LocalState:
        lr = self.solver.rate(self.lr, down)
        g, current = task.gradient(current, batch)
        if self.count != "gradients":
            return self.solver.step(current, g + self.mu * (current.w - down["w"]), lr)
        assert isinstance(self.solver, SGD)  # `check` has ensured it
        memory = dict(current.memory)
        v, a = memory.pop("a_v"), memory.pop("a")
        # the solver's step for a gradient of one: w − w_t is −η·a
        v = self.solver.momentum * v + 1 - lr * self.mu * a
        a = a + (1 - lr * self.mu * a + self.solver.momentum * v if self.solver.nesterov else v)
        current = self.solver.step(current._replace(memory=memory), g + self.mu * (current.w - down["w"]), lr)
        return current._replace(memory={**current.memory, "a_v": v, "a": a})

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        current = self.solver.start(down)
        if self.count == "gradients":
            zero = torch.zeros_like(current.steps)
            current = batches.fold(
                self.step, current._replace(memory={**current.memory, "a_v": zero, "a": zero}), task, down
            )
            a_k = current.memory["a"]  # ‖a_k‖₁; equals τ_k for plain SGD
        else:
            current = batches.fold(self.step, current, task, down)
            a_k = current.steps if self.count == "steps" else batches.live.sum() / batches.size
        d_k = (down["w"] - current.w) / a_k  # η·d_k, the mean direction of this client
        return Upload(
            batches.size, {"d": d_k, "tau": a_k if self.tau == "mean" else 1 / a_k, **current.buffers}
        ), mine

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        tau = mean["tau"] if self.tau == "mean" else 1 / mean["tau"]  # Σ p_k·‖a_k‖₁, or 1 / Σ p_k/‖a_k‖₁
        return w - tau * mean["d"], state  # w_{t+1} = w_t − τ_eff Σ p_k·η·d_k

    def check(self) -> None:
        if self.lr * self.mu >= 1:  # the weight of a gradient would become negative, and ‖a_k‖₁ could be zero
            raise BadParameter(
                f"FedNova: lr·mu is {self.lr * self.mu:g}; it must be below 1, or the proximal term "
                "overshoots. Lower lr or mu."
            )
        if self.count == "gradients" and (not isinstance(self.solver, SGD) or self.solver.weight_decay):
            raise BadParameter(
                f"FedNova: solver is {self.solver!r}; it must be SGD without weight decay, because ‖a_k‖₁ "
                "is known in closed "
                "form for it only. Use FedAvg or FedProx with other solvers, or count='steps'."
            )
