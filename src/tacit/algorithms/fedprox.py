"""FedProx. T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith:
"Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..parameters import flag, part, real
from .solvers import SGD, SOLVER
from .types import Algorithm, Batch, Batches, LocalState, LocalTask, Solver, State, Upload, share


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with a proximal term: each client minimizes F_k(w) + μ/2 ‖w − w_t‖² inexactly.

    Clients may take different numbers of steps.
    """

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    mu: float = real(0.01, least=0, doc="μ, the weight of the proximal term; 0 is FedAvg")
    weighted: bool = flag(True, doc="weight clients by their rows n_k (else equally)")
    solver: Solver = part(SGD(), doc="the local step: SGD(…) or Adam(…)", of=SOLVER)

    def step(self, current: LocalState, batch: Batch, task: LocalTask, down: State) -> LocalState:
        g, current = task.gradient(current, batch)
        g = g + self.mu * (current.w - down["w"])  # ∇h_k(w; w_t)
        return self.solver.step(current, g, self.solver.rate(self.lr, down))

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        # line 5: w_k ≈ argmin h_k(w; w_t)
        current = batches.fold(self.step, self.solver.start(down), task, down)
        vectors = {"delta": current.w - down["w"], **current.buffers}
        return Upload(share(batches, self.weighted), vectors), mine  # line 6

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w + mean["delta"], state  # line 7: w_{t+1} = mean of the w_k
