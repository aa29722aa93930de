"""Say nothing when there is nothing new.

J. Sun, T. Chen, G. B. Giannakis, Z. Yang: "Communication-Efficient Distributed Learning via Lazily Aggregated
Quantized Gradients", NeurIPS 2019, criterion (7a), on updates in place of gradients, so that the learning
rate is already in them: a client whose update differs from the last one it sent by less than the model moved
lately keeps silent, and the server takes the last one again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..parameters import real, whole
from .stage import Clients, Form, Stage, State, needs, refuse


@dataclass(frozen=True)
class Lazy(Stage):
    """Skip an upload that would change little: ‖new − last sent‖² ≤ ξ · mean of the model's last squared
    steps.
    """

    xi: float = real(
        0.8,
        least=0,
        doc="ξ, how much of the model's own movement a skipped change may have; 0 skips nothing but "
        "repetitions",
    )
    history: int = whole(10, least=1, doc="D, over how many of the model's last steps the mean is taken")
    most: int = whole(50, least=1, doc="t̄, a client speaks at the latest after so many silent rounds")
    place: ClassVar[int] = 10
    skips: ClassVar[bool] = True

    def beside(self, others: tuple[Stage, ...]) -> None:
        for other in others:
            if other.hides or other.placement is not None or other.place == 20:
                why = (
                    "and both would keep what was not sent"
                    if other.place == 20
                    else "and its silence would show who changed little"
                )
                raise refuse(
                    self,
                    f"skips uploads by what they hold, {why}, so it does not go with "
                    f"{type(other).__name__}. Leave one of them out.",
                )
            if other.stochastic or other.quantile is not None:
                raise refuse(
                    self,
                    f"has the server take an upload again, which {other!r} would make anew every time. Use "
                    "Quantize(stochastic=False), and Clip "
                    "without a quantile.",
                )

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "real")
        return form

    def server_state(self, form: Form) -> State:
        return {"lazy.moved": torch.zeros(self.history, dtype=torch.float64)}

    def client_state(self, form: Form) -> State:
        return {"lazy.last": torch.zeros(form.dimension), "lazy.silent": torch.full((), -1.0)}

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        last, silent = me.memory["lazy.last"].to(torch.float64), me.memory["lazy.silent"]
        near = (vector - last).square().sum(1) <= self.xi * me.state["lazy.moved"].mean()
        skip = near & (silent >= 0) & (silent < self.most)  # −1: it never spoke
        sent = torch.where(skip[:, None], last, vector)
        me.memory["lazy.last"] = sent.to(torch.float32)
        me.memory["lazy.silent"] = torch.where(skip, silent + 1, torch.zeros_like(silent))
        me.events["skipped"] = me.events.get("skipped", 0) + int(skip.sum())
        return sent.to(torch.float32).to(
            torch.float64
        )  # what is sent, and sent again, is the number that both keep

    def moved(self, state: State, before: Tensor, after: Tensor) -> State:
        step = (after - before).to("cpu", torch.float64).square().sum()
        return {**state, "lazy.moved": torch.cat([step[None], state["lazy.moved"][:-1]])}
