"""Options of boosting beside XGBoost on the same cells: categories, classes, weights, sampling, held-out rows.

XGBoost gets the cells as numbers (or as codes of categories), so that its cuts are between the same cells. It
splits every category by sorted gradients (`max_cat_to_onehot=1`). Where it does not see all rows there are 16
cells, each with some of the rows it sees: it puts a cut beside a cell that it has not seen on either side.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost

import tacit
from tacit.boost import agreement
from tacit.boost.program import HELD_OUT, SAMPLED, BoostProgram
from tacit.boost.rows import draw
from tacit.boost.trees import LEAF
from tacit.protocols.sum_steps import ideal

from .tables import LABELS, divide, make_program, make_table

CLOSE = {"rel": 2e-4, "abs": 2e-4}  # XGBoost computes in float32


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table()


def fit(program: BoostProgram, table: pd.DataFrame) -> Any:
    return ideal(program, divide(table, 3))


def target(table: pd.DataFrame, objective: str, labels: tuple[str, ...]) -> np.ndarray:
    y = table[LABELS[objective]]
    return y.map({v: k for k, v in enumerate(labels)}).to_numpy(float) if labels else y.to_numpy(float)


def matrix(model: Any, table: pd.DataFrame, columns: np.ndarray | None = None, **options: Any) -> Any:
    """The cells of these columns; the cell of missing values is NaN."""
    codes = model.bins.encode(table).astype(np.float32)
    codes[codes == model.bins.widths] = np.nan
    used = np.arange(codes.shape[1]) if columns is None else np.flatnonzero(columns)
    kinds = ["c" if model.bins.is_category[k] else "q" for k in used]
    return xgboost.DMatrix(codes[:, used], feature_types=kinds, enable_categorical=True, **options)


def parameters(model: Any, **options: Any) -> dict[str, Any]:
    more = {"num_class": len(model.labels)} if model.objective.name == "multiclass" else {}
    return {
        "objective": model.objective.xgboost,
        "tree_method": "hist",
        "max_bin": 256,
        "max_cat_to_onehot": 1,
        "max_depth": 3,
        "eta": 0.3,
        "nthread": 1,
        **more,
        **options,
    }


def base_score(model: Any) -> float:
    if model.objective.name == "binary":
        return float(1 / (1 + np.exp(-model.base)))
    return float(np.exp(model.base)) if model.objective.name == "poisson" else float(model.base)


def check_same_trees(ours: list[Any], theirs: xgboost.Booster) -> None:
    """The same columns are split, with the same gains."""
    found = json.loads(theirs.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    assert len(found) == len(ours)
    for tree, other in zip(ours, found):
        assert sorted(f for f in tree.feature if f != LEAF) == sorted(
            f for f, child in zip(other["split_indices"], other["left_children"]) if child != -1
        )
        assert sum(tree.gain) == pytest.approx(sum(other["loss_changes"]), rel=1e-3)


@pytest.mark.parametrize(
    ("objective", "options", "theirs"),
    [
        ("binary", {}, {}),
        ("binary", {"leaves": 7, "depth": 0}, {"grow_policy": "lossguide", "max_leaves": 7, "max_depth": 0}),
        (
            "binary",
            {"max_step": 0.3, "min_child_weight": 0.0},
            {"max_delta_step": 0.3, "min_child_weight": 0},
        ),
        ("regression", {"gamma": 40.0, "l1": 20.0, "l2": 9.0}, {"gamma": 40, "alpha": 20, "lambda": 9}),
        ("poisson", {}, {}),
        ("multiclass", {"labels": ("low", "middle", "top")}, {}),
    ],
    ids=["binary", "best-first", "largest step", "penalties", "poisson", "multiclass"],
)
def test_trees_with_categories_and_missing_values_are_those_of_xgboost(table, objective, options, theirs):
    model = fit(make_program(objective, trees=4, **options), table).model
    y = target(table, objective, model.labels)
    found = xgboost.train(
        parameters(model, base_score=base_score(model), **theirs), matrix(model, table, label=y), 4
    )
    splits = [f for tree in model.trees for f in tree.feature if f != LEAF]
    assert 2 in splits  # the category
    check_same_trees(model.trees, found)
    assert model.predict(table) == pytest.approx(found.predict(matrix(model, table)), **CLOSE)


def test_categories_with_many_rare_levels_are_divided_as_by_xgboost():
    """200 levels of nine rows: those with a small Hessian count as 0, and a set has at most 63 levels."""
    rng = np.random.default_rng(0)
    level = rng.integers(0, 200, 1800)
    rate = rng.beta(0.5, 0.15, 200)
    y = (rng.random(1800) < rate[level]).astype(int)
    frame = pd.DataFrame({"c": [f"level {k:03d}" for k in level], "y": y})
    model = tacit.boost.train(divide(frame, 3), label="y", trees=5, depth=3, min_level_rows=1).booster
    found = xgboost.train(
        parameters(model, base_score=base_score(model)), matrix(model, frame, label=y.astype(float)), 5
    )
    check_same_trees(model.trees, found)
    for tree in model.trees:
        for members in tree.sets.values():
            assert min(members[:-1].sum(), (~members[:-1]).sum()) <= 63  # the last is no level
    assert model.predict(frame) == pytest.approx(found.predict(matrix(model, frame)), **CLOSE)


def without_missing(table: pd.DataFrame) -> pd.DataFrame:
    """Of a category, XGBoost never divides the rows with any value from those with none; tacit does."""
    return table.assign(c=table["c"].fillna("x"), d=table["d"].fillna(-1.0))


@pytest.mark.parametrize("objective", ["binary", "multiclass"])
def test_class_weights_are_weights_of_rows(table, objective):
    table = without_missing(table)
    weights = {"yes": 2.5, "no": 0.5} if objective == "binary" else {"low": 3.0, "middle": 1.0, "top": 0.5}
    model = fit(make_program(objective, trees=4, class_weight=weights), table).model
    y = target(table, objective, model.labels)
    w = np.array([weights[label] for label in model.labels])[y.astype(int)]
    found = xgboost.train(
        parameters(model, base_score=base_score(model)), matrix(model, table, label=y, weight=w), 4
    )
    if objective == "binary":
        assert base_score(model) == pytest.approx((w * y).sum() / w.sum(), rel=1e-6)
    check_same_trees(model.trees, found)
    assert model.predict(table) == pytest.approx(found.predict(matrix(model, table)), **CLOSE)


@pytest.mark.parametrize("options", [{"rows": 0.6}, {"columns": 0.5}, {"rows": 0.7, "columns": 0.75}])
def test_sampled_rows_and_columns_are_the_only_ones_used(table, options):
    """XGBoost grows each round's tree on the rows and columns that were drawn, from the margins so far."""
    program = make_program("binary", trees=5, bins=16, **options)
    model = fit(program, table).model
    y, margin = target(table, "binary", model.labels), np.full(len(table), model.base)
    hashes = agreement.prepare(program, table).hashes
    shares = []
    for round_, tree in enumerate(model.trees):
        share = options.get("rows", 1.0)
        rows = draw(hashes, program.seed, SAMPLED + round_, share) if share < 1 else np.ones(len(y), bool)
        used = program._features(round_)
        part = table[rows]
        one = xgboost.train(
            parameters(model),
            matrix(model, part, used, label=y[rows], base_margin=margin[rows]),
            1,
        )
        margin = one.predict(matrix(model, table, used, base_margin=margin), output_margin=True)
        shares.append(rows.mean())
        check_same_trees([renumber(tree, used)], one)
    assert abs(np.mean(shares) - options.get("rows", 1.0)) < 0.03
    assert model.predict(table, margin=True) == pytest.approx(margin, **CLOSE)


def renumber(tree: Any, used: np.ndarray | None) -> Any:
    """The tree with its columns counted among those that were used."""
    columns = [f if f == LEAF or used is None else int(used[:f].sum()) for f in tree.feature]
    return SimpleNamespace(gain=tree.gain, feature=columns)


@pytest.mark.parametrize("objective", ["binary", "regression", "multiclass"])
def test_early_stopping_stops_where_xgboost_does_on_the_same_held_out_rows(table, objective):
    table = without_missing(table)  # where a node has none, each library has a side of its own for them
    program = make_program(objective, trees=60, bins=16, learning_rate=0.8, held_out=0.25, early_stopping=3)
    result = fit(program, table)
    model = result.model
    held = ~agreement.prepare(program, table).keep(program.seed, HELD_OUT, 0.25)
    y, log = target(table, objective, model.labels), {}
    metric = {"binary": "logloss", "multiclass": "mlogloss", "regression": "rmse"}[objective]
    found = xgboost.train(
        parameters(model, base_score=base_score(model), eta=0.8, eval_metric=metric),
        matrix(model, table[~held], label=y[~held]),
        60,
        evals=[(matrix(model, table[held], label=y[held]), "held")],
        early_stopping_rounds=3,
        evals_result=log,
        verbose_eval=False,
    )
    losses = np.array(log["held"][metric])
    losses = losses**2 if objective == "regression" else losses
    assert len(result.losses) == len(losses) + 1  # theirs begin after the first tree
    kept = result.best or 0
    assert result.losses[1 : kept + 1] == pytest.approx(losses[:kept], rel=1e-5)
    assert result.best == found.best_iteration + 1
    assert model.rounds == result.best


def test_an_own_objective_gives_the_trees_of_xgboosts_own_objective(table):
    """Pseudo-Huber loss, which tacit does not have."""

    def huber(margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r = margin - y
        root = 1 + r**2
        return r / np.sqrt(root), root**-1.5

    model = tacit.boost.train(
        divide(table[["a", "b", "c", "d", "size"]], 4), label="size", objective=huber, trees=5, depth=3
    ).booster
    rows = matrix(model, table, label=table["size"].to_numpy())
    found = xgboost.train(
        {**parameters(model), "base_score": 0.0, "disable_default_eval_metric": 1},
        rows,
        5,
        obj=lambda margin, data: huber(margin, data.get_label()),
    )
    check_same_trees(model.trees, found)
    assert model.predict(table) == pytest.approx(found.predict(rows, output_margin=True), **CLOSE)


@pytest.mark.parametrize("objective", list(LABELS))
def test_shap_values_of_the_saved_model_add_up_to_its_margins(table, objective, tmp_path):
    trained = tacit.boost.train(
        divide(table[["a", "b", "c", "d", LABELS[objective]]], 3),
        label=LABELS[objective],
        objective=objective,
        trees=4,
        depth=3,
    )
    theirs = xgboost.Booster(model_file=trained.save(tmp_path / "model.json"))
    rows = xgboost.DMatrix(
        trained.encode(table),
        feature_names=theirs.feature_names,
        feature_types=theirs.feature_types,
        enable_categorical=True,
    )
    shap = theirs.predict(rows, pred_contribs=True)
    margin = trained.booster.predict(table, margin=True)
    assert shap.sum(axis=-1) == pytest.approx(margin.reshape(shap.shape[:-1]), rel=1e-3, abs=1e-3)
    again = tacit.boost.load(tmp_path / "model.json")
    assert np.array_equal(again.predict(table), trained.predict(table))
    for kind in ("total_gain", "gain", "weight", "cover", "total_cover"):
        expected = theirs.get_score(importance_type=kind)
        found = trained.importance(kind).to_dict()
        assert {k: v for k, v in found.items() if v} == pytest.approx(expected, rel=1e-4)
