"""What most algorithms share: clients train from the server's model; the server averages their updates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..parameters import flag, part, real
from .solvers import SGD, SOLVER
from .types import Algorithm, Batch, Batches, LocalState, LocalTask, Solver, State, Upload, share


class LocalTraining(Algorithm):
    """Clients take steps of a local solver, whose gradients `correct` may change."""

    solver: Solver

    def correct(self, g: Tensor, w: Tensor, down: State, mine: State) -> Tensor:
        """The direction of a step from `w`, where the gradient is `g`."""
        return g

    def step(
        self, current: LocalState, batch: Batch, task: LocalTask, down: State, mine: State
    ) -> LocalState:
        g, current = task.gradient(current, batch)
        g = self.correct(g, current.w, down, mine)
        return self.solver.step(current, g, self.solver.rate(self.lr, down))  # w ← w − η∇ℓ(w; b)

    def train(self, task: LocalTask, down: State, mine: State, batches: Batches) -> LocalState:
        """A client's state after its local steps from `down["w"]`: each local epoch, each batch b."""
        return batches.fold(self.step, self.solver.start(down), task, down, mine)


@dataclass(frozen=True)
class Averaging(LocalTraining):
    """Local training as in FedAvg; the server adds the weighted mean of the updates to its model."""

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    weighted: bool = flag(True, doc="weight clients by their rows n_k (else equally)")
    solver: Solver = part(SGD(), doc="the local step: SGD(…), Adam(…) and others", of=SOLVER)

    def upload(self, batches: Batches, delta: Tensor, buffers: State) -> Upload:
        return Upload(share(batches, self.weighted), {"delta": delta, **buffers})

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        current = self.train(task, down, mine, batches)
        return self.upload(batches, current.w - down["w"], current.buffers), mine

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w + mean["delta"], state
