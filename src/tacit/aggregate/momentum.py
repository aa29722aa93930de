"""Server momentum on top of another rule: v ← βv + the rule's result.

T.-M. H. Hsu, H. Qi, M. Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019, Section 4, whose rule is the mean. S. P. Karimireddy, L. He, M. Jaggi: "Learning from
History for Byzantine Robust Optimization", ICML 2021, on why a robust rule needs a history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import Kind, bad, part, real
from .best import Best
from .mean import Mean
from .rule import Rule, State, Total

MEMBERS: dict[str, type] = {}  # filled by the package, which imports every rule
RULE = Kind("an aggregation rule", MEMBERS, Rule)


@dataclass(frozen=True)
class Momentum(Rule):
    """A rule whose result is accumulated from round to round.

    Breakdown point: that of the inner rule. An attack that passes once has an effect for about 1/(1 − β)
    rounds. The memory is one vector and that of the inner rule.
    """

    rule: Rule = part(Mean(), doc="the inner rule", of=RULE)
    beta: float = real(
        0.9, least=0, below=1, doc="β, the weight of earlier rounds; 0 is the inner rule alone"
    )
    remembers = True

    @property
    def sees_each(self) -> bool:  # type: ignore[override]
        return self.rule.sees_each

    def check(self) -> None:
        if self.rule.works_on_models or isinstance(self.rule, Momentum | Best):
            raise bad(
                "Momentum",
                "rule",
                self.rule,
                "a rule that combines updates into an update, such as Mean() or Median()",
                "Distill and Matched work on models, and Best selects one party's.",
            )

    def check_parties(self, counts: Iterable[int]) -> None:
        self.rule.check_parties(counts)

    def check_uploads(self, shapes: Mapping[str, tuple[int, ...]], model: tuple[int, ...]) -> None:
        keys = sorted(shapes.keys() - {"buffers"})
        if keys not in (["delta"], ["w"]):
            raise BadParameter(
                "aggregate: Momentum works on models or their changes, but with this algorithm parties send "
                f"{', '.join(keys)}. Use an algorithm that sends only a model or its change, such as FedAvg "
                "or FedProx."
            )

    def with_layers(self, layers: tuple[int, ...]) -> Momentum:
        return replace(self, rule=self.rule.with_layers(layers))

    def start(self) -> Total:
        return dict(self.rule.start())

    def add(self, total: Total, weights: Tensor, vectors: State) -> Total:
        return dict(self.rule.add(total, weights, vectors))

    def result(self, total: Total) -> State:
        return dict(self.rule.result(total))

    def result_with_memory(
        self, total: Total, parties: Tensor, memories: list[Total], down: State
    ) -> tuple[State, list[Total]]:
        inner: list[Total] = [{k[5:]: v for k, v in m.items() if k.startswith("rule.")} for m in memories]
        mean, inner = self.rule.result_with_memory(total, parties, inner, down)
        self.check_uploads({k: tuple(v.shape[1:]) for k, v in mean.items()}, ())
        (key,) = mean.keys() - {"buffers"}
        base = down[key] if key in down else torch.zeros_like(mean[key])
        delta = mean[key] - base.to(mean[key])
        v = torch.stack(
            [self.beta * m["v"].to(delta) + d if "v" in m else d for m, d in zip(memories, delta)]
        )  # v ← βv + Δ
        after = [{"v": own, **{f"rule.{k}": x for k, x in rest.items()}} for own, rest in zip(v, inner)]
        return {**mean, key: base.to(v) + v}, after
