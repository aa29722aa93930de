"""FedProx. T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith:
"Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..parameters import real
from .local import Averaging
from .types import State


@dataclass(frozen=True)
class FedProx(Averaging):
    """FedAvg with a proximal term: each client minimizes F_k(w) + μ/2 ‖w − w_t‖² inexactly.

    Clients may take different numbers of steps.
    """

    mu: float = real(0.01, least=0, doc="μ, the weight of the proximal term; 0 is FedAvg")

    def correct(self, g: Tensor, w: Tensor, down: State, mine: State) -> Tensor:
        return g + self.mu * (w - down["w"])  # ∇h_k(w; w_t), for line 5: w_k ≈ argmin h_k(w; w_t)
