"""Layers whose length varies lean on the past. K. Varma, Y. Zhou, N. Baracaldo, A. Anwar: "LEGATO: A
LayerwisE Gradient AggregaTiOn Algorithm for Mitigating Byzantine Attacks in Federated Learning", 2021. A
layer is as robust as its norms in the log are steady; here that is told relative to the steadiest layer, and
the log holds the mean of each round, which is all that the mean of everybody's past needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..parameters import whole
from .stack import Remembering, Total, Updates


@dataclass(frozen=True)
class Legato(Remembering):
    """A mean in which the steadiest layer is that of the round, and the others are drawn to that of the last
    rounds. Breakdown point 0, but in layers where an attack makes the lengths vary it has about 1/window of
    its effect in a round. It remembers `window` vectors, however many parties there are.
    """

    window: int = whole(10, least=2, doc="m, how many rounds the log holds")
    layers: tuple[
        int, ...
    ] = ()  # how many coordinates each layer has; filled in by the job, which knows the model

    def fitted(self, layers: tuple[int, ...]) -> Legato:
        return replace(self, layers=layers)

    def one(self, updates: Updates) -> dict[str, Tensor]:
        return updates.combined(torch.full((len(updates),), 1 / len(updates), device=updates.weights.device))

    def look(
        self, updates: Updates, who: Tensor, memory: Total, down: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], Total]:
        ways = updates.ways(down)
        shapes = {k: v[0].shape[1] for k, v in updates.moved().chunks.items()}
        cuts = [n for size in shapes.values() for n in (self.layers if sum(self.layers) == size else (size,))]
        norms = torch.stack([part.double().norm(dim=1) for part in ways.split(cuts, 1)], 1)  # [n, layers]
        now = {
            "many": ways.new_full((1,), len(ways), dtype=torch.float64),
            "first": norms.sum(0)[None],
            "second": norms.square().sum(0)[None],
            "mean": ways.mean(0)[None],
        }
        log = {k: torch.cat([memory[k], v])[-self.window :] if memory else v for k, v in now.items()}
        many, first, second = log["many"].sum(), log["first"].sum(0), log["second"].sum(0)
        vary = (
            (second / many - (first / many).square()).clamp(min=0).sqrt() / (first / many).clamp(min=1e-30)
        ).clamp(min=1e-6)  # σ over the mean
        robust = (vary.min() / vary).repeat_interleave(torch.tensor(cuts, device=vary.device)).to(ways.dtype)
        blended = robust * now["mean"][0] + (1 - robust) * log["mean"].mean(0)
        out = self.one(updates)
        for key, part in zip(shapes, blended.split(list(shapes.values()))):
            out[key] = (
                (part + down[key].reshape(-1).to(part) if key in down else part)
                .view(updates.shapes[key])
                .to(out[key].dtype)
            )
        return out, log
