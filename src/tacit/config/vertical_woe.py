"""Job files of `tacit stats woe` for parties with different columns of the same people.

[stats]                      [parties.bank]           [parties.telecom]             [parties.notary]
event = "default"            file = "bank.csv"        file = "telecom.csv"          helper = true
bins = 5                     id = "customer"          id = "phone"
                             label = "status"         categories = ["plan"]

The helper may be left out: counts are then made under homomorphic encryption. With `epsilon`, `labels` and
all columns are declared: bounds or cuts of numbers, and levels of categories, at the party that has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..parameters import bad, component, refuse
from .boost import Value
from .vertical import MatchedParty, _take, _take_categories
from .woe import WoeConfig

_FIELDS = {f.name: f for f in dataclasses.fields(WoeConfig)}


def _same(name: str) -> Any:
    """Declare an option as for parties with the same columns."""
    return dataclasses.field(default=_FIELDS[name].default, metadata=_FIELDS[name].metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerticalWoeConfig:
    """The options of binning over parties with different columns of the same people."""

    event: Value | None = _same("event")
    labels: Sequence[Value] | None = _same("labels")
    bins: int = _same("bins")
    fine: int | None = _same("fine")
    monotone: bool = _same("monotone")
    min_share: float = _same("min_share")
    min_rows: int = _same("min_rows")
    min_cell: int = _same("min_cell")
    epsilon: float | None = _same("epsilon")
    delta: float = _same("delta")

    def check(self) -> None:
        refuse(
            (
                self.epsilon is not None and self.labels is None,
                bad("stats", "labels", self.labels, "the two outcomes, with epsilon"),
            ),
            (
                self.labels is not None and len(self.labels) != 2,
                bad("stats", "labels", self.labels, "the two outcomes, like ['paid', 'default']"),
            ),
            (
                self.fine is not None and self.fine < self.bins,
                bad("stats", "fine", self.fine, f"at least bins ({self.bins})"),
            ),
        )


def first_bins(settings: Mapping[str, Any]) -> int:
    """The number of quantile bins that are merged, of plain settings."""
    names = ("bins", "fine", "monotone", "epsilon")
    return WoeConfig(label="label", **{k: settings[k] for k in names}).first_bins


@dataclasses.dataclass(frozen=True, kw_only=True)
class WoeParty(MatchedParty):
    """A party of binning over different columns."""

    label: str = component("", _take("label", str), doc="the column with the outcome, at one party")
    categories: Any = component(
        (), _take_categories, doc="columns of codes, not numbers; with epsilon their levels by column"
    )
    bounds: Any = component(
        None,
        _take("bounds", dict[str, list[float]]),
        doc="with epsilon: the range of each number without cuts, like {age = [18, 100]}",
    )
    cuts: Any = component(
        None, _take("cuts", dict[str, list[float]]), doc="with epsilon: declared cuts by column"
    )
