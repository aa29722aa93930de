"""The weighted mean. Breakdown point 0: one unbounded update moves it anywhere. It needs only sums, so it
works on masked updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..parameters import flag


@dataclass(frozen=True)
class Mean:
    """Σ weight·vector / Σ weight, kept as two running sums: memory does not grow with the cohort. Uniform:
    every weight counts as one.
    """

    weighted: bool = flag(True, doc="by the weights the algorithm gives its parties (else all alike)")
    sees_each: ClassVar[bool] = False  # secure aggregation may hide the single updates from it

    def start(self) -> dict[str, Tensor]:
        return {}

    def add(self, total: dict[str, Tensor], weights: Tensor, vectors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Fold a stack of updates [S, …] with weights [R, S] into R totals: row r of `weights` is zero for
        the clients of other runs.
        """
        weights = weights if self.weighted else (weights != 0).to(weights.dtype)
        new = {
            "": weights.sum(1),
            **{
                k: _sums(weights, v.reshape(len(v), -1)).view(len(weights), *v.shape[1:])
                for k, v in vectors.items()
            },
        }
        return {k: total[k] + v for k, v in new.items()} if total else new

    def result(self, total: dict[str, Tensor]) -> dict[str, Tensor]:
        weight = total[""]
        return {k: v / weight.view(-1, *[1] * (v.dim() - 1)) for k, v in total.items() if k}


def _sums(weights: Tensor, vectors: Tensor) -> Tensor:
    if len(weights) == 1:
        return weights @ vectors
    # 0·NaN is NaN, and a run that diverged must not spoil its neighbours: leave its clients out, and mark its
    # own sum
    lost = ~torch.isfinite(vectors).all(1)
    out = weights @ vectors.masked_fill(lost[:, None], 0)
    return out.masked_fill(((weights != 0) & lost).any(1)[:, None], torch.nan)


def combine(uploads: list[tuple[float, dict[str, Tensor]]], rule: Any) -> dict[str, Tensor]:
    """The same for uploads that came one by one, as a server of real parties has them."""
    return {k: v[0] for k, v in rule.result(_added(uploads, rule)).items()}


def recalled(
    uploads: list[tuple[float, dict[str, Tensor]]],
    rule: Any,
    who: list[int],
    memory: dict[str, Tensor],
    down: dict[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """`combine`, and what a rule that looks at earlier rounds remembers after it; `who` are the numbers of
    the parties that sent the uploads.
    """
    if not hasattr(rule, "recall"):
        return combine(uploads, rule), memory
    mean, (after,) = rule.recall(
        _added(uploads, rule), torch.tensor(who), [memory], {k: v[None] for k, v in down.items()}
    )
    return {k: v[0] for k, v in mean.items()}, after


def _added(uploads: list[tuple[float, dict[str, Tensor]]], rule: Any) -> Any:
    total = rule.start()
    for weight, vectors in uploads:
        counts = torch.tensor([[weight]], device=next(iter(vectors.values())).device)
        total = rule.add(total, counts, {k: v[None] for k, v in vectors.items()})
    return total
