"""Momentum around another rule: v ← βv + what the rule makes of the round's updates.

T.-M. H. Hsu, H. Qi, M. Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019, Section 4, whose rule is the mean. S. P. Karimireddy, L. He, M. Jaggi: "Learning from
History for Byzantine Robust Optimization", ICML 2021, on what a robust rule loses without a past.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import Kind, bad, part, real
from .mean import Mean
from .models import OfModels
from .stack import Total

MEMBERS: dict[str, type] = {}  # filled by the room, which knows them all
RULE = Kind("an aggregation rule", MEMBERS, ("start", "add", "result", "sees_each"))


@dataclass(frozen=True)
class Momentum:
    """A rule whose result is carried on from round to round. Breakdown point: that of the rule inside; what
    slips through once stays for about 1/(1 − β) rounds. It remembers one vector, and what the rule inside
    does.
    """

    rule: Any = part(Mean(), doc="what it is put around", of=RULE)
    beta: float = real(
        0.9, least=0, below=1, doc="β: how much of the last round's way is kept; 0 is the rule alone"
    )

    @property
    def sees_each(self) -> bool:
        return bool(self.rule.sees_each)

    def check(self) -> None:
        if isinstance(self.rule, OfModels | Momentum) or type(self.rule).__name__ == "Best":
            raise bad(
                "Momentum",
                "rule",
                self.rule,
                "a rule that makes an update of updates, such as Mean() or Median()",
                "Distill and Matched look at models, and Best picks one party's.",
            )

    def fitted(self, layers: tuple[int, ...]) -> Momentum:
        return replace(self, rule=self.rule.fitted(layers)) if hasattr(self.rule, "fitted") else self

    def start(self) -> Total:
        return dict(self.rule.start())

    def add(self, total: Total, weights: Tensor, vectors: dict[str, Tensor]) -> Total:
        return dict(self.rule.add(total, weights, vectors))

    def result(self, total: Total) -> dict[str, Tensor]:
        return dict(self.rule.result(total))

    def recall(
        self, total: Total, who: Tensor, memories: list[Total], down: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], list[Total]]:
        inner: list[Total] = [{k[5:]: v for k, v in m.items() if k.startswith("rule.")} for m in memories]
        mean, inner = (
            self.rule.recall(total, who, inner, down)
            if hasattr(self.rule, "recall")
            else (self.rule.result(total), inner)
        )
        sent = sorted(mean.keys() - {"buffers"})
        if sent not in (["delta"], ["w"]):
            raise BadParameter(
                "aggregate: Momentum carries on the way of a model, and in this algorithm parties send "
                f"{', '.join(sent)}. Use one that sends a "
                "model or its change alone, such as FedAvg or FedProx."
            )
        key = sent[0]
        base = down[key] if key in down else torch.zeros_like(mean[key])
        way = mean[key] - base.to(mean[key])
        v = torch.stack(
            [self.beta * m["v"].to(way) + w if "v" in m else w for m, w in zip(memories, way)]
        )  # v ← βv + Δ
        after = [{"v": mine, **{f"rule.{k}": x for k, x in theirs.items()}} for mine, theirs in zip(v, inner)]
        return {**mean, key: base.to(v) + v}, after
