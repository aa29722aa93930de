"""Local solvers: how a client turns a gradient into a step.

They are written out, because building a `torch.optim` object costs more than a step. They follow torch's
definitions: a central run with torch.optim is the reference that tests compare them with.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import Kind, choice, flag, part, real
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
    """A solver with an optional schedule of the learning rate over the rounds and clipping of gradients.

    Like torch, it clips before weight decay is added.
    """

    schedule: Schedule | None = None
    max_norm: float | None = None

    def rate(self, lr: float, down: State) -> Any:
        return lr if self.schedule is None else lr * self.schedule.factor(down["round"])

    def clip(self, g: Tensor) -> Tensor:
        """The gradient with a norm of at most `max_norm`, as torch.nn.utils.clip_grad_norm_ clips it."""
        return g if self.max_norm is None else g * torch.clamp(self.max_norm / (g.norm() + 1e-6), max=1)


def _schedule() -> Any:
    return part(None, doc="how the learning rate changes over the rounds", none=True, of=SCHEDULE)


def _max_norm() -> Any:
    return real(None, above=0, none="not clipped", doc="the largest norm of a gradient")


@dataclass(frozen=True)
class SGD(Scheduled):
    """Stochastic gradient descent, with Polyak or Nesterov momentum, which is reset every round."""

    momentum: float = real(0.0, least=0, below=1, doc="ρ, the weight of earlier gradients")
    nesterov: bool = flag(False, doc="use Nesterov momentum")
    weight_decay: float = real(0.0, least=0, doc="L2 penalty")
    schedule: Schedule | None = _schedule()
    max_norm: float | None = _max_norm()

    def check(self) -> None:
        if self.nesterov and not self.momentum:
            raise BadParameter(
                "SGD: nesterov is True and momentum is 0. Nesterov momentum needs a momentum above 0."
            )

    def start(self, down: State) -> LocalState:
        return start(down, "v") if self.momentum else start(down)

    def step(self, current: LocalState, g: Tensor, lr: Any) -> LocalState:
        g = self.clip(g)
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
    schedule: Schedule | None = _schedule()
    max_norm: float | None = _max_norm()

    def start(self, down: State) -> LocalState:
        return start(down, "m", "v")

    def step(self, current: LocalState, g: Tensor, lr: Any) -> LocalState:
        g = self.clip(g)
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


@dataclass(frozen=True)
class AdamW(Scheduled):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, Algorithm 2), reset every round."""

    beta1: float = real(0.9, least=0, below=1, doc="β₁")
    beta2: float = real(0.999, least=0, below=1, doc="β₂")
    eps: float = real(1e-8, above=0, doc="ε, keeps the quotient finite")
    weight_decay: float = real(0.01, least=0, doc="λ, the share of the weights that a step of rate 1 removes")
    schedule: Schedule | None = _schedule()
    max_norm: float | None = _max_norm()

    def start(self, down: State) -> LocalState:
        return start(down, "m", "v")

    def step(self, current: LocalState, g: Tensor, lr: Any) -> LocalState:
        adam = Adam(self.beta1, self.beta2, self.eps)
        return adam.step(current._replace(w=current.w * (1 - lr * self.weight_decay)), self.clip(g), lr)


@dataclass(frozen=True)
class RMSprop(Scheduled):
    """RMSprop (Tieleman and Hinton 2012), with torch's order of square root and ε, reset every round."""

    alpha: float = real(0.99, least=0, below=1, doc="α, the weight of earlier squares")
    eps: float = real(1e-8, above=0, doc="ε, keeps the quotient finite")
    momentum: float = real(0.0, least=0, below=1, doc="the weight of earlier steps")
    weight_decay: float = real(0.0, least=0, doc="L2 penalty")
    schedule: Schedule | None = _schedule()
    max_norm: float | None = _max_norm()

    def start(self, down: State) -> LocalState:
        return start(down, "v", "b") if self.momentum else start(down, "v")

    def step(self, current: LocalState, g: Tensor, lr: Any) -> LocalState:
        g = self.clip(g)
        if self.weight_decay:
            g = g + self.weight_decay * current.w
        v = torch.addcmul(self.alpha * current.memory["v"], g, g, value=1 - self.alpha)
        move, memory = g / (v.sqrt() + self.eps), {"v": v}
        if self.momentum:
            move = self.momentum * current.memory["b"] + move
            memory["b"] = move
        return current._replace(w=descend(current.w, move, lr), memory=memory, steps=current.steps + 1)


@dataclass(frozen=True)
class Adagrad(Scheduled):
    """Adagrad (Duchi, Hazan and Singer 2011), reset every round."""

    eps: float = real(1e-10, above=0, doc="ε, keeps the quotient finite")
    weight_decay: float = real(0.0, least=0, doc="L2 penalty")
    schedule: Schedule | None = _schedule()
    max_norm: float | None = _max_norm()

    def start(self, down: State) -> LocalState:
        return start(down, "v")

    def step(self, current: LocalState, g: Tensor, lr: Any) -> LocalState:
        g = self.clip(g)
        if self.weight_decay:
            g = g + self.weight_decay * current.w
        v = torch.addcmul(current.memory["v"], g, g)
        return current._replace(
            w=descend(current.w, g / (v.sqrt() + self.eps), lr), memory={"v": v}, steps=current.steps + 1
        )


class OneByOne(Scheduled):
    """A step of torch.optim itself on the flat vector; such clients are not stacked.

    The optimizer's state is kept as tensors between the steps of a round, so that a step stays a pure
    function.
    """

    stacks: ClassVar[bool] = False
    has_own_rate: ClassVar[bool] = False  # whether the optimizer brings its learning rate

    @abstractmethod
    def make(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """An optimizer of the parameters."""

    def start(self, down: State) -> LocalState:
        return start(down)

    def step(self, current: LocalState, g: Tensor, lr: Any) -> LocalState:
        with torch.enable_grad():
            w = current.w.detach().clone().requires_grad_()
        optimizer = self.make([w])
        if not isinstance(optimizer, torch.optim.Optimizer) or len(optimizer.param_groups) != 1:
            raise BadParameter(
                f"optimizer: the function returns {type(optimizer).__name__}; it must return a torch.optim "
                "optimizer of the parameters that it gets, as one group."
            )
        if not self.has_own_rate:
            optimizer.param_groups[0]["lr"] = float(lr)
        if current.memory:
            optimizer.state[w] = {k: v.clone() for k, v in current.memory.items()}
        w.grad = self.clip(g)
        optimizer.step()
        memory = {k: v for k, v in optimizer.state[w].items() if isinstance(v, Tensor)}
        if len(memory) < len(optimizer.state[w]):
            raise BadParameter(
                f"optimizer: {type(optimizer).__name__} keeps more than tensors between steps. Use "
                "another one."
            )
        return current._replace(w=w.detach(), memory=memory, steps=current.steps + 1)


# those that treat every weight by itself: on a flat vector they are what they are on a model's layers
ELEMENTWISE = ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop")


@dataclass(frozen=True)
class Torch(OneByOne):
    """An optimizer of torch.optim by name, with its defaults and the algorithm's learning rate."""

    optimizer: str = choice("NAdam", ELEMENTWISE, doc="the class of torch.optim")
    weight_decay: float = real(0.0, least=0, doc="L2 penalty; not of Rprop")
    schedule: Schedule | None = _schedule()
    max_norm: float | None = _max_norm()

    def check(self) -> None:
        if self.optimizer == "Rprop" and self.weight_decay:
            raise BadParameter("Torch: weight_decay is not of Rprop. Leave it out.")

    def make(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        options = {"weight_decay": self.weight_decay} if self.weight_decay else {}
        return getattr(torch.optim, self.optimizer)(parameters, **options)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OwnOptimizer(OneByOne):
    """A function of parameters that returns an optimizer, with its own learning rate."""

    factory: Callable[[list[Tensor]], torch.optim.Optimizer]
    has_own_rate: ClassVar[bool] = True

    def make(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        return self.factory(parameters)

    def as_table(self) -> dict[str, Any]:
        """Return a table that only Python can read: the name of the function."""
        name = getattr(self.factory, "__qualname__", type(self.factory).__name__)
        return {"name": "OwnOptimizer", "factory": name}


ALL: dict[str, type[Solver]] = {
    "SGD": SGD,
    "Adam": Adam,
    "AdamW": AdamW,
    "RMSprop": RMSprop,
    "Adagrad": Adagrad,
    "Torch": Torch,
}
SOLVER = Kind("a local solver", ALL, Solver)
