"""LEGATO: layers with varying norms are averaged with earlier rounds.

K. Varma, Y. Zhou, N. Baracaldo, A. Anwar: "LEGATO: A LayerwisE Gradient AggregaTiOn Algorithm for
Mitigating Byzantine Attacks in Federated Learning", 2021. The robustness of a layer is the stability of its
norms in the log; here it is relative to the most stable layer, and the log holds the mean of each round,
which suffices for the mean of all parties over the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..parameters import whole
from .rule import State, Total
from .stack import Updates, WithMemory


@dataclass(frozen=True)
class Legato(WithMemory):
    """A mean in which layers with unstable norms are averaged with those of the last rounds.

    Breakdown point 0, but in a layer whose norms vary under an attack, the attack has about 1/window of its
    effect in a round. The memory is `window` vectors, for any number of parties.
    """

    window: int = whole(10, least=2, doc="m, the number of rounds in the log")
    layers: tuple[int, ...] = ()  # parameters of each layer; set by the job, which knows the model

    def with_layers(self, layers: tuple[int, ...]) -> Legato:
        return replace(self, layers=layers)

    def aggregate(self, updates: Updates) -> State:
        return updates.weighted_sum(torch.full_like(updates.weights, 1 / len(updates), dtype=torch.float32))

    def aggregate_with_memory(
        self, updates: Updates, parties: Tensor, memory: Total, down: State
    ) -> tuple[State, Total]:
        x = updates.displacements(down)
        sizes = {k: v[0].shape[1] for k, v in updates.without_buffers().chunks.items()}
        widths = [
            n for size in sizes.values() for n in (self.layers if sum(self.layers) == size else (size,))
        ]
        norms = torch.stack(
            [part.double().norm(dim=1) for part in torch.split(x, widths, 1)], 1
        )  # [n, layers]
        now = {
            "many": x.new_full((1,), len(x), dtype=torch.float64),
            "first": norms.sum(0)[None],
            "second": norms.square().sum(0)[None],
            "mean": x.mean(0)[None],
        }
        log = {k: torch.cat([memory[k], v])[-self.window :] if memory else v for k, v in now.items()}
        many, first, second = log["many"].sum(), log["first"].sum(0), log["second"].sum(0)
        variation = (
            (second / many - (first / many).square()).clamp(min=0).sqrt() / (first / many).clamp(min=1e-30)
        ).clamp(min=1e-6)  # σ over the mean
        robust = (
            (variation.min() / variation)
            .repeat_interleave(torch.tensor(widths, device=variation.device))
            .to(x.dtype)
        )
        blended = robust * now["mean"][0] + (1 - robust) * log["mean"].mean(0)
        out = self.aggregate(updates)
        for key, part in zip(sizes, torch.split(blended, list(sizes.values()))):
            out[key] = (
                (part + down[key].reshape(-1).to(part) if key in down else part)
                .view(updates.shapes[key])
                .to(out[key].dtype)
            )
        return out, log
