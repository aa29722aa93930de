"""Local solvers: how a client turns a gradient into a step.

They are written out, because building a `torch.optim` object costs more than a step. They follow torch's
definitions: a central run with torch.optim is the reference that tests compare them with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import Kind, flag, part, real
from .schedules import SCHEDULE, Schedule
from .types import LocalState, Solver, State


def start(down: State, *memory: str) -> LocalState:
    """The start of the local loop: the server's model, with the named optimizer states at zero."""
    w = down["w"]
    buffers = {"buffers": down["buffers"]} if "buffers" in down else {}
    return LocalState(
        w,
        buffers,
        {name: torch.zeros_like(w) for name in memory},
        torch.zeros((), dtype=w.dtype, device=w.device),
    )


def descend(w: Tensor, g: Tensor, lr: Any) -> Tensor:
    """w − lr·g in one pass over memory, whose bandwidth limits a stack of small models."""
    return torch.addcmul(w, g, lr, value=-1) if isinstance(lr, Tensor) else torch.sub(w, g, alpha=lr)


class Scheduled(Solver):
    """A solver whose learning rate follows a schedule over the rounds, if it has one."""

    schedule: Schedule | None = None

    def rate(self, lr: float, down: State) -> Any:
        return lr if self.schedule is None else lr * self.schedule.factor(down["round"])


@dataclass(frozen=True)
class SGD(Scheduled):
    """Stochastic gradient descent, with Polyak or Nesterov momentum, which is reset every round."""

    momentum: float = real(0.0, least=0, below=1, doc="ρ, the weight of earlier gradients")
    nesterov: bool = flag(False, doc="use Nesterov momentum")
    weight_decay: float = real(0.0, least=0, doc="L2 penalty")
    schedule: Schedule | None = part(
        None, doc="how the learning rate changes over the rounds", none=True, of=SCHEDULE
    )

    def check(self) -> None:
        if self.nesterov and not self.momentum:
            raise BadParameter(
                "SGD: nesterov is True and momentum is 0. Nesterov momentum needs a momentum above 0."
            )

    def start(self, down: State) -> LocalState:
        return start(down, "v") if self.momentum else start(down)

    def step(self, current: LocalState, g: Tensor, lr: Any) -> LocalState:
        if self.weight_decay:
            g = g + self.weight_decay * current.w
        memory = current.memory
        if self.momentum:
            v = torch.add(g, memory["v"], alpha=self.momentum)
            memory, g = {"v": v}, torch.add(g, v, alpha=self.momentum) if self.nesterov else v
        return current._replace(w=descend(current.w, g, lr), memory=memory, steps=current.steps + 1)


@dataclass(frozen=True)
class Adam(Scheduled):
    """Adam (Kingma and Ba 2015, Algorithm 1), reset every round, as is usual in federated training."""

    beta1: float = real(0.9, least=0, below=1, doc="β₁")
    beta2: float = real(0.999, least=0, below=1, doc="β₂")
    eps: float = real(1e-8, above=0, doc="ε, keeps the quotient finite")
    weight_decay: float = real(0.0, least=0, doc="L2 penalty")
    schedule: Schedule | None = part(
        None, doc="how the learning rate changes over the rounds", none=True, of=SCHEDULE
    )

    def start(self, down: State) -> LocalState:
        return start(down, "m", "v")

    def step(self, current: LocalState, g: Tensor, lr: Any) -> LocalState:
        if self.weight_decay:
            g = g + self.weight_decay * current.w
        t = current.steps + 1
        # β₁m + (1 − β₁)g, and so on, with as few passes over memory as possible
        m = torch.lerp(current.memory["m"], g, 1 - self.beta1)
        v = torch.addcmul(self.beta2 * current.memory["v"], g, g, value=1 - self.beta2)
        scale = (v / (1 - self.beta2**t)).sqrt() + self.eps
        return current._replace(
            w=torch.addcdiv(current.w, m * (lr / (1 - self.beta1**t)), scale, value=-1),
            memory={"m": m, "v": v},
            steps=t,
        )


ALL: dict[str, type[Solver]] = {"SGD": SGD, "Adam": Adam}
SOLVER = Kind("a local solver", ALL, Solver)
