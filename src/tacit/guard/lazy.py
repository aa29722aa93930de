"""Skip uploads that change little (lazy aggregation).

J. Sun, T. Chen, G. B. Giannakis, Z. Yang: "Communication-Efficient Distributed Learning via Lazily
Aggregated Quantized Gradients", NeurIPS 2019, criterion (7a), for updates, which include the learning rate,
instead of gradients. A client skips its upload if it differs from the last one by less than the model
changed recently, and the server reuses the last one.
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
    """Skip an upload if ‖new − last sent‖² ≤ ξ · mean of the model's last squared steps."""

    xi: float = real(
        0.8,
        least=0,
        doc="ξ, the largest skipped change relative to the model's own; 0 skips only repetitions",
    )
    history: int = whole(10, least=1, doc="D, the number of the model's last steps in the mean")
    most: int = whole(50, least=1, doc="t̄, the largest number of rounds in a row that a client skips")
    place: ClassVar[int] = 10
    skips: ClassVar[bool] = True

    def check_with(self, others: tuple[Stage, ...]) -> None:
        for other in others:
            if other.hides or other.placement is not None or other.place == 20:
                why = (
                    "both would keep what was not sent"
                    if other.place == 20
                    else "skipping would reveal whose update changed little"
                )
                raise refuse(
                    self,
                    f"cannot be combined with {type(other).__name__}: {why}. Leave one of them out.",
                )
            if other.stochastic or other.quantile is not None:
                raise refuse(
                    self,
                    f"lets the server reuse an upload, which {other!r} would change every time. Use "
                    "Quantize(stochastic=False), and Clip without a quantile.",
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
        skip = near & (silent >= 0) & (silent < self.most)  # −1: it has not sent an upload yet
        sent = torch.where(skip[:, None], last, vector)
        me.memory["lazy.last"] = sent.to(torch.float32)
        me.memory["lazy.silent"] = torch.where(skip, silent + 1, torch.zeros_like(silent))
        me.events["skipped"] = me.events.get("skipped", 0) + int(skip.sum())
        return sent.to(torch.float32).to(torch.float64)  # client and server keep the same float32 numbers

    def after_step(self, state: State, before: Tensor, after: Tensor) -> State:
        step = (after - before).to("cpu", torch.float64).square().sum()
        return {**state, "lazy.moved": torch.cat([step[None], state["lazy.moved"][:-1]])}
