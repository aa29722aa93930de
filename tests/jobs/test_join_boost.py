"""`.boost` of `tacit.join(reveal="shares")`: trees over people whom nobody knows equal those of the merged
table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import xgboost
from sklearn.metrics import roc_auc_score

import tacit
from tacit.errors import BadData, BadParameter, QueryRefused
from tacit.jobs.vertical.join_boost import JoinBoostResult

N = 500
OPTIONS: dict[str, Any] = {"trees": 4, "depth": 3, "min_rows": 20, "bins": 8}


def tables(objective: str = "binary") -> dict[str, pd.DataFrame]:
    """A bank with 400 people and a shop with 350, all of them at the bank; both have missing values."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": [f"p{k}" for k in range(N)]})
    frame["cash"] = rng.normal(3000, 2500, N).round(2)
    frame["age"] = rng.integers(18, 80, N).astype(float)
    frame["region"] = rng.choice(["north", "south", "east"], N)
    frame["spent"] = rng.exponential(300, N).round(2)
    frame["visits"] = rng.poisson(4, N).astype(float)
    score = frame.cash / 2500 + frame.spent / 300 + (frame.region == "east") - 2 + rng.normal(0, 0.7, N)
    frame["late"] = np.where(score > 0, "yes", "no")
    frame["cost"] = (1000 * score).round(2)
    frame.loc[rng.random(N) < 0.15, "age"] = np.nan
    frame.loc[rng.random(N) < 0.15, "visits"] = np.nan
    label = "late" if objective == "binary" else "cost"
    bank = frame[["id", "cash", "age", "region"]].iloc[:400].sample(frac=1, random_state=1)
    shop = frame[["id", "spent", "visits", label]].iloc[50:400].sample(frac=1, random_state=2)
    return {"bank": bank, "shop": shop}


def pooled(found: JoinBoostResult, whole: pd.DataFrame, label: str, **options: Any) -> Any:
    """Our trees of pooled rows, with the same cuts, and a column of 0 and 1 for each level of a category."""
    bins = [f for part in found.parts.values() for f in part.bins.bins.features]
    cuts = {f.name: list(f.cuts) for f in bins if f.cuts is not None}
    frame = whole[[*cuts, label]].copy()
    for f in bins:
        for level in f.levels or ():
            frame[f"{f.name}={level}"] = (whole[f.name] == level).astype(float)
            cuts[f"{f.name}={level}"] = [0.5]
    trained = tacit.boost.train({"all": frame}, label=label, cuts=cuts, **{**OPTIONS, **options})
    return trained, frame


@pytest.fixture(scope="module")
def inner() -> JoinBoostResult:
    return tacit.join(tables(), on="id", reveal="shares").boost("late", **OPTIONS)


def aligned(frames: dict[str, pd.DataFrame], how: str = "inner") -> tuple[pd.DataFrame, dict[str, Any]]:
    """(the merged table, each party's columns of it)."""
    whole = frames["bank"].merge(frames["shop"], on="id", how=how)
    return whole, {who: whole[list(f.columns)] for who, f in frames.items()}


def test_trees_equal_those_of_the_merged_table(inner: JoinBoostResult) -> None:
    """All people of the label's holder are matched, so that the constants are equal, too."""
    whole, parts = aligned(tables())
    expected, frame = pooled(inner, whole, "late")
    assert (inner.trees, inner.objective, inner.label) == (4, "binary", "late")
    np.testing.assert_allclose(inner.predict(parts), expected.predict(frame), atol=1e-6)
    np.testing.assert_allclose(
        inner.predict(parts, margin=True), expected.predict(frame, margin=True), atol=1e-5
    )
    gains = expected.importance("total_gain")
    gains.index = [name.split("=")[0] for name in gains.index]
    gains = gains.groupby(level=0).sum()
    np.testing.assert_allclose(inner.importance("total_gain")[gains.index], gains, rtol=1e-4, atol=0.01)
    assert inner.rows is None


def test_a_regression_equals_xgboost_on_the_same_cells() -> None:
    """XGBoost's smallest sum of Hessians is a number of rows here."""
    frames = tables("regression")
    found = tacit.join(frames, on="id", reveal="shares").boost(
        "cost", ["cash", "age", "spent", "visits"], objective="regression", **OPTIONS
    )
    whole, parts = aligned(frames)
    bins = [part.bins for part in found.parts.values()]
    cells = np.concatenate([own.encode(whole) for own in bins], 1).astype(float)
    widths = np.concatenate([own.bins.widths for own in bins])
    cells[cells == widths] = np.nan
    model = xgboost.XGBRegressor(
        n_estimators=4,
        max_depth=3,
        learning_rate=0.3,
        min_child_weight=20,
        tree_method="exact",
        base_score=frames["shop"].cost.mean(),
        n_jobs=1,
    ).fit(cells, whole.cost)
    np.testing.assert_allclose(found.predict(parts), model.predict(cells), atol=0.02, rtol=1e-5)


@pytest.mark.parametrize("objective", ["binary", "regression"])
def test_a_left_join_has_all_people_of_the_first_party(objective: str) -> None:
    frames = tables(objective)
    label = "late" if objective == "binary" else "cost"
    labels = frames["bank"][["id"]].merge(frames["shop"][["id", label]], how="left")
    values = ["yes", "no"] if objective == "binary" else [0.0, 900.0]
    for k in np.flatnonzero(labels[label].isna()):
        labels.loc[k, label] = values[k % 2]
    frames["bank"] = frames["bank"].merge(labels, on="id")
    frames["shop"] = frames["shop"].drop(columns=label).iloc[:250]
    table = tacit.join(frames, on="id", reveal="shares", how="left")
    found = table.boost(label, objective=objective, **OPTIONS)
    whole, parts = aligned(frames, "left")
    expected, frame = pooled(found, whole, label, objective=objective)
    assert found.rows == 400
    scale = 1.0 if objective == "binary" else 1000.0
    np.testing.assert_allclose(found.predict(parts), expected.predict(frame), atol=2e-5 * scale)


def test_the_auc_on_a_real_table_equals_that_of_xgboost() -> None:
    """R. Fair 1978 (statsmodels): two parties with half of the columns and two thirds of the people each.

    With Hessians of at least 5 a leaf has at least 20 rows, so that the rules are the same.
    """
    frame = sm.datasets.fair.load_pandas().data.head(4500)
    frame = frame.assign(affairs=(frame.affairs > 0).astype(int), id=[f"w{k}" for k in range(len(frame))])
    frame = frame.sample(frac=1, random_state=0)
    train, test = frame.iloc[:3000], frame.iloc[3000:]
    first, second = list(frame.columns[:4]), list(frame.columns[4:8])
    frames = {
        "survey": train[["id", *first, "affairs"]].iloc[:2200],
        "registry": train[["id", *second]].iloc[800:],
    }
    found = tacit.join(frames, on="id", reveal="shares").boost(
        "affairs", trees=10, depth=3, min_rows=20, min_child_weight=5
    )
    both = train.iloc[800:2200]
    cells = [
        np.concatenate([part.bins.encode(rows) for part in found.parts.values()], 1).astype(float)
        for rows in (both, test)
    ]
    model = xgboost.XGBClassifier(
        n_estimators=10,
        max_depth=3,
        learning_rate=0.3,
        min_child_weight=5,
        tree_method="exact",
        base_score=frames["survey"].affairs.mean(),
        n_jobs=1,
    ).fit(cells[0], both.affairs)
    scores = found.predict({"survey": test, "registry": test}), model.predict_proba(cells[1])[:, 1]
    ours, theirs = (roc_auc_score(test.affairs, s) for s in scores)
    assert ours > 0.7
    assert abs(ours - theirs) < 0.001


def test_trees_grow_between_processes() -> None:
    frames = tables()
    found = tacit.join(frames, on="id", reveal="shares", runtime="processes").boost(
        "late", trees=1, depth=2, bins=8
    )
    here = tacit.join(frames, on="id", reveal="shares").boost("late", trees=1, depth=2, bins=8)
    _, parts = aligned(frames)
    np.testing.assert_allclose(found.predict(parts), here.predict(parts), atol=1e-6)


def test_the_result_is_that_of_boosted_trees(inner: JoinBoostResult, tmp_path: Path) -> None:
    whole, parts = aligned(tables())
    again = tacit.boost.load(inner.save(tmp_path / "trees"))
    np.testing.assert_array_equal(again.predict(parts), inner.predict(parts))
    assert set(inner.importance("weight").index) == {"cash", "age", "region", "spent", "visits"}
    assert inner.importance("weight").sum() == inner.leaves - inner.trees
    text = inner.report(tmp_path / "report.html").read_text()
    assert "Boosted trees over a join that stays shared" in text
    with pytest.raises(BadParameter, match=r"kind is 'cover'; it must be 'gain', 'total_gain', 'weight'"):
        inner.importance("cover")
    shop, bank = inner.parts.values()
    assert bank.base is None
    assert shop.base is not None
    assert len(bank.splits) + len(shop.splits) == inner.leaves - inner.trees
    assert all(not any(tree.value) for tree in bank.trees)
    assert len(whole) == 350


def test_a_join_keeps_a_summary_and_the_ledger_of_its_trees() -> None:
    table = tacit.join(tables(), on="id", reveal="shares")
    before = len(table.ledger.seen)
    found = table.boost("shop.late", ["bank.cash"], trees=1, depth=1)
    assert table.answers[-1]["what"] == "boost"
    assert table.answers[-1]["label"] == "shop.late"
    assert len(table.ledger.seen) > before
    assert {line.kind for line in found.ledger.seen} <= {line.kind for line in table.ledger.seen}
    assert any(stamp.startswith("OPENED: both parties learned which column") for stamp in table.ledger.stamps)


def test_columns_of_codes_are_categories_where_declared() -> None:
    frames = tables()
    frames["shop"]["visits"] = frames["shop"]["visits"].fillna(3).clip(1, 5)
    table = tacit.join(frames, on="id", reveal="shares")
    found = table.boost("late", ["cash", "visits"], categories=["shop.visits"], **OPTIONS)
    whole, parts = aligned(frames)
    expected, frame = pooled(found, whole.assign(visits=whole.visits.map("{:g}".format)), "late")
    assert found.parts["shop"].bins.bins.features[0].levels is not None
    np.testing.assert_allclose(found.predict(parts), expected.predict(frame), atol=1e-6)


@pytest.mark.parametrize("label_at", ["bank", "shop"])
@pytest.mark.parametrize("columns", [["cash", "age"], ["spent", "visits"]])
def test_one_party_alone_may_have_the_columns(label_at: str, columns: list[str]) -> None:
    frames = tables()
    if label_at == "bank":
        frames["bank"] = frames["bank"].merge(frames["shop"][["id", "late"]], on="id")
        frames["shop"] = frames["shop"].drop(columns="late")
    found = tacit.join(frames, on="id", reveal="shares").boost("late", columns, **OPTIONS)
    _, parts = aligned(frames)
    whole = frames["bank"].merge(frames["shop"], on="id")
    expected, frame = pooled(found, whole, "late")
    assert next(iter(found.parts)) == label_at
    np.testing.assert_allclose(found.predict(parts), expected.predict(frame), atol=1e-6)


def test_rare_levels_share_a_bin() -> None:
    frames = tables()
    frames["bank"]["city"] = np.random.default_rng(1).choice([f"city {k}" for k in range(30)], 400)
    found = tacit.join(frames, on="id", reveal="shares").boost(
        "late", ["city"], trees=1, depth=1, bins=5, min_rows=10
    )
    levels = found.parts["bank"].bins.bins.features[0].levels
    assert levels is not None
    assert len(levels) == 4


def test_few_matched_people_grow_no_tree() -> None:
    frames = tables()
    frames["shop"] = frames["shop"].iloc[:39]
    table = tacit.join(frames, on="id", reveal="shares")
    with pytest.raises(QueryRefused, match="fewer people are matched than the 40 that trees need"):
        table.boost("late", trees=1, depth=1)


def test_a_label_that_is_about_one_person_grows_no_tree() -> None:
    """Else its holder would learn from the first leaf whether this person is matched."""
    frames = tables()
    is_one = np.arange(len(frames["shop"])) == 7
    frames["shop"]["late"] = np.where(is_one, "yes", "no")
    table = tacit.join(frames, on="id", reveal="shares")
    with pytest.raises(QueryRefused, match="or fewer than 10 have one of two labels"):
        table.boost("late", trees=1, depth=1)
    frames["shop"]["late"] = np.where(is_one, 1000.0, frames["shop"]["spent"] / 100).round(2)
    table = tacit.join(frames, on="id", reveal="shares")
    with pytest.raises(BadData, match="one or two rows of 'shop' have nearly all of the label 'late'"):
        table.boost("late", objective="regression", trees=1, depth=1)


@pytest.mark.parametrize(
    ("label", "columns", "options", "text"),
    [
        ("money", None, {}, "column is 'money'; it must be one column of one party"),
        ("late", "cash", {}, "columns is 'cash'; it must be a list of columns"),
        ("late", ["late", "cash"], {}, "each column once, without the label"),
        ("late", ["cash", "bank.cash"], {}, "each column once, without the label"),
        ("late", [], {}, "at least one column besides the label"),
        ("late", None, {"categories": ["late"]}, "categories is 'shop.late'; it must be one of the columns"),
        (
            "late",
            None,
            {"objective": "poisson"},
            "objective is 'poisson'; it must be one of 'binary', 'regression'",
        ),
        ("late", None, {"min_rows": 5}, "min_rows is 5; it must be at least 10, the minimum of the join"),
        ("late", None, {"depth": 9}, "depth is 9; it must be"),
        ("late", None, {"l2": 0.0}, "l2 is 0.0; it must be"),
        ("region", None, {}, "objective is 'binary'; it must be 'binary' for two classes"),
    ],
)
def test_what_cannot_be_trained_is_refused(label: str, columns: Any, options: Any, text: str) -> None:
    table = tacit.join(tables(), on="id", reveal="shares")
    before = len(table.ledger.seen)
    with pytest.raises(BadParameter, match=text):
        table.boost(label, columns, **options)
    assert len(table.ledger.seen) == before


def test_labels_that_are_no_numbers_or_constant_are_refused() -> None:
    table = tacit.join(tables(), on="id", reveal="shares")
    with pytest.raises(BadData, match="the label 'late' is not a number"):
        table.boost("late", objective="regression")
    frames = tables("regression")
    frames["bank"]["cost"] = 1.0
    frames["shop"] = frames["shop"].drop(columns="cost")
    with pytest.raises(BadData, match="the label 'cost' of 'bank' has the same value in every row"):
        tacit.join(frames, on="id", reveal="shares").boost("cost", objective="regression")
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_depth'"):
        table.boost("late", max_depth=3)
    left = tacit.join(tables(), on="id", reveal="shares", how="left")
    with pytest.raises(BadParameter, match=r"label is 'shop\.late'; it must be a column of 'bank'"):
        left.boost("late")
