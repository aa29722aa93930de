"""The options of boosted trees over a join whose membership stays shared: `.boost(…)` of `tacit.join`, and
questions with what = "boost" in [join].
"""

from __future__ import annotations

import dataclasses

from ..parameters import choice, real, whole

OBJECTIVES = ("binary", "regression")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinBoostConfig:
    """The options of boosted trees on a join that stays shared."""

    objective: str = choice("binary", OBJECTIVES, doc="loss of the label")
    trees: int = whole(20, least=1, most=500, doc="rounds; messages grow with them")
    depth: int = whole(3, least=1, most=6, doc="depth of each tree; messages double with each level")
    learning_rate: float = real(
        0.3, above=0, most=1, doc="η: by how much each tree corrects the earlier ones"
    )
    l2: float = real(1.0, least=0.01, most=1e4, doc="λ: penalty of squared leaf values")
    gamma: float = real(0.0, least=0, doc="γ: smallest gain of a split")
    min_child_weight: float = real(1.0, least=0, most=1e5, doc="smallest sum of Hessians of a leaf")
    min_rows: int = whole(
        20, least=3, doc="fewest people in a leaf, at least the join's minimum; smaller bins are merged"
    )
    bins: int = whole(15, least=2, most=255, doc="most bins of a column; messages grow with them")


JOIN_BOOST_OPTIONS = {f.name: f for f in dataclasses.fields(JoinBoostConfig)}
