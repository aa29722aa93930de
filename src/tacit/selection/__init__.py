"""Selection rules: which parties take part in a round.

    tacit.train(…, per_round=10, select=selection.PowerOfChoice(candidates=30))

Without `select`, `per_round` parties are drawn uniformly.
"""

from ..parameters import Kind
from .rule import LossesNeeded, PartyInfo, SelectionRule, select
from .rules import Available, BySize, Fast, PowerOfChoice

ALL: dict[str, type[SelectionRule]] = {
    "BySize": BySize,
    "PowerOfChoice": PowerOfChoice,
    "Available": Available,
    "Fast": Fast,
}
SELECTION = Kind("a selection rule", ALL, SelectionRule)

__all__ = [
    "ALL",
    "SELECTION",
    "Available",
    "BySize",
    "Fast",
    "LossesNeeded",
    "PartyInfo",
    "PowerOfChoice",
    "SelectionRule",
    "select",
]
