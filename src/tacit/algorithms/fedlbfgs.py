"""L-BFGS at the server. D. C. Liu, J. Nocedal: "On the limited memory BFGS method for large scale
optimization", Mathematical Programming 45, 1989, Algorithm 2.1, with the gradients of FedSGD.

Every client sends the gradient over all its rows, as in FedSGD, so their mean is the gradient of the pooled
rows whatever the sizes and skews of the parties. The paper's line search would need losses, a message more in
each round; instead a step is at most `max_step` long, and the secant pair of a step that was too long
corrects the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import real, whole
from .fedsgd import FedSGD
from .types import State

# A pair with less curvature than this, relative to the step, is rounding: the next step would be too long.
FLAT = 1e-7


@dataclass(frozen=True)
class FedLBFGS(FedSGD):
    """The server combines the gradients of all clients to quasi-Newton steps.

    For linear models: after some twenty rounds the model is the optimum of the pooled rows. Everyone should
    take part in every round, because a pair of gradients of different parties is no curvature.
    """

    is_own_baseline = True
    lr: float = real(1.0, above=0, doc="η, the length of the first step per unit of gradient; later 1")
    memory: int = whole(10, least=1, doc="m, the number of secant pairs")
    max_step: float = real(5.0, above=0, doc="the largest norm of a step")

    def server_state(self, w: Tensor) -> State:
        pairs = w.new_zeros(self.memory, len(w))
        return {
            "steps": pairs,
            "changes": pairs.clone(),
            "last_w": w.clone(),
            "last_g": torch.zeros_like(w),
            "count": w.new_zeros(()),
        }

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        g = mean["g"]
        s, y = w - state["last_w"], g - state["last_g"]
        # line 5 of step 5: keep the last m pairs; one that shows no curvature is left out
        keeps = (state["count"] > 0) & (s @ y > FLAT * (s @ s))
        all_s, all_y = (
            torch.where(keeps, torch.cat([old[1:], new[None]]), old)
            for old, new in ((state["steps"], s), (state["changes"], y))
        )
        step = -self._times_inverse_hessian(g, all_s, all_y)
        step = step * (self.max_step / step.norm().clamp(min=1e-30)).clamp(max=1.0)
        return w + step, {
            "steps": all_s,
            "changes": all_y,
            "last_w": w,
            "last_g": g,
            "count": state["count"] + 1,
        }

    def _times_inverse_hessian(self, g: Tensor, s: Tensor, y: Tensor) -> Tensor:
        """H·g by the two-loop recursion (J. Nocedal 1980); pairs of zeros change nothing."""
        products = (s * y).sum(1)
        rho = torch.where(products > 0, 1 / torch.where(products > 0, products, 1.0), 0.0)
        q, alphas = g, []
        for i in reversed(range(self.memory)):
            alphas.append(rho[i] * (s[i] @ q))
            q = q - alphas[-1] * y[i]
        newest = y[-1] @ y[-1]
        q = q * torch.where(newest > 0, products[-1] / torch.where(newest > 0, newest, 1.0), self.lr)
        for i, alpha in zip(range(self.memory), reversed(alphas)):
            q = q + s[i] * (alpha - rho[i] * (y[i] @ q))
        return q
