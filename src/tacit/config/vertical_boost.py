"""The options of `tacit.boost.train` for parties with different columns, and job files of `tacit boost`.

[boost]                      [parties.bank]           [parties.telecom]        [parties.notary]
trees = 20                   file = "bank.csv"        file = "telecom.csv"     helper = true
depth = 4                    id = "customer"          id = "phone"
                             label = "default"

The helper may be left out: trees are then grown with homomorphic encryption (backend = "he").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..parameters import bad, choice, component, refuse, whole
from .boost import OBJECTIVES, BoostConfig, Weights
from .vertical import MatchedParty, _take

REVEALS = ("sums", "splits")
BACKENDS = ("shares", "he")
MOST_DEPTH = 8  # a tree asks for 2^(depth − 1) sums over all rows

_FIELDS = {f.name: f for f in dataclasses.fields(BoostConfig)}


def _same(name: str) -> Any:
    """Declare an option as for parties with the same columns."""
    return dataclasses.field(default=_FIELDS[name].default, metadata=_FIELDS[name].metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerticalBoostConfig:
    """The options of boosted trees over parties with different columns of the same people."""

    objective: str = choice("binary", OBJECTIVES, doc="loss of the label")
    trees: int = _same("trees")
    depth: int = whole(6, least=1, most=MOST_DEPTH, doc="largest depth of a tree")
    learning_rate: float = _same("learning_rate")
    l2: float = _same("l2")
    l1: float = _same("l1")
    gamma: float = _same("gamma")
    min_child_weight: float = _same("min_child_weight")
    min_rows: int = whole(20, least=1, doc="fewest rows in a leaf; smaller bins and levels are merged")
    max_delta_step: float = _same("max_delta_step")
    bins: int = whole(32, least=2, most=255, doc="most bins of a number; messages grow with them")
    subsample: float = _same("subsample")
    colsample_bytree: float = _same("colsample_bytree")
    class_weight: Weights | None = _same("class_weight")
    held_out: float | None = _same("held_out")
    early_stopping: int | None = _same("early_stopping")
    reveal: str = choice(
        "sums",
        REVEALS,
        doc="what the label holder learns of others: sums of gradients over anonymous bins; or only each "
        "party's best gain, with the sums at the helper",
    )
    backend: str = choice(
        "auto",
        ("auto", *BACKENDS),
        doc="'shares': secret shares, with a helper; 'he': homomorphic encryption, without one; 'auto': the "
        "cheaper one, 'he' without a helper, 'shares' with reveal='splits'",
    )
    seed: int = _same("seed")

    def check(self) -> None:
        is_class = self.objective in ("binary", "multiclass")
        refuse(
            (
                self.backend == "he" and self.reveal == "splits",
                bad(
                    "boost.train",
                    "reveal",
                    self.reveal,
                    "'sums' with backend='he'",
                    "Only a helper can search splits for the label holder: use backend='shares'.",
                ),
            ),
            (
                self.class_weight is not None and not is_class,
                bad(
                    "boost.train",
                    "class_weight",
                    self.class_weight,
                    f"None with objective={self.objective!r}",
                ),
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoostParty(MatchedParty):
    """A party of boosted trees over different columns."""

    label: str = component("", _take("label", str), doc="the column to predict, at one party")
    categories: Sequence[str] = component(
        (), _take("categories", list[str]), doc="columns of codes, not numbers"
    )


VERTICAL_BOOST_OPTIONS = {f.name: f for f in dataclasses.fields(VerticalBoostConfig)}
