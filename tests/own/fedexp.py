"""An algorithm of a user's own, in a file of its own: FedExP (Jhunjhunwala et al., ICLR 2023), simplified.

It uses nothing of the test suite, so that its file can be copied to a party.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tacit.algorithms import SGD, Algorithm, Upload
from tacit.parameters import part, real


@dataclass(frozen=True)
class FedExP(Algorithm):
    """FedAvg with a server step that grows where updates disagree."""

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    epsilon: float = real(1e-3, above=0, doc="ε, keeps the step finite")
    solver: Any = part(SGD(), doc="the local step")

    def step(self, current, batch, task, down):
        g, current = task.gradient(current, batch)
        return self.solver.step(current, g, self.solver.rate(self.lr, down))

    def local(self, task, down, mine, batches):
        current = batches.fold(self.step, self.solver.start(down), task, down)
        delta = current.w - down["w"]
        vectors = {"delta": delta, "square": (delta**2).sum()[None], **current.buffers}
        return Upload(batches.size, vectors), mine

    def merge(self, w, state, mean, fraction):
        square = (mean["delta"] ** 2).sum()
        rate = torch.clamp(mean["square"][0] / (2 * (square + self.epsilon)), min=1)
        return w + rate * mean["delta"], state
