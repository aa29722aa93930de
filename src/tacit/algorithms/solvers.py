"""Local solvers: how a client turns a gradient into a step. Written out, because building `torch.optim` costs
more than the step.

They follow torch's definitions, so that a central run with torch.optim is the reference they are held to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import BadParameter
from ..parameters import Kind, flag, part, real
from .schedules import SCHEDULE
from .types import State, Walk


def start(down: State, *memory: str) -> Walk:
    """A walk that begins at the server's model, with the named memories at zero."""
    w = down["w"]
    buffers = {"buffers": down["buffers"]} if "buffers" in down else {}
    return Walk(
        w,
        buffers,
        {name: torch.zeros_like(w) for name in memory},
        torch.zeros((), dtype=w.dtype, device=w.device),
    )


def descend(w: torch.Tensor, g: torch.Tensor, lr: Any) -> torch.Tensor:
    """w − lr·g in one pass over memory, which is what a stack of small models is bound by."""
    return torch.addcmul(w, g, lr, value=-1) if isinstance(lr, torch.Tensor) else torch.sub(w, g, alpha=lr)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with Polyak or Nesterov momentum. The memory starts anew every round."""

    momentum: float = real(0.0, least=0, below=1, doc="ρ, the weight of the past direction")
    nesterov: bool = flag(False, doc="look ahead along the momentum")
    weight_decay: float = real(0.0, least=0, doc="L2 penalty")
    schedule: Any = part(None, doc="how the learning rate changes over the rounds", none=True, of=SCHEDULE)

    def check(self) -> None:
        if self.nesterov and not self.momentum:
            raise BadParameter(
                "SGD: nesterov is True and momentum is 0; Nesterov's look-ahead is along the momentum. Give "
                "momentum above 0."
            )

    def start(self, down: State) -> Walk:
        return start(down, "v") if self.momentum else start(down)

    def rate(self, lr: float, down: State) -> Any:
        return lr if self.schedule is None else lr * self.schedule.factor(down["round"])

    def step(self, walk: Walk, g: torch.Tensor, lr: Any) -> Walk:
        if self.weight_decay:
            g = g + self.weight_decay * walk.w
        memory = walk.memory
        if self.momentum:
            v = torch.add(g, memory["v"], alpha=self.momentum)
            memory, g = {"v": v}, torch.add(g, v, alpha=self.momentum) if self.nesterov else v
        return walk._replace(w=descend(walk.w, g, lr), memory=memory, steps=walk.steps + 1)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015, Algorithm 1), recreated every round as most federated code does."""

    beta1: float = real(0.9, least=0, below=1, doc="β₁")
    beta2: float = real(0.999, least=0, below=1, doc="β₂")
    eps: float = real(1e-8, above=0, doc="ε, keeps the quotient finite")
    weight_decay: float = real(0.0, least=0, doc="L2 penalty")
    schedule: Any = part(None, doc="how the learning rate changes over the rounds", none=True, of=SCHEDULE)

    def start(self, down: State) -> Walk:
        return start(down, "m", "v")

    def rate(self, lr: float, down: State) -> Any:
        return lr if self.schedule is None else lr * self.schedule.factor(down["round"])

    def step(self, walk: Walk, g: torch.Tensor, lr: Any) -> Walk:
        if self.weight_decay:
            g = g + self.weight_decay * walk.w
        t = walk.steps + 1
        m = torch.lerp(
            walk.memory["m"], g, 1 - self.beta1
        )  # β₁m + (1 − β₁)g, and the others: as few passes over memory as there can be
        v = torch.addcmul(self.beta2 * walk.memory["v"], g, g, value=1 - self.beta2)
        far = (v / (1 - self.beta2**t)).sqrt() + self.eps
        return walk._replace(
            w=torch.addcdiv(walk.w, m * (lr / (1 - self.beta1**t)), far, value=-1),
            memory={"m": m, "v": v},
            steps=t,
        )


ALL = {"SGD": SGD, "Adam": Adam}
SOLVER = Kind("a local solver", ALL, ("start", "rate", "step"))
