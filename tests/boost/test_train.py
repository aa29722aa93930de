"""tacit.boost.train: options, results, runtimes and bad input."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.metrics import log_loss, roc_auc_score

import tacit
from tacit.boost.xgboost_json import to_json
from tacit.errors import BadData, BadParameter, TacitError
from tacit.protocols.sum_of_all import Session

from .tables import COLUMNS, LABELS, divide, make_table

FEATURES = list(COLUMNS)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table()


@pytest.fixture(scope="module")
def fed(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return divide(table[[*COLUMNS, "yes", "kind", "size", "count"]], 3)


def train(fed, objective="binary", **options):
    options = {"features": FEATURES, "trees": 4, "depth": 3, **options}
    return tacit.boost.train(fed, label=LABELS.get(objective, "size"), objective=objective, **options)


def trees_of(model) -> str:
    return json.dumps(to_json(model.booster))


def test_a_model_is_trained_saved_and_used(fed, tmp_path):
    model = train(fed, trees=20)
    fresh = make_table(1000, seed=4)
    assert roc_auc_score(fresh["yes"] == "yes", model.predict(fresh)) > 0.8
    file = model.save(tmp_path / "model.json")
    theirs = xgboost.Booster(model_file=file)
    kinds = ["float", "float", "c", "float"]
    rows = xgboost.DMatrix(
        model.encode(fresh), feature_names=FEATURES, feature_types=kinds, enable_categorical=True
    )
    assert model.predict(fresh) == pytest.approx(theirs.predict(rows), abs=1e-6)
    assert np.allclose(
        theirs.predict(rows, pred_contribs=True).sum(1), model.predict(fresh, margin=True), atol=1e-4
    )
    assert list(model.importance()) == sorted(model.importance(), reverse=True)
    assert set(model.importance("weight").index) == set(COLUMNS)
    with pytest.raises(BadParameter, match="already exists"):
        model.save(file)
    with pytest.raises(BadParameter, match="kind"):
        model.importance("size")
    page = model.report(tmp_path / "report.html").read_text()
    assert "Boosted trees across parties" in page
    assert "a bin with one row shows" in page
    assert json.dumps(model.to_dict())
    assert "opened sums over all parties" in str(model)


def test_all_runtimes_give_the_same_trees(fed):
    options = {"trees": 2, "subsample": 0.8, "early_stopping": 1}
    models = [train(fed, runtime=runtime, **options) for runtime in ("cohort", "inprocess")]
    assert trees_of(models[0]) == trees_of(models[1])
    assert {line.how for line in models[0].ledger.seen} == {"ideal"}
    assert {line.how for line in models[1].ledger.seen} == {"executed"}
    # a simulation counts the bytes of the messages that parties exchange
    masked = train(fed, runtime="masked", **options)
    assert trees_of(masked) == trees_of(models[0])
    how = {line.kind: line.how for line in masked.ledger.seen}
    assert how == {"MaskedVector": "executed", "SumStep": "ideal", "opened sums": "executed"}
    assert [(s.kind, s.count, s.bytes) for s in masked.ledger.seen] == [
        (s.kind, s.count, s.bytes) for s in models[0].ledger.seen
    ]
    with pytest.raises(BadParameter, match=r"guard.threshold is 0.6; it must be 1.0 with runtime='masked'"):
        train(fed, runtime="masked", guard=tacit.guard.SecAgg(threshold=0.6))
    sent = [sum(s.bytes for s in m.ledger.seen if s.kind in ("SumStep", "MaskedVector")) for m in models]
    handshake = 3_000  # a simulation counts keys beside the vectors
    assert abs(sent[0] - sent[1]) < handshake


def test_a_federation_of_tables_has_its_label_and_its_columns(table):
    fed = tacit.data.from_frames(
        {k: v[[*COLUMNS, "yes"]] for k, v in divide(table, 3).items()}, label="yes", test_fraction=0
    )
    model = tacit.boost.train(fed, trees=2, depth=2)
    assert model.label == "yes"
    assert set(model.booster.bins.names) == set(COLUMNS)
    assert model.rows == int(fed.train.sizes.sum())


def test_a_function_as_objective_gives_the_same_trees_as_its_name(fed):
    def squared(margin, y):
        return margin - y, np.ones_like(y)

    own = train(fed, squared)
    ours = train(fed, "regression")
    shift = ours.booster.base  # a function starts at margin 0
    centered = {k: f.assign(size=f["size"] - shift) for k, f in fed.items()}
    again = train(centered, squared)
    assert own.booster.objective.name == "custom"
    assert again.predict(fed["p0"]) + shift == pytest.approx(ours.predict(fed["p0"]), abs=1e-4)
    with pytest.raises(BadParameter, match="runtime"):
        train(fed, squared, runtime="inprocess")
    with pytest.raises(BadParameter, match="for each row"):
        train(fed, lambda m, y: (m[:3], y[:3]))


def test_early_stopping_keeps_the_round_with_the_smallest_loss_of_held_out_rows(fed):
    model = train(fed, trees=60, depth=6, learning_rate=1.0, early_stopping=3)
    assert model.best_round == int(np.argmin(model.losses))
    assert model.booster.rounds == model.best_round
    assert len(model.losses) == model.best_round + 4
    assert model.loss == min(model.losses)


def test_the_loss_of_held_out_rows_is_that_of_their_predictions(fed, table):
    from tacit.boost.rows import draw, hash_rows

    model = train(fed, held_out=0.3)
    held = draw(hash_rows(table, ["a", "b", "d"], ["c", "yes"]), 0, 1, 0.3)
    rows = table[held]
    assert 0.25 < held.mean() < 0.35
    assert model.rows == (~held).sum()
    assert model.losses[-1] == pytest.approx(log_loss(rows["yes"] == "yes", model.predict(rows)), rel=1e-9)


def test_predictions_rise_with_a_monotone_column(fed, table):
    model = train(fed, "regression", trees=20, depth=4, monotone={"a": 1})
    rows = table.iloc[np.repeat(np.arange(50), 21)].assign(a=np.tile(np.linspace(-3, 3, 21), 50))
    found = model.predict(rows).reshape(50, 21)
    assert (np.diff(found, axis=1) >= 0).all()
    free = train(fed, "regression", trees=20, depth=4).predict(rows).reshape(50, 21)
    assert (np.diff(free, axis=1) < 0).any()


def test_class_weights_equal_repeated_rows(fed):
    doubled = {k: pd.concat([f, f[f["yes"] == "yes"]], ignore_index=True) for k, f in fed.items()}
    weighted = train(fed, class_weight={"yes": 2.0}, cuts={"a": [-1, 0, 1], "b": [10, 20], "d": [1, 2]})
    repeated = train(doubled, cuts={"a": [-1, 0, 1], "b": [10, 20], "d": [1, 2]})
    assert weighted.predict(fed["p0"]) == pytest.approx(repeated.predict(fed["p0"]), abs=1e-5)
    even = train(fed, class_weight="balanced").predict(pd.concat(fed.values()))
    assert abs(even.mean() - 0.5) < 0.05


def test_every_leaf_has_its_rows_and_columns_are_sampled(fed):
    model = train(fed, trees=10, depth=6, min_rows=100, colsample_bytree=0.5)
    for tree in model.booster.trees:
        assert min(tree.rows) >= 100
        assert len({f for f in tree.feature if f >= 0}) <= 2
    assert len({f for t in model.booster.trees for f in t.feature if f >= 0}) == 4


def test_leaves_are_the_largest_gains_first(fed):
    model = train(fed, grow="leaf", leaves=5, depth=0, trees=3)
    assert {(len(t) + 1) // 2 for t in model.booster.trees} == {5}
    deep = train(fed, grow="leaf", leaves=8, depth=3, trees=3)
    assert max(t.depth() for t in deep.booster.trees) <= 3


def test_several_classes(fed, table):
    model = train(fed, "multiclass", trees=10)
    found = model.predict(table)
    assert found.shape == (len(table), 3)
    assert model.booster.labels == ("low", "middle", "top")
    assert np.allclose(found.sum(1), 1)
    assert (np.array(model.booster.labels)[found.argmax(1)] == table["kind"]).mean() > 0.55


def test_more_levels_than_a_sum_can_find_are_taken_from_the_tables():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"code": [f"c{k:03d}" for k in rng.integers(0, 300, 3000)], "x": rng.normal(size=3000)}
    )
    frame["y"] = np.where(frame["code"].str.endswith("7"), 1, 0)
    model = tacit.boost.train(divide(frame, 2), label="y", trees=2, depth=2)
    assert len(model.booster.bins.features[0].levels) == 254
    assert model.importance().index[0] == "code"


BAD = [
    ({"label": "nothing"}, "no column 'nothing'"),
    ({"label": ""}, "label"),
    ({"objective": "binray"}, "objective is 'binray'"),
    ({"objective": "binary", "label": "kind"}, "needs two classes"),
    ({"objective": "poisson", "label": "size"}, "below 0"),
    ({"objective": "regression", "label": "yes"}, "not numeric"),
    ({"trees": 0, "depth": 99, "learning_rate": 2.0}, "trees is 0"),
    ({"trees": 0, "depth": 99, "learning_rate": 2.0}, "depth is 99"),
    ({"depth": 0}, "depth is 0"),
    ({"leaves": 8}, "grow='leaf'"),
    ({"bins": 1000}, "bins is 1000"),
    ({"monotone": {"a": 2}}, "monotone"),
    ({"monotone": {"c": 1}}, "a column of numbers"),
    ({"cuts": {"a": [2, 1]}}, "ascending"),
    ({"cuts": {"z": [1]}}, "one of the model's columns"),
    ({"class_weight": {"maybe": 2.0}}, "'maybe'"),
    ({"class_weight": "fair"}, "'balanced'"),
    ({"features": ["a", "yes"]}, "without the label"),
    ({"features": []}, "at least one column"),
    ({"labels": ["no", "never"]}, "'yes', which is not one of the agreed classes"),
    ({"runtime": "cloud"}, "runtime is 'cloud'"),
    ({"bounds": {"a": (0, 1)}}, "without epsilon"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options_are_refused(fed, options, message):
    with pytest.raises(TacitError, match=message):
        tacit.boost.train(fed, **{"label": "yes", "features": FEATURES, "trees": 1, **options})


def test_bad_tables_are_refused(fed):
    with pytest.raises(TacitError, match="fed"):
        train([1, 2])
    broken = fed["p1"].copy()
    broken.loc[0, "yes"] = None
    with pytest.raises(BadData, match="'p1': 1 rows have no 'yes'"):
        train({**fed, "p1": broken})
    with pytest.raises(BadData, match="infinite"):
        train({**fed, "p1": fed["p1"].assign(a=np.inf)})
    with pytest.raises(BadData, match="no column 'd'"):
        train({**fed, "p1": fed["p1"].drop(columns="d")})
    with pytest.raises(BadData, match="'p0': column '1' occurs twice"):
        train({"p0": fed["p0"].assign(**{"1": 0}).rename(columns={"d": 1})}, features=["a"])
    with pytest.raises(BadData, match="column 7 has no text as its name"):
        train({"p0": fed["p0"].rename(columns={"a": 7})}, features=["7", "b"])
    days = pd.date_range("2020-01-01", periods=len(fed["p0"]), tz="UTC")
    with pytest.raises(BadData, match="the table of 'p0': column 'day' contains dates"):
        train({"p0": fed["p0"].assign(day=days)}, features=["a", "day"])
    with pytest.raises(TypeError, match="Did you mean 'learning_rate'"):
        train(fed, learning_rat=0.1)
    with pytest.raises(BadData, match="no column 'a'"):
        train(fed, trees=1).predict(fed["p0"].drop(columns="a"))


def test_a_sum_is_never_empty(fed):
    """No cell of a number is crowded enough to be divided a second time."""
    options = {"trees": 1, "bins": 16, "features": ["b"], "min_rows": 5}
    models = [train(fed, runtime=runtime, **options) for runtime in ("cohort", "inprocess")]
    assert trees_of(models[0]) == trees_of(models[1])


def test_a_column_without_values_is_no_problem(fed):
    empty = {k: f.assign(e=np.nan, f="same") for k, f in fed.items()}
    model = train(empty, features=[*FEATURES, "e", "f"])
    assert model.importance()["e"] == model.importance()["f"] == 0


def test_a_masked_simulation_adds_no_vector_that_is_not_masked(fed, monkeypatch):
    """What is added of a party is not its vector, and the masks of all parties cancel."""
    seen = []
    mask = Session.mask

    def watch(session, vector, *rest):
        before = vector.copy()
        after = mask(session, vector, *rest)
        seen.append(np.mean(before == after))
        return after

    monkeypatch.setattr(Session, "mask", watch)
    model = train(fed, runtime="masked", trees=1)
    assert len(seen) == len(fed) * model.steps
    assert max(seen) < 0.5  # a long vector of which half is unchanged: below 2^-100
