"""The weighted mean: the only rule that works on masked updates, because it needs only sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..parameters import flag
from .rule import Rule, State, Total


@dataclass(frozen=True)
class Mean(Rule):
    """Σ weight·vector / Σ weight, as two running sums: memory does not grow with the cohort.

    Breakdown point 0: one unbounded update moves the mean anywhere.
    """

    weighted: bool = flag(
        True, doc="use the weights that the algorithm gives the parties (else equal weights)"
    )
    sees_each: ClassVar[bool] = False

    def add(self, total: Total, weights: Tensor, vectors: State) -> Total:
        weights = weights if self.weighted else (weights != 0).to(weights.dtype)
        new = {
            "": weights.sum(1),
            **{
                k: _sums(weights, v.reshape(len(v), -1)).view(len(weights), *v.shape[1:])
                for k, v in vectors.items()
            },
        }
        return {k: total[k] + v for k, v in new.items()} if total else new

    def result(self, total: Total) -> State:
        return {k: v / total[""].view(-1, *[1] * (v.dim() - 1)) for k, v in total.items() if k}


def _sums(weights: Tensor, vectors: Tensor) -> Tensor:
    if len(weights) == 1:
        return weights @ vectors
    counted = weights != 0
    if vectors.device.type == "cpu" and not (counted.sum(0) > 1).any():
        # A client belongs to one run, so R·S products for each parameter would nearly all be with 0. On a GPU
        # they are cheap, and index_add would add in any order.
        at = counted.any(0)
        run = counted.to(torch.int8).argmax(0)[at]
        scaled = vectors[at] * weights.sum(0)[at, None]
        return vectors.new_zeros(len(weights), vectors.shape[1]).index_add_(0, run, scaled)
    # 0·NaN is NaN: exclude the clients of a run that diverged from the other runs' sums, and mark its own sum
    diverged = ~torch.isfinite(vectors).all(1)
    out = weights @ vectors.masked_fill(diverged[:, None], 0)
    return out.masked_fill(((weights != 0) & diverged).any(1)[:, None], torch.nan)


def combine(uploads: list[tuple[float, State]], rule: Rule) -> State:
    """Aggregate uploads that arrived one by one, as the server of a deployment receives them."""
    return {k: v[0] for k, v in rule.result(_total(uploads, rule)).items()}


def combine_with_memory(
    uploads: list[tuple[float, State]], rule: Rule, parties: list[int], memory: Total, down: State
) -> tuple[State, Total]:
    """`combine` for a rule that may remember earlier rounds; `parties` are the indices of the senders."""
    mean, (after,) = rule.result_with_memory(
        _total(uploads, rule), torch.tensor(parties), [memory], {k: v[None] for k, v in down.items()}
    )
    return {k: v[0] for k, v in mean.items()}, after


def _total(uploads: list[tuple[float, State]], rule: Rule) -> Total:
    total = rule.start()
    for weight, vectors in uploads:
        weights = torch.tensor([[weight]], device=next(iter(vectors.values())).device)
        total = rule.add(total, weights, {k: v[None] for k, v in vectors.items()})
    return total
