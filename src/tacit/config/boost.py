"""The options of `tacit.boost.train`, declared once, and the [boost] table of job files.

[boost]
label = "disease"
trees = 100
depth = 6
categories = { sex = ["f", "m"] }       or a list of columns, whose levels are found by a sum
[data], [sums], [parties]               as in `tacit stats`
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import BadParameter
from ..parameters import bad, choice, component, hold_to_type, real, refuse, whole

OBJECTIVES = ("binary", "multiclass", "regression", "poisson")
MOST_DEPTH = 12  # a tree's nodes are numbered by 15 bits
LEAVES = 31  # of a tree grown best-first, unless given


Objective = str | Callable[..., Any]  # a function (margin, y) → (gradient, Hessian)
Value = str | int | float | bool  # of a cell: a class, or a level
Categories = Sequence[str] | Mapping[str, Sequence[Value]]
Cuts = Mapping[str, Sequence[float]]
Weights = Mapping[str, float] | str


def typed(default: Any, name: str, hint: Any, takes: str, doc: str) -> Any:
    """Declare an option of a job file by its type; `check` holds arguments to the rest."""

    def take(value: Any, where: str) -> Any:
        return hold_to_type(where, name, value, hint)

    return component(default, take, takes=takes, doc=doc, name=name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoostConfig:
    """The options of boosted trees over parties with the same columns."""

    label: str = typed("", "label", str, "str", "the column that is predicted")
    objective: Objective = typed(
        "binary",
        "objective",
        str,
        "str | Callable",
        "'binary', 'multiclass', 'regression', 'poisson', or in simulation a function (margin, y) → "
        "(gradient, Hessian)",
    )
    features: Sequence[str] | None = typed(
        None, "features", list[str] | None, "list[str] | None", "columns used; None: all but the label"
    )
    categories: Categories | None = typed(
        None,
        "categories",
        list[str] | dict[str, list[Value]] | None,
        "list[str] | dict[str, list] | None",
        "columns that are categories, or their levels by column; None: columns that are not numeric",
    )
    missing_codes: Mapping[str, Sequence[Value]] | None = typed(
        None,
        "missing_codes",
        dict[str, list[Value]] | None,
        "dict[str, list] | None",
        "by column, the codes that mean \"missing\", like {'age': [-9999]}; the model keeps them",
    )
    labels: Sequence[Value] | None = typed(
        None,
        "labels",
        list[Value] | None,
        "list | None",
        "the classes in order; None: they are found by a sum",
    )
    trees: int = whole(
        100, least=1, most=10_000, doc="rounds; with several classes, each has a tree for each"
    )
    depth: int = whole(6, least=0, most=MOST_DEPTH, doc="largest depth of a tree; 0 with grow='leaf': any")
    grow: str = choice("level", ("level", "leaf"), doc="'leaf' splits the leaf with the largest gain first")
    leaves: int | None = whole(
        None, least=2, most=4096, none="31 with grow='leaf'", doc="most leaves of a tree"
    )
    learning_rate: float = real(
        0.3, above=0, most=1, doc="η: by how much each tree corrects the earlier ones"
    )
    l2: float = real(1.0, least=0, doc="λ: penalty of squared leaf values")
    l1: float = real(0.0, least=0, doc="α: penalty of absolute leaf values")
    gamma: float = real(0.0, least=0, doc="γ: smallest gain of a split")
    min_child_weight: float = real(1.0, least=0, doc="smallest sum of Hessians of a leaf")
    min_rows: int = whole(1, least=1, doc="fewest rows, over all parties, in a leaf and in a bin of a number")
    max_delta_step: float = real(0.0, least=0, doc="largest leaf value before η; 0: any (0.7 for 'poisson')")
    bins: int = whole(255, least=2, most=255, doc="most bins of a number")
    cuts: Cuts | None = typed(
        None,
        "cuts",
        dict[str, list[float]] | None,
        "dict[str, list[float]] | None",
        "declared cuts by column; None: quantiles",
    )
    subsample: float = real(1.0, above=0, most=1, doc="share of rows in each round")
    colsample_bytree: float = real(1.0, above=0, most=1, doc="share of columns in each round")
    colsample_bylevel: float = real(1.0, above=0, most=1, doc="share of those columns at each depth")
    colsample_bynode: float = real(1.0, above=0, most=1, doc="share of those columns at each node")
    monotone: Mapping[str, int] | None = typed(
        None,
        "monotone",
        dict[str, int] | None,
        "dict[str, int] | None",
        "1: rising in this column, -1: falling",
    )
    class_weight: Weights | None = typed(
        None,
        "class_weight",
        dict[str, float] | str | None,
        "dict[str, float] | str | None",
        "weights by class, or 'balanced'",
    )
    held_out: float | None = real(
        None,
        above=0,
        below=1,
        none="0.2 with early_stopping, else no rows",
        doc="share of each party's rows that no tree sees, for the loss after each round",
    )
    early_stopping: int | None = whole(
        None, least=1, none="never", doc="stop after this many rounds without a smaller loss of held-out rows"
    )
    min_party_rows: int = whole(
        1,
        least=1,
        doc="a party adds to a node's histogram only if it has this many rows in it and in its sibling, or "
        "none; above 1, trees are no longer exactly those of the pooled rows",
    )
    min_level_rows: int = whole(
        2,
        least=1,
        doc="a level of a category, or a class, that is not declared is found if a party has this many rows "
        "of it; all others are one level",
    )
    epsilon: float | None = real(None, above=0, none="no noise", doc="ε of each row, for the whole model")
    delta: float = real(1e-6, above=0, below=1, doc="δ of each row")
    bounds: Mapping[str, Sequence[float]] | None = typed(
        None,
        "bounds",
        dict[str, list[float]] | None,
        "dict[str, tuple[float, float]] | None",
        "declared range of each number, with epsilon",
    )
    seed: int = whole(0, least=0, doc="seed of held-out rows, and of sampled rows and columns")

    def check(self) -> None:
        """Raise BadParameter for values that their declarations cannot describe, all at once."""
        owner = "boost.train"
        is_class = self.objective in ("binary", "multiclass")
        leaf_only = self.leaves is not None and self.grow == "level"
        refuse(
            (
                not isinstance(self.label, str) or not self.label,
                bad(owner, "label", self.label, "the name of the column that is predicted"),
            ),
            (
                not callable(self.objective) and self.objective not in OBJECTIVES,
                bad(owner, "objective", self.objective, "one of " + ", ".join(map(repr, OBJECTIVES))),
            ),
            (leaf_only, bad(owner, "leaves", self.leaves, "None with grow='level'", "Use grow='leaf'.")),
            (
                self.depth == 0 and self.grow == "level",
                bad(owner, "depth", 0, "at least 1 with grow='level'"),
            ),
            *check_columns(owner, self.label, self.features, self.categories),
            (
                self.labels is not None
                and (not isinstance(self.labels, list | tuple) or len(self.labels) < 2),
                bad(owner, "labels", self.labels, "the classes in order, like ['no', 'yes']"),
            ),
            (
                self.labels is not None and not is_class,
                bad(owner, "labels", self.labels, f"None with objective={self.objective!r}"),
            ),
            (
                self.cuts is not None and not _has_numbers(self.cuts),
                bad(owner, "cuts", self.cuts, "ascending numbers by column, like {'age': [40, 60]}"),
            ),
            (
                self.monotone is not None
                and not (isinstance(self.monotone, Mapping) and set(self.monotone.values()) <= {-1, 0, 1}),
                bad(owner, "monotone", self.monotone, "-1, 0 or 1 by column"),
            ),
            (
                self.class_weight is not None and not _is_weights(self.class_weight),
                bad(owner, "class_weight", self.class_weight, "'balanced', or numbers above 0 by class"),
            ),
            (
                self.class_weight is not None and not is_class,
                bad(owner, "class_weight", self.class_weight, f"None with objective={self.objective!r}"),
            ),
            (
                self.bounds is not None and self.epsilon is None,
                bad(owner, "bounds", self.bounds, "None without epsilon: bins come from quantiles"),
            ),
        )


def check_columns(
    owner: str, label: str, features: Sequence[str] | None, categories: Categories | None
) -> list[tuple[bool, BadParameter]]:
    """Return what may be wrong with the declared columns, for `refuse`."""
    return [
        (
            features is not None and not _is_names(features),
            bad(owner, "features", features, "a list of column names"),
        ),
        (
            features is not None and _is_names(features) and label in features,
            bad(owner, "features", features, f"columns without the label {label!r}"),
        ),
        (
            categories is not None and not _is_names(categories) and not _has_lists(categories),
            bad(owner, "categories", categories, "columns, or levels like {'sex': ['f', 'm']}"),
        ),
    ]


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)


def _has_lists(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(v, list | tuple) and len(v) for v in value.values())


def _has_numbers(value: Any) -> bool:
    return _has_lists(value) and all(
        all(isinstance(x, int | float) and math.isfinite(x) for x in v) and list(v) == sorted(set(v))
        for v in value.values()
    )


def _is_weights(value: Any) -> bool:
    return value == "balanced" or (
        isinstance(value, Mapping)
        and all(isinstance(w, int | float) and 0 < w < math.inf for w in value.values())
    )


BOOST_OPTIONS = {f.name: f for f in dataclasses.fields(BoostConfig)}
