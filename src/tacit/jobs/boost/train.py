"""`tacit.boost.train`: boosted trees over parties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...boost.model import Booster
from ...boost.result import BoostResult
from ...boost.xgboost_json import load as read_booster
from ...config.boost import BOOST_OPTIONS, BoostConfig
from ...config.signature import with_options
from ...config.vertical_boost import VERTICAL_BOOST_OPTIONS
from ...parameters import bad, check
from ..vertical.boost import train_vertical
from ..vertical.boost_result import VerticalBoostResult
from ..vertical.boost_rows import is_vertical
from .horizontal import train_horizontal

ONLY_VERTICAL = {k: f for k, f in VERTICAL_BOOST_OPTIONS.items() if k not in BOOST_OPTIONS}


# of XGBoost, LightGBM and scikit-learn
ELSEWHERE = {
    **dict.fromkeys(("n_estimators", "num_boost_round", "num_round", "max_iter", "rounds"), "trees"),
    **dict.fromkeys(("max_depth",), "depth"),
    **dict.fromkeys(("eta", "lr"), "learning_rate"),
    **dict.fromkeys(("reg_lambda", "l2_regularization"), "l2"),
    **dict.fromkeys(("reg_alpha", "alpha"), "l1"),
    **dict.fromkeys(("max_bin", "max_bins"), "bins"),
    **dict.fromkeys(("max_leaves", "num_leaves", "max_leaf_nodes"), "leaves"),
    **dict.fromkeys(("grow_policy",), "grow"),
    **dict.fromkeys(("min_split_loss",), "gamma"),
    **dict.fromkeys(("min_data_in_leaf", "min_child_samples", "min_samples_leaf"), "min_rows"),
    **dict.fromkeys(("early_stopping_rounds", "n_iter_no_change"), "early_stopping"),
    **dict.fromkeys(("monotone_constraints", "monotonic_cst"), "monotone"),
    **dict.fromkeys(("scale_pos_weight",), "class_weight"),
    **dict.fromkeys(("categorical_feature", "categorical_features"), "categories"),
    **dict.fromkeys(("target",), "label"),
}


@with_options({**BOOST_OPTIONS, **ONLY_VERTICAL}, ELSEWHERE)
def train(
    fed: Any,
    *,
    on: str | None = None,
    runtime: Any = "cohort",
    guard: Any = None,
    directory: str | Path | None = None,
    **options: Any,
) -> BoostResult | VerticalBoostResult:
    """Train gradient-boosted trees on the rows of all parties; only sums over all of them are opened.

    `fed` is {party: DataFrame} with the same columns, and `label` names one of them; or a federation made
    from tables, which has its label, and whose training rows are used. The trees are those of the pooled
    rows. `runtime` is "cohort" (simulation), "masked" (simulation in which masks are executed, and messages
    are not), "inprocess" or "processes" (real secure sums), `guard` a `tacit.guard.SecAgg(…)`; without one,
    every sum is over all parties.

    With `epsilon`, the structure of trees is drawn at random and their leaves have noise.

    Vertical parties have different columns of the same people: {party: DataFrame} with the id column `on` and
    the label's column at one of them, tables of `data.from_frame(…, id=…)`, or a `Vertical`, as for
    `tacit.splitnn`. They are aligned by private set intersection, and trees are grown on secret shares with a
    helper. Defaults are bins=32 and min_rows=20; each party keeps its own splits. `reveal`: "sums" shows the
    label holder sums of gradients over anonymous bins, "splits" only each party's best gain. Options that
    they do not have are refused. `runtime` is "inprocess" (also for "cohort") or "processes". With
    `directory`, each party keeps there what it needs to resume, and at the end its part, as `save` writes it:
    the same call after a kill goes on with the same trees.
    """
    if is_vertical(fed, on):
        return train_vertical(fed, options, on, runtime, guard, directory)
    if directory is not None:
        raise bad("boost.train", "directory", directory, "None for parties with the same columns")
    given = [name for name in ONLY_VERTICAL if name in options]
    if given:
        raise bad("boost.train", given[0], options[given[0]], "left out for parties with the same columns")
    return train_horizontal(fed, options, runtime, guard)


def load(path: str | Path) -> Booster | VerticalBoostResult:
    """Read a model that `save` wrote: the file of a booster, or the folder with the parts of all parties."""
    return VerticalBoostResult.load(path) if Path(path).is_dir() else read_booster(path)


def read_options(options: dict[str, Any], label: str = "") -> BoostConfig:
    """Return the checked options; `label` is that of a federation."""
    return check(BoostConfig(**{**({"label": label} if label else {}), **options}), "boost.train")
