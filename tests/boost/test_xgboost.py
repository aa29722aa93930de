"""The same trees and predictions as XGBoost."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xgboost

from tacit.boost.program import BoostProgram
from tacit.boost.trees import LEAF
from tacit.boost.xgboost_json import from_json, load, to_json
from tacit.errors import BadData
from tacit.protocols.sum_steps import ideal

from .tables import COLUMNS, LABELS, divide, make_program, make_table


@pytest.fixture(scope="module")
def table():
    return make_table()


def matrix(model, frame):
    kinds = ["c" if c else "float" for c in model.bins.is_category]
    return xgboost.DMatrix(
        model.bins.to_matrix(frame),
        feature_names=model.bins.names,
        feature_types=kinds,
        enable_categorical=True,
    )


@pytest.mark.parametrize("objective", list(LABELS))
@pytest.mark.parametrize("options", [{}, {"leaves": 6, "depth": 0}], ids=["level", "leaf"])
def test_xgboost_loads_the_model_and_predicts_the_same(table, tmp_path, objective, options):
    model = ideal(make_program(objective, **options), {"all": table}).model
    file = tmp_path / "model.json"
    file.write_text(json.dumps(to_json(model)))
    theirs = xgboost.Booster()
    theirs.load_model(file)
    fresh = make_table(500, seed=9)
    fresh.loc[:4, "c"] = "unseen"
    assert model.predict(fresh) == pytest.approx(theirs.predict(matrix(model, fresh)), rel=1e-6, abs=1e-6)
    assert np.array_equal(load(file).predict(fresh), model.predict(fresh))
    score = theirs.get_score(importance_type="total_gain")
    ours = model.importance("total_gain")
    assert {k: v for k, v in ours.items() if v} == pytest.approx(score, rel=1e-5)


def numeric_program(objective: str, **options) -> BoostProgram:
    terms = {"columns": ["a", "b", "d"], "label": LABELS[objective], "objective": objective}
    return BoostProgram(terms, **options)


PENALTIES = [
    {},
    {"l2": 5.0, "l1": 2.0, "gamma": 3.0},  # not with counts: XGBoost's gain ignores α beside a largest step
    {"min_child_weight": 20.0, "learning_rate": 0.1},
    {"leaves": 8, "depth": 0},
    {"monotone": {"a": 1, "b": -1}},
]


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        (o, p)
        for o in ("binary", "regression", "poisson")
        for p in PENALTIES
        if o != "poisson" or "l1" not in p
    ],
)
def test_the_trees_are_those_of_xgboost_on_the_same_bins(table, objective, options):
    """XGBoost gets the cells as numbers, so that its cuts are between the same cells as ours."""
    model = ideal(numeric_program(objective, trees=3, **{"depth": 4, **options}), {"all": table}).model
    codes = model.bins.encode(table).astype(np.float32)
    codes[codes == model.bins.widths] = np.nan
    y = table[LABELS[objective]]
    y = (y == "yes").astype(float) if objective == "binary" else y
    base = {"binary": lambda b: 1 / (1 + np.exp(-b)), "poisson": np.exp}.get(objective, lambda b: b)(
        model.base
    )
    parameters = {
        "objective": model.objective.xgboost,
        "tree_method": "hist",
        "max_bin": 256,
        "base_score": float(base),
        "max_depth": options.get("depth", 4),
        "eta": options.get("learning_rate", 0.3),
        "lambda": options.get("l2", 1.0),
        "alpha": options.get("l1", 0.0),
        "gamma": options.get("gamma", 0.0),
        "min_child_weight": options.get("min_child_weight", 1.0),
        "nthread": 1,
    }
    if "leaves" in options:
        parameters |= {"grow_policy": "lossguide", "max_leaves": options["leaves"]}
    if "monotone" in options:
        parameters["monotone_constraints"] = "(1,-1,0)"
    theirs = xgboost.train(parameters, xgboost.DMatrix(codes, y), 3)
    assert model.predict(table, margin=True) == pytest.approx(
        theirs.predict(xgboost.DMatrix(codes), output_margin=True), rel=1e-4, abs=1e-4
    )
    found = json.loads(theirs.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    for tree, other in zip(model.trees, found):
        assert sorted(f for f in tree.feature if f != LEAF) == sorted(
            f for f, child in zip(other["split_indices"], other["left_children"]) if child != -1
        )
        assert sum(tree.gain) == pytest.approx(sum(other["loss_changes"]), rel=1e-4)


@pytest.mark.parametrize("objective", list(LABELS))
def test_trees_do_not_depend_on_how_rows_are_partitioned(table, objective):
    options = {"rows": 0.7, "columns": 0.75, "columns_by_node": 0.7, "held_out": 0.2, "early_stopping": 2}
    found = [
        ideal(make_program(objective, **options), frames)
        for frames in ({"all": table}, divide(table, 7), dict(reversed(divide(table, 3, seed=5).items())))
    ]
    first = to_json(found[0].model)
    assert [to_json(f.model) for f in found[1:]] == [first, first]
    assert found[1].losses == found[2].losses == found[0].losses


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"learner": {"attributes": {}}}', '{"learner": {"attributes": {"tacit": "{}"}}}'],
)
def test_a_file_that_is_no_model_is_refused(tmp_path, text):
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(BadData, match=r"model\.json"):
        load(file)


def test_a_changed_model_is_refused(table):
    data = to_json(ideal(make_program(), {"all": table}).model)
    data["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"][0] = 0
    with pytest.raises(BadData):
        from_json(data)
    assert COLUMNS
