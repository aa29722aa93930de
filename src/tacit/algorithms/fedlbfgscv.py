"""L-BFGS at the server with a cross-validated L2 penalty. M. Stone: "Cross-Validatory Choice and Assessment
of Statistical Predictions", Journal of the Royal Statistical Society B 36, 1974, for FedLBFGS.

For every λ = c/n, n the rows of all parties, the clients train F + 1 models side by side: F models that each
leave out one fold of every party's rows, and one of all rows. A message therefore holds 7·(F + 1) gradients,
and the losses of each model on the fold that it left out. The model of a round is that of all rows for the c
with the smallest loss so far.

The penalty of a client with n_k rows is c/(K·n_k), for K clients: their mean, weighted by rows, is c/n, and
no client knows n. A client whose folds would have fewer than FEWEST_ROWS rows leaves none out, whatever the
server asks for: its rows are in all models, and in no loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..parameters import real, whole
from .fedlbfgs import FedLBFGS
from .solvers import start
from .types import Batch, Batches, LocalState, LocalTask, State, Upload

# c: a factor of 3 apart, as a few hundred rows do not tell more, and weak penalties for tables whose labels
# can nearly be separated (benchmarks/tune_tables.py). The first is taken where all losses are equal, as
# without folds.
PENALTIES = (10.0, 3.0, 30.0, 100.0, 1.0, 0.1, 0.01)
# A weak penalty must lower the loss by 2%: chosen by chance, it does harm. (A loss may be negative.)
HANDICAPS = (0.0, 0.0, 0.0, 0.0, 0.02, 0.02, 0.02)
# A gradient of few rows shows them: the difference of two models' gradients is that of one fold.
FEWEST_ROWS = 10


@dataclass(frozen=True)
class FedLBFGSCV(FedLBFGS):
    """FedLBFGS that chooses the L2 penalty of a linear model by cross-validation on the training rows.

    Everyone should take part in every round. Rows of one person may be in several folds.
    """

    sends: ClassVar[tuple[str, ...]] = ("models",)
    repeats_batches: ClassVar[bool] = True  # a row stays in its fold
    folds: int = whole(5, least=2, most=20, doc="F, the number of folds")
    parties: float | None = real(
        None, least=1, none="all of the run", doc="K, the number of clients whose penalties are averaged"
    )

    @property
    def width(self) -> int:
        """The models of each penalty: one for each fold, and one of all rows."""
        return self.folds + 1

    def server_state(self, w: Tensor) -> State:
        models = w.repeat(len(PENALTIES) * self.width, 1)
        losses = w.new_full((len(PENALTIES),), torch.inf)
        return {"models": models, "losses": losses, **torch.vmap(super().server_state)(models)}

    def step(self, current: LocalState, batch: Batch, task: LocalTask, down: State) -> LocalState:
        fold = torch.arange(len(batch.live), device=batch.live.device) % self.folds
        # none in the model of all rows
        left_out = torch.stack([fold == f for f in range(self.width)]) * current.memory["has_folds"]
        sums, current = task.sums_of_models(
            down["models"],
            current,
            batch,
            (batch.live * (1 - left_out)).repeat(len(PENALTIES), 1),
            (batch.live * left_out).repeat(len(PENALTIES), 1),
        )
        return current._replace(memory=current.memory | {"sums": current.memory["sums"] + sums})

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        models = down["models"]
        memory = {
            "sums": torch.cat([models, models[:, :1]], 1) * 0.0,
            "has_folds": (self._smallest_fold(batches) >= FEWEST_ROWS).to(models.dtype),
        }
        current = batches.fold(self.step, start(down)._replace(memory=memory), task, down)
        sums = current.memory["sums"] / batches.live.sum()
        c = torch.tensor(PENALTIES, device=models.device).repeat_interleave(self.width)
        parties = 1.0 if self.parties is None else self.parties
        penalty = (c / (parties * batches.size))[:, None] * task.penalized * models  # λ_k·W
        vectors = {"g": sums[:, :-1] + penalty, "losses": sums[:, -1], **current.buffers}
        return Upload(batches.size, vectors), mine

    def _smallest_fold(self, batches: Batches) -> Tensor:
        """The fewest rows in a fold: with small batches, which a server may ask for, folds are unequal."""
        at = batches.live.sum(0)  # the rows at each place of a batch, in all passes
        fold = torch.arange(len(at), device=at.device) % self.folds
        counts = torch.stack([(at * (fold == f)).sum() for f in range(self.folds)])
        return counts.min() * batches.size / batches.live.sum()

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        each = {k: v for k, v in state.items() if k not in ("models", "losses")}
        models, each = torch.vmap(
            lambda w, own, g: super(FedLBFGSCV, self).merge(w, own, {"g": g}, fraction)
        )(state["models"], each, mean["g"])
        losses = mean["losses"].view(len(PENALTIES), self.width).sum(1)  # each row is in one fold
        complete = models.view(len(PENALTIES), self.width, -1)[:, -1]
        return complete[self.choose(losses)].clone(), {"models": models, "losses": losses, **each}

    @staticmethod
    def choose(losses: Tensor) -> Tensor:
        """The index of the penalty that the losses of left-out rows speak for."""
        return (losses + losses.abs() * torch.tensor(HANDICAPS, device=losses.device)).argmin()
