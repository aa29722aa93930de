"""SCAFFOLD. S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh:
"SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import bad, choice, part, real
from .local import LocalTraining
from .solvers import SGD, SOLVER, start
from .types import Batch, Batches, LocalState, LocalTask, Solver, State, Upload, share


@dataclass(frozen=True)
class Scaffold(LocalTraining):
    """Control variates c and c_k estimate the update directions; each client corrects its drift by c −
    c_k.
    """

    lr: float = real(0.1, above=0, doc="η_l, the clients' learning rate")
    server_lr: float = real(1.0, above=0, doc="η_g, the server's learning rate")
    option: str = choice(
        "ii",
        ("i", "ii"),
        doc="the new c_k; i: the gradient at the server's model; ii: the mean local gradient (no extra pass)",
    )
    solver: Solver = part(SGD(), doc="the local step: SGD(…)", of=SOLVER)
    sends = ("c",)
    weighted = False

    def server_state(self, w: Tensor) -> State:
        return {"c": torch.zeros_like(w)}

    def client_state(self, w: Tensor) -> State:
        return {"c_k": torch.zeros_like(w)}

    def correct(self, g: Tensor, w: Tensor, down: State, mine: State) -> Tensor:
        return g - mine["c_k"] + down["c"]  # line 10

    def add_gradient(self, current: LocalState, batch: Batch, task: LocalTask, x: State) -> LocalState:
        g, _ = task.gradient(current._replace(w=x["w"]), batch)  # line 12 (i): g_k(x) at the server's model
        return current._replace(memory={"sum": current.memory["sum"] + batch.live.sum() * g})

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        x, c, c_k = down["w"], down["c"], mine["c_k"]  # line 7
        current = self.train(task, down, mine, batches)  # lines 8-11
        if self.option == "i":
            total = batches.fold(self.add_gradient, start(down, "sum"), task, {"w": x})
            c_new = total.memory["sum"] / batches.live.sum()
        else:
            # K·η_l; a schedule that ends at η_l = 0 must not give 0/0
            k_eta = (current.steps * self.solver.rate(self.lr, down)).clamp(min=1e-30)
            c_new = c_k - c + (x - current.w) / k_eta  # line 12 (ii)
        sent = {"dx": current.w - x, "dc": c_new - c_k, **current.buffers}  # line 13
        return Upload(share(batches, weighted=False), sent), {"c_k": c_new}  # line 14

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w + self.server_lr * mean["dx"], {"c": state["c"] + fraction * mean["dc"]}  # lines 16-17

    def check(self) -> None:
        plain = isinstance(self.solver, SGD) and not self.solver.momentum
        if self.option == "ii" and not plain:
            raise bad(
                "Scaffold",
                "solver",
                self.solver,
                "SGD without momentum with option 'ii', which computes the mean gradient from the update",
                "Use option='i', or FedAvg with this solver.",
            )
