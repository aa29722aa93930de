"""FedAvg. H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas:
"Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.

Local SGD (S. U. Stich, ICLR 2019, Algorithm 1) and parallel mini-batch SGD are special cases.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..parameters import bad, choice, flag, real, whole
from .local import Averaging
from .types import Batches, LocalTask, State, Upload, share


@dataclass(frozen=True)
class FedAvg(Averaging):
    """Each client runs E epochs of SGD from the server's model; the server averages the results.

    With option I clients send models; with option II they send updates, whose mean a server learning rate η_g
    scales. With η_g = 1 both options are the same.
    """

    server_lr: float = real(1.0, above=0, doc="η_g, the server's learning rate (option II)")
    option: str = choice("II", ("I", "II"), doc="I: average the models; II: average the updates")

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        current = self.train(task, down, mine, batches)  # ClientUpdate
        sent = {"w": current.w} if self.option == "I" else {"delta": current.w - down["w"]}
        return Upload(share(batches, self.weighted), {**sent, **current.buffers}), mine

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        if self.option == "I":
            return mean["w"], state  # w ← Σ n_k/n w_k
        return w + self.server_lr * mean["delta"], state

    def check(self) -> None:
        if self.option == "I" and self.server_lr != 1:
            raise bad(
                type(self).__name__,
                "server_lr",
                self.server_lr,
                "1 with option 'I', which averages models and has no update to scale",
                "Use option='II'.",
            )


@dataclass(frozen=True)
class LocalSGD(FedAvg):
    """Local SGD: every party takes H steps between two averages, and all have the same weight."""

    weighted: bool = flag(False, doc="weight clients by their rows n_k (else equally)")
    local_steps: int = whole(1, least=1, doc="H, the local steps between two averages")


@dataclass(frozen=True)
class ParallelSGD(LocalSGD):
    """Parallel mini-batch SGD: one local step in a round, equal to one SGD step on the union of the
    batches.
    """

    local_steps: int = whole(1, least=1, most=1, doc="H = 1 by definition; LocalSGD allows more")
